"""The work of one operation: FLOPs of its matrix products, bytes that it reads and writes.

Bytes are counted as if nothing stayed in a cache, which is what the roofline asks for: each tensor that goes in is read
once, each that comes out is written once.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

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
