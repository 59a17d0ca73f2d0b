"""The work of one operation: FLOPs of its matrix products, bytes that it reads and writes.

Bytes are counted as if nothing stayed in a cache, which is what the roofline asks for: each tensor that goes in is read
once, each that comes out is written once.

What parts cost, from the operations of several steps.

A profiled step: what it took, and what each part of it cost.

Every operation of a step with its part, its time and its work.

Two modes of PyTorch see the step: one below autograd, which sees each kernel with its tensors, and one above, which
sees each function with the graph that it made, so that a kernel of the backward pass finds its part through its node.
The time of an operation is that of its kernel; what Python and autograd do between kernels is in none of them.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from model.profile.modules import PARTS, PHASES, PartTracker
from model.profile.roofline import Machine

_OVERWRITING = {"copy_", "zero_", "fill_", "normal_"}
"""Operations that write what they do not read."""

_LOOKUPS = {"embedding", "index", "index_select", "gather"}
"""Operations that read as much of their first tensor as they return."""

_ONLY_READ = {"grads"}
"""Arguments that a schema calls written and that stay: a fused optimizer would unscale its gradients there."""


def flops_of(operation: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> float:
    """Floating point operations of matrix products, a multiplication and an addition each; attention counts in full.

    Everything else counts nothing, as in 6 N + 12 L D T (Kaplan et al. 2020). PyTorch's own formulas; it has none for
    attention on a processor, whose backward pass makes the scores again and so has five products for two.
    """
    packet = operation.overloadpacket
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        query, key, value = (tensor.shape for tensor in args[:3])
        return float(sdpa_flop_count(query, key, value))
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        gradient, query, key, value = (tensor.shape for tensor in args[:4])
        return float(sdpa_backward_flop_count(gradient, query, key, value))
    return 0.0


def bytes_of(operation: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> float:
    """Bytes read and written."""
    name = operation.overloadpacket.__name__
    returned = sum(size_of(tensor) for tensor in tensors_in(out))
    if name in _LOOKUPS:
        indices = sum(size_of(tensor) for tensor in tensors_in(args[1:]))
        return indices + 2.0 * returned
    moved = 0.0
    given: set[int] = set()
    arguments = operation._schema.arguments
    named = ((argument, kwargs[argument.name]) for argument in arguments if argument.name in kwargs)
    for argument, value in (*zip(arguments, args, strict=False), *named):
        written = argument.alias_info is not None and argument.alias_info.is_write and argument.name not in _ONLY_READ
        for tensor in tensors_in(value):
            given.add(id(tensor))
            moved += size_of(tensor) * (1 if not written or name in _OVERWRITING else 2)
    return moved + sum(size_of(tensor) for tensor in tensors_in(out) if id(tensor) not in given)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of an argument or result: itself, or those of its lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor's own elements; those that an expanded dimension repeats count once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in pairs if stride or not size) * tensor.element_size()


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
class Operation:
    """One kernel: its name, its part and phase (`parts`), seconds, FLOPs of matrix products, bytes read and written."""

    name: str
    part: str
    phase: str
    seconds: float
    flops: float
    bytes: float


def costs_of(steps: list[list[Operation]], machine: Machine) -> tuple[PartCost, ...]:
    """One cost for each part and phase that ran: the operations of the first step, the median seconds of each."""
    seconds = _seconds_by_occurrence(steps)
    mine: dict[tuple[str, str], list[Operation]] = {}
    for key, operation in _with_occurrence(steps[0]):
        median = statistics.median(seconds[key])
        mine.setdefault((operation.part, operation.phase), []).append(replace(operation, seconds=median))
    return tuple(_cost(mine[part, phase], machine) for part in PARTS for phase in PHASES if (part, phase) in mine)


def _cost(operations: list[Operation], machine: Machine) -> PartCost:
    return PartCost(
        part=operations[0].part,
        phase=operations[0].phase,
        seconds=sum(one.seconds for one in operations),
        bound_seconds=sum(machine.bound_seconds(one.flops, one.bytes) for one in operations),
        flops=sum(one.flops for one in operations),
        bytes=sum(one.bytes for one in operations),
        operations=len(operations),
        small_seconds=sum(one.seconds for one in operations if one.seconds < SMALL_SECONDS),
    )


def _seconds_by_occurrence(steps: list[list[Operation]]) -> dict[tuple, list[float]]:
    """Seconds that each step took for an operation. Steps differ where one clips its gradient and another does not."""
    seconds: dict[tuple, list[float]] = {}
    for operations in steps:
        for key, operation in _with_occurrence(operations):
            seconds.setdefault(key, []).append(operation.seconds)
    return seconds


def _with_occurrence(operations: list[Operation]) -> Iterator[tuple[tuple, Operation]]:
    """Each operation with what names it in any step: part, phase, name, and how many like it came before."""
    before: Counter[tuple[str, str, str]] = Counter()
    for operation in operations:
        like = (operation.part, operation.phase, operation.name)
        yield (*like, before[like]), operation
        before[like] += 1


def scaled(cost: PartCost, factor: float) -> PartCost:
    """The same work in other seconds."""
    return replace(cost, seconds=cost.seconds * factor, small_seconds=cost.small_seconds * factor)


SMALL_SECONDS = 20e-6
"""An operation shorter than this takes about as long to be called as to be done."""


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


@dataclass
class Recorder:
    """Collects the operations of everything that runs within `recording`."""

    network: nn.Module
    clock: Callable[[], float]
    operations: list[Operation] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The operations of this stretch of the program."""
        tracker = PartTracker(self.network)
        with tracker.watching(), _Graph(tracker), _Kernels(tracker, self.clock, self.operations):
            yield


class _Graph(TorchFunctionMode):
    def __init__(self, tracker: PartTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.backward:
            self._tracker.claim(args[0].grad_fn, self._tracker.part("backward"))
            with self._tracker.in_backward():
                return func(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            if tensor.grad_fn is not None:
                self._tracker.claim(tensor.grad_fn, self._tracker.part(getattr(func, "__name__", "")))
        return out


class _Kernels(TorchDispatchMode):
    def __init__(self, tracker: PartTracker, clock: Callable[[], float], operations: list[Operation]) -> None:
        super().__init__()
        self._tracker = tracker
        self._clock = clock
        self._operations = operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func.namespace != "aten":
            return func(*args, **kwargs)
        began = self._clock()
        out = func(*args, **kwargs)
        seconds = self._clock() - began
        name = func.overloadpacket.__name__
        work = flops_of(func, args, kwargs, out), bytes_of(func, args, kwargs, out)
        self._operations.append(Operation(name, *self._tracker.place(name), seconds, *work))
        return out
