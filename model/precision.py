"""The type in which matrices are multiplied, beside weights, gradients and sums that stay in float32."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from model.config import Dtype

COMPUTED_IN: dict[Dtype, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types other than that of the weights."""


def computing_in(dtype: Dtype, device: torch.device) -> AbstractContextManager[object]:
    """Within the block forward passes multiply matrices and attend in `dtype`; their backward passes do so too.

    Weights stay float32 and are rounded where they are used; norms, the softmax over the vocabulary, the residual
    stream, gradients of weights and all sums over micro-batches and ranks are float32 (YaLM-100B's practice). The
    rounded weights are not kept: a copy that several products share would add up its gradient in `dtype`, and the head
    is used once for each piece of the logits.
    """
    if dtype not in COMPUTED_IN:
        return nullcontext()
    return torch.autocast(device.type, dtype=COMPUTED_IN[dtype], cache_enabled=False)


def prepare_products(dtype: Dtype) -> None:
    """Set how float32 matrices are multiplied on CUDA devices, for the whole process: with factors rounded to ten bits
    of mantissa for `tf32`, else as they are."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Numbers nearer to zero than 1.2e-38 are zero in this thread and in those that it starts, until the block ends.
    PyTorch's own threads start at the first arithmetic that they share.

    A processor takes a hundred times as long for a product with such a number, and a trained T5, whose scores are not
    scaled by the heads' width, is full of them: a step of 16 rows took .80 s of which .51 went there.
    """
    were_zero = _denormals_are_zero()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(were_zero)


def _denormals_are_zero() -> bool:
    return sys.float_info.min / 2 == 0.0
