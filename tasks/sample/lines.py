"""Blocks of bytes become lines, with at most one unfinished line in memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tasks.sample.byte_blocks import Gap


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its line feed. `raw` is None where it is longer than the limit; `torn` when it follows a gap and
    may be the end of a line whose beginning is lost."""

    number: int
    byte: int
    raw: bytes | None
    torn: bool = False


@dataclass(frozen=True, slots=True)
class LostLine:
    """Where bytes are missing: the line that was being read, and what is left of it."""

    number: int
    byte: int
    reason: str
    rest: bytes


def lines_of(blocks: Iterable[bytes | Gap], limit: int) -> Iterator[Line | LostLine]:
    """Every line of at most `limit` bytes, numbered from 0, with the byte where it begins.

    Behind a gap numbers and bytes go on from what is known.
    """
    number = byte = held = 0
    pieces: list[bytes] = []
    torn = False
    for block in blocks:
        if isinstance(block, Gap):
            yield LostLine(number, byte, block.reason, b"".join(pieces)[:1024])
            number, byte, held, pieces, torn = number + 1, byte + held, 0, [], True
            continue
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            size = held + end - begin
            if size > limit:
                raw = None
            elif pieces:
                pieces.append(block[begin:end])
                raw = b"".join(pieces)
            else:
                raw = block[begin:end]
            yield Line(number, byte, raw, torn)
            number, byte, held, torn = number + 1, byte + size + 1, 0, False
            pieces.clear()
            begin = end + 1
        held += len(block) - begin
        if held > limit:
            pieces.clear()
        elif begin < len(block):
            pieces.append(block[begin:])
    if held:
        yield Line(number, byte, b"".join(pieces) if held <= limit else None, torn)
