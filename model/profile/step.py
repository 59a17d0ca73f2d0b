"""A profiled step: what it took, and what each part of it cost."""

from dataclasses import dataclass

from model.profile.machine import Machine

SMALL_SECONDS = 20e-6
"""An operation shorter than this takes about as long to be called as to be done."""


@dataclass(frozen=True)
class PartCost:
    """What one part of a step costs in one phase: seconds, FLOPs of matrix products, bytes moved, operations."""

    part: str
    phase: str
    seconds: float
    bound_seconds: float
    """Seconds that its operations must take at least, each on the roofline."""
    flops: float
    bytes: float
    operations: int
    small_seconds: float
    """Seconds in operations shorter than SMALL_SECONDS."""


@dataclass(frozen=True)
class Shape:
    """What of the run decides how its step looks: sizes of the network and of the batch, per process."""

    vocabulary: int
    width: int
    hidden: int
    layers: int
    context: int
    micro_batch_rows: int
    batch_rows: int
    element_bytes: int
    """Of a number in a matrix product."""


@dataclass(frozen=True)
class StepProfile:
    """A step's seconds and where they went; `parts`, `loader_seconds` and `between_seconds` add up to them."""

    seconds: float
    loader_seconds: float
    between_seconds: float
    """Seconds in no operation: Python, autograd, calls of kernels."""
    parts: tuple[PartCost, ...]
    slowdown: float
    """How many times as long a step took while its operations were timed."""
    tokens: int
    padding_share: float
    """Share of the rows' tokens that is padding at their ends."""
    model_flops: float
    """Of a step, 6 N + 12 L D T a token."""
    shape: Shape
    machine: Machine

    @property
    def flops(self) -> float:
        """Of all matrix products that ran."""
        return sum(part.flops for part in self.parts)

    def of_part(self, name: str) -> tuple[PartCost, ...]:
        """The phases of one part."""
        return tuple(cost for cost in self.parts if cost.part == name)
