"""In which order a stage of a pipeline passes micro-batches forward and backward.

One forward, one backward (PipeDream-Flush: Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 2.2): a
stage never holds more micro-batches than there are stages behind it and itself, where GPipe holds all. Both stand idle
for (stages - 1) of (micro-batches + stages - 1) turns.
"""

from collections.abc import Iterator
from typing import Literal

Turn = tuple[Literal["forward", "backward"], int]


def one_forward_one_backward(micro_batches: int, stage: int, stages: int) -> Iterator[Turn]:
    """The turns of one stage: forward or backward, and the number of the micro-batch."""
    ahead = min(stages - 1 - stage, micro_batches)
    for number in range(ahead):
        yield "forward", number
    for number in range(micro_batches - ahead):
        yield "forward", ahead + number
        yield "backward", number
    for number in range(micro_batches - ahead, micro_batches):
        yield "backward", number
