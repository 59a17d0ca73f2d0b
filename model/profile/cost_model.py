"""Record the operations of a step with their part, time and work, and sum them to the cost of each part.

Two PyTorch modes observe the step: one below autograd, which sees each kernel with its tensors, and one above, which
sees each function with the graph that it made, so that a kernel of the backward pass finds its part through its node.
The time of an operation is that of its kernel, without the time of Python and autograd between kernels.

The work of an operation is the FLOPs of its matrix products, and the bytes that it reads and writes. Bytes are counted
as if there were no cache, as the roofline requires: each input tensor is read once, each output is written once.
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

SMALL_SECONDS = 20e-6
"""Below this, calling an operation takes about as long as executing it."""

_OVERWRITING = {"copy_", "zero_", "fill_", "normal_"}
"""Operations that write what they do not read."""

_LOOKUPS = {"embedding", "index", "index_select", "gather"}
"""Operations that read as much of their first tensor as they return."""

_ONLY_READ = {"grads"}
"""Arguments that a schema marks as written and that are only read: a fused optimizer may unscale gradients in place."""


@dataclass(frozen=True)
class Operation:
    """One kernel: its name, part and phase, seconds, FLOPs of matrix products, bytes read and written."""

    name: str
    part: str
    phase: str
    seconds: float
    flops: float
    bytes: float


@dataclass(frozen=True)
class PartCost:
    """The cost of one part of a step in one phase: seconds, FLOPs of matrix products, bytes moved, operations."""

    part: str
    phase: str
    seconds: float
    bound_seconds: float
    """Least seconds that its operations can take, each on the roofline."""
    flops: float
    bytes: float
    operations: int
    small_seconds: float
    """Seconds in operations shorter than SMALL_SECONDS."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the network and of one process's batch."""

    vocabulary: int
    width: int
    hidden: int
    layers: int
    context: int
    micro_batch_rows: int
    batch_rows: int
    element_bytes: int
    """Bytes of a number in a matrix product."""


@dataclass(frozen=True)
class StepProfile:
    """The seconds of a step; `parts`, `loader_seconds` and `between_seconds` add up to them."""

    seconds: float
    loader_seconds: float
    between_seconds: float
    """Seconds outside operations: Python, autograd, calls of kernels."""
    parts: tuple[PartCost, ...]
    slowdown: float
    """Ratio of the time of a step whose operations are timed to that of a plain one."""
    tokens: int
    padding_share: float
    """Share of the rows' tokens that is padding at their ends."""
    model_flops: float
    """FLOPs of a step by 6 N + 12 L D T for each token."""
    shape: Shape
    machine: Machine

    @property
    def flops(self) -> float:
        """FLOPs of all matrix products that ran."""
        return sum(part.flops for part in self.parts)

    def of_part(self, name: str) -> tuple[PartCost, ...]:
        """Return the costs of one part in all phases."""
        return tuple(cost for cost in self.parts if cost.part == name)


@dataclass
class Recorder:
    """Records the operations that run within `recording`."""

    network: nn.Module
    clock: Callable[[], float]
    operations: list[Operation] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record all operations that run within this context."""
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


def flops_of(operation: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> float:
    """Return the FLOPs of matrix products, counting multiplications and additions; attention counts without masking.

    All other operations count as zero, as in 6 N + 12 L D T (Kaplan et al. 2020). The formulas are PyTorch's, except
    for attention on a CPU, whose backward pass recomputes the scores and so has five products for two.
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
    """Return the bytes that an operation reads and writes."""
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
    """Yield all tensors of an argument or result: itself, or those in its lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; those that an expanded dimension repeats count once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in pairs if stride or not size) * tensor.element_size()


def costs_of(steps: list[list[Operation]], machine: Machine) -> tuple[PartCost, ...]:
    """Return the cost of each part and phase that ran: the operations of the first step with their median seconds."""
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
    """Return the seconds of each operation in each step; an operation may be missing in a step that does not clip."""
    seconds: dict[tuple, list[float]] = {}
    for operations in steps:
        for key, operation in _with_occurrence(operations):
            seconds.setdefault(key, []).append(operation.seconds)
    return seconds


def _with_occurrence(operations: list[Operation]) -> Iterator[tuple[tuple, Operation]]:
    """Yield each operation with a key that identifies it in all steps: part, phase, name, and index among its like."""
    before: Counter[tuple[str, str, str]] = Counter()
    for operation in operations:
        like = (operation.part, operation.phase, operation.name)
        yield (*like, before[like]), operation
        before[like] += 1


def scaled(cost: PartCost, factor: float) -> PartCost:
    """Return the same work with its seconds multiplied by `factor`."""
    return replace(cost, seconds=cost.seconds * factor, small_seconds=cost.small_seconds * factor)
