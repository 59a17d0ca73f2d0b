"""Tensors set aside fast, and written as safetensors while their owner goes on changing them."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
"""The format's names of types, in its order: the widest lie first in a file, so that all are aligned."""


class TensorCopies:
    """Copies in memory that is kept for the next ones: fresh memory takes three times as long to fill.

    For tensors on CUDA devices that memory is pinned, and all copies are under way at once.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy all tensors; returns the copies, which stay until the next are taken."""
        taken: dict[str, Tensor] = {}
        devices: set[torch.device] = set()
        for name, tensor in tensors.items():
            copy = self._copies.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            taken[name] = copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
            if tensor.is_cuda:
                devices.add(tensor.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        self._copies = taken
        return taken


def safetensors_blocks(tensors: Mapping[str, Tensor]) -> list[Any]:
    """The blocks of a safetensors file that holds contiguous tensors of the processor, without a copy.

    Byte for byte what the library's `save_file` writes. As blocks their digest is taken on the way to disk, which for
    300 MB takes half the time of writing and reading again.
    """
    order = list(_NAMES)
    names = sorted(tensors, key=lambda name: (-order.index(tensors[name].dtype), name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[tensors[name].dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    data = (tensors[name].reshape(-1).view(torch.uint8).numpy() for name in names)
    return [len(text).to_bytes(8, "little"), text, *data]
