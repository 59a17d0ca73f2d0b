"""Every operation of a step with its part, its time and its work.

Two modes of PyTorch see the step: one below autograd, which sees each kernel with its tensors, and one above, which
sees each function with the graph that it made, so that a kernel of the backward pass finds its part through its node.
The time of an operation is that of its kernel; what Python and autograd do between kernels is in none of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from model.profile.parts import PartTracker
from model.profile.work import bytes_of, flops_of, tensors_in


@dataclass(frozen=True)
class Operation:
    """One kernel: its name, its part and phase (`parts`), seconds, FLOPs of matrix products, bytes read and written."""

    name: str
    part: str
    phase: str
    seconds: float
    flops: float
    bytes: float


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
