"""Count the memory and the messages of what PyTorch computes, operation by operation."""

import dataclasses
import sys
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Counts the bytes of tensors that are created in its context and still alive (`now`), and their maximum
    (`peak`)."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self.known: dict[int, int] = {}
        """Storages that are alive, by identity, and their bytes."""
        self.resized: set[int] = set()
        """Those whose memory comes and goes while the tensor stays: weights that FSDP gathers."""

    def __enter__(self) -> "Allocations":
        resize = torch.UntypedStorage.resize_

        def counted(storage: Any, size: int) -> Any:
            if id(storage) in self.known:
                self._count_resized(id(storage), size)
            return resize(storage, size)

        # No operation of a tensor: no dispatch mode sees it.
        self._restored = resize
        torch.UntypedStorage.resize_ = counted  # pyright: ignore[reportAttributeAccessIssue]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._restored
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _has_dtensors(types):
            # What it computes of its part comes here too.
            return NotImplemented
        returned = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                if id(storage) not in self.known:
                    self.known[id(storage)] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._freed, id(storage))
        self.peak = max(self.peak, self.now)
        return returned

    def _count_resized(self, storage: int, size: int) -> None:
        self.resized.add(storage)
        self.now += size - self.known[storage]
        self.known[storage] = size
        self.peak = max(self.peak, self.now)

    def _freed(self, storage: int) -> None:
        self.now -= self.known.pop(storage)
        self.resized.discard(storage)


@dataclass(frozen=True)
class Messages:
    """Bytes of tensors that a rank passes to collective operations, by kind."""

    all_gather: float = 0
    """Weights that FSDP gathers: whole ones."""
    reduce_scatter: float = 0
    """Gradients that FSDP sums and divides: whole ones."""
    tensor_sums: float = 0
    """What tensor ranks sum of activations and their gradients."""
    sums: float = 0
    """Sums over copies of the model and over pipeline stages, and a few numbers of each step."""
    sends: float = 0
    """Activations and their gradients that a pipeline stage sends to its neighbours."""


class MessageCount(TorchDispatchMode):
    """Counts the bytes of tensors that are passed to collective operations in its context, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._counts = {field.name: 0.0 for field in dataclasses.fields(Messages)}

    @property
    def found(self) -> Messages:
        """Return what was counted."""
        return Messages(**self._counts)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _has_dtensors(types):
            # What it computes of its part comes here too.
            return NotImplemented
        kind = _KINDS.get(func.name()) if func.namespace in ("c10d", "_c10d_functional") else None
        if kind is not None:
            counted = args[1] if func.name() == "c10d::_reduce_scatter_base_" else args[0]
            self._counts[kind] += sum(one.numel() * one.element_size() for one in tree_leaves(counted))
        return func(*args, **(kwargs or {}))


_KINDS = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "sums",
    "c10d::send": "sends",
    "_c10d_functional::all_reduce": "tensor_sums",
    "_c10d_functional::all_reduce_": "tensor_sums",
    "_c10d_functional::all_gather_into_tensor": "tensor_sums",
    "_c10d_functional::reduce_scatter_tensor": "tensor_sums",
}
"""Operation -> field of `Messages`. Those of torch's functional collectives are made by DTensors, over tensor ranks."""


def _has_dtensors(types: Any) -> bool:
    """Return whether there are DTensors among the types; without their module, which takes .4 s, there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and module.DTensor in types
