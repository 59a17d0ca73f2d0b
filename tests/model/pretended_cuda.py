"""A CUDA device that the processor plays: most operations that mix its tensors with others fail as they would there.

Numbers of the processor pass everywhere, though `stack` and `cat` would refuse them. Which memory is the device's is
kept for each storage. The arithmetic is the processor's.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA = torch.device("cuda", 0)

INDEXING = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"}
MAY_MIX = {"aten::copy_", "aten::_to_copy", "aten::_has_compatible_shallow_copy_type", *INDEXING}
"""Operations that take tensors of several devices: copies, and places given on the processor."""


@contextmanager
def pretended_cuda() -> Iterator[None]:
    """Have tensors live on a pretended device where a program asks for `cuda`, until the block ends."""
    memory, autocast = _Memory(), torch.autocast
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def of_processor(device: str, *given: Any, **named: Any) -> torch.autocast:
        return autocast("cpu" if device == "cuda" else device, *given, **named)

    with ExitStack() as entered:
        found = {"is_available": True, "device_count": 1, "get_device_capability": (9, 0), "get_device_name": "none"}
        for name, value in found.items():
            entered.enter_context(mock.patch.object(torch.cuda, name, return_value=value))
        for name in ("set_device", "synchronize", "empty_cache", "current_stream", "Event"):
            entered.enter_context(mock.patch.object(torch.cuda, name))
        # Where PyTorch is built for CUDA, optimizers would ask the driver, which is not there, for a stream.
        entered.enter_context(mock.patch.object(torch.accelerator, "current_accelerator", return_value=None))
        entered.enter_context(mock.patch.object(Tensor, "pin_memory", lambda tensor: tensor))
        entered.enter_context(mock.patch.object(torch, "autocast", of_processor))
        entered.enter_context(mock.patch.object(torch, "is_autocast_enabled", side_effect=lambda *_: enabled("cpu")))
        entered.enter_context(mock.patch.object(torch, "get_autocast_dtype", side_effect=lambda *_: dtype("cpu")))
        entered.enter_context(_Functions(memory))
        entered.enter_context(_Operations(memory))
        yield


class _Memory:
    """The storages of the device, which are kept, so that no other tensor gets the address of one."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages

    def take(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage
        return tensor

    def moved(self, tensor: Tensor, device: torch.device) -> Tensor:
        """The tensor itself where it is there already, or a copy."""
        if self.has(tensor) == (device.type == "cuda"):
            return tensor
        with torch._C._DisableTorchDispatch():
            copy = tensor.clone()
        return self.take(copy) if device.type == "cuda" else copy


class _Functions(TorchFunctionMode):
    """Names of devices, and methods that no operation shows."""

    def __init__(self, memory: _Memory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        name = getattr(func, "__name__", "")
        if func == Tensor.device.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return CUDA if self._memory.has(args[0]) else func(*args)
        if func == Tensor.is_cuda.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return self._memory.has(args[0])
        if func is Tensor.numpy and self._memory.has(args[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")
        if func in (Tensor.cuda, Tensor.cpu):
            return self._memory.moved(args[0], CUDA if func is Tensor.cuda else torch.device("cpu"))
        if name == "to" and isinstance(args[0], Tensor):
            return self._to(func, args, kwargs)
        if (device := kwargs.get("device")) is not None and torch.device(device).type == "cuda":
            found = func(*args, **{**kwargs, "device": "cpu"})
            return self._memory.take(found)
        return func(*args, **kwargs)

    def _to(self, func: Callable[..., Tensor], args: Any, kwargs: dict[str, Any]) -> Tensor:
        tensor, *rest = args
        device = None
        for one in (*rest, kwargs.pop("device", None)):
            if isinstance(one, str | torch.device):
                device = torch.device(one)
            elif isinstance(one, Tensor):
                device = CUDA if self._memory.has(one) else torch.device("cpu")
        left = [one for one in rest if isinstance(one, torch.dtype | Tensor)]
        if left or kwargs.keys() - {"non_blocking", "copy"}:
            tensor = func(tensor, *left, **kwargs)
        return tensor if device is None else self._memory.moved(tensor, device)


class _Operations(TorchDispatchMode):
    """Operations, within others and in backward passes too."""

    def __init__(self, memory: _Memory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        there = [self._memory.has(one) for one in given]
        name = func.name().partition(".")[0]
        # A number of the processor may meet a tensor of the device.
        others = [one for one, is_there in zip(given, there, strict=True) if not is_there and one.dim()]
        if any(there) and others and name not in MAY_MIX:
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got cuda:0 and cpu")
        if name in INDEXING and any(there) and not there[0]:
            raise RuntimeError(f"indices should be on the same device as the indexed tensor (cpu), in {name}")
        found = func(*args, **(kwargs or {}))
        if not any(there) or (name == "aten::copy_" and not there[0]):
            return found
        return tree_map_only(Tensor, self._memory.take, found)
