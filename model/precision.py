"""The type in which matrices are multiplied, beside weights, gradients and sums that stay in float32."""

from contextlib import AbstractContextManager, nullcontext

import torch

from model.config import Dtype
from model.errors import RecipeError

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


def prepare_products(dtype: Dtype, device: torch.device) -> None:
    """Set how float32 matrices are multiplied, for the whole process: with factors rounded to ten bits for `tf32`.

    Raises RecipeError for tf32 on a device that has no such products. No CUDA device was at hand to test them on.
    """
    if dtype == "tf32" and device.type != "cuda":
        raise RecipeError(
            f"train.dtype is tf32, and training runs on a device of type {device.type}: only CUDA devices, from Ampere"
            f" on, have such products. Set train.dtype = bfloat16, which is faster still, or float32."
        )
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
