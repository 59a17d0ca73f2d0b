"""Characters without a piece, in bytes."""

from tasks.kernels import kernel
from tasks.tokenizing.borders import character

_BLANK = 0x20


@kernel
def spell(tables, data, position, target, filled):
    """The bytes of one character, as ids; `tables` are those of either algorithm."""
    if data[position] == _BLANK:
        for index in range(3):
            target[filled + index] = tables.blank_bytes[index]
        return filled + 3
    size = character(data, position)[1]
    for index in range(size):
        target[filled + index] = tables.byte_ids[data[position + index]]
    return filled + size
