"""The optimizer's state of a ZeRO run, cut anew for another number of ranks.

DeepSpeed 0.19.8 lays each group of parameters out as one vector. Stages 1 and 2 pad the vector and cut it into as many
equal parts as there are ranks. Stage 3 pads and cuts each parameter, and a rank's part is its pieces of all parameters
behind each other. Padding is never trained: its moments are zero.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def whole_vector(parts: Sequence[Tensor], elements: Sequence[int], *, by_parameter: bool) -> Tensor:
    """Moments of a group, one behind the other in the order of its parameters, from the parts of all ranks, in their
    order; `elements` has the size of each parameter.

    Raises ValueError where the parts are not of a group of such parameters.
    """
    if not by_parameter:
        joined = torch.cat(list(parts))
        if len(joined) < sum(elements):
            raise ValueError(f"parts of {len(joined)} elements together hold no group of {sum(elements)}")
        return joined[: sum(elements)]
    pieces = [-(-size // len(parts)) for size in elements]
    if any(len(part) != sum(pieces) for part in parts):
        raise ValueError(f"parts of {[len(part) for part in parts]} elements, where each rank has {sum(pieces)}")
    by_rank = [part.split(pieces) for part in parts]
    wholes = [torch.cat(of_parameter) for of_parameter in zip(*by_rank, strict=True)]
    return torch.cat([whole[:size] for whole, size in zip(wholes, elements, strict=True)])


def part_of_vector(
    whole: Tensor, elements: Sequence[int], rank: int, ranks: int, size: int, *, by_parameter: bool
) -> Tensor:
    """What `rank` of `ranks` holds of a vector that `whole_vector` made, `size` elements with padding.

    Raises ValueError where that is not the size of such a part.
    """
    if not by_parameter:
        return _padded(whole, size * ranks)[rank * size : (rank + 1) * size].clone()
    pieces = []
    for parameter in whole.split(list(elements)):
        piece = -(-len(parameter) // ranks)
        pieces.append(_padded(parameter, piece * ranks)[rank * piece : (rank + 1) * piece])
    part = torch.cat(pieces)
    if len(part) != size:
        raise ValueError(f"a part of {len(part)} elements, where the rank holds {size}")
    return part


def _padded(vector: Tensor, size: int) -> Tensor:
    if len(vector) > size:
        raise ValueError(f"{len(vector)} elements do not go into {size}")
    return torch.cat((vector, vector.new_zeros(size - len(vector))))
