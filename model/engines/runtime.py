"""Other ways to compute the same blocks: compiled, and made again in the backward pass instead of kept.

Blocks are where nearly all time and memory go. Parameters keep their names, and what is outside of blocks stays as it
is.

The type in which matrices are multiplied, beside weights, gradients and sums that stay in float32.

Where tensors are computed: the processor, or a CUDA device for each rank. No CUDA device was at hand to test on.

Which values dropout sets to zero: a function of (seed, step, rank), so that no generator's state is to be saved.

Dynamic loss scaling: float16 cannot hold small gradients, so the loss is multiplied before the backward pass.

Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, section 3.2. Scales are powers of two, so that to divide
gradients by them again loses no bit. The lower limit, below which a run is in trouble, is OPT-175B's.
"""

import functools
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Any

import blake3
import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.config.fields import Dtype
from model.config.options import LossScaleConfig
from model.config.train import TrainConfig
from model.engines.base import StepResult
from model.errors import RecipeError
from model.nn.block import Block

Forward = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""`Block.forward`."""

NEVER_REACHED = 2**16
"""Graphs at which PyTorch would give up on a function, and end the run: by default 8, and 256 in all. How many there
are is decided here, by the sizes that are compiled."""


def wrap_blocks(
    network: nn.Module, *, compiled: bool, recomputed: bool, compiled_rows: Collection[int] | None = None
) -> None:
    """Replace how the blocks of a network are computed, in place.

    `recomputed`: a block keeps its input alone (Chen et al. 2016, https://arxiv.org/abs/1604.06174), a third more
    arithmetic for the memory of the inner results; dropout draws the same once more, since the generator is set back.
    `compiled`: by torch.compile, one graph for all blocks of a stack and for each shape of a batch. Where
    `compiled_rows` are given, batches of other numbers of rows are computed as they are written.
    """
    if compiled:
        torch._dynamo.config.recompile_limit = NEVER_REACHED
        torch._dynamo.config.accumulated_recompile_limit = NEVER_REACHED
        # Processes that compile beside the trainer would outlive one that is killed.
        torch._inductor.config.compile_threads = 1
    for block in network.modules():
        if isinstance(block, Block):
            forward = block.forward
            if compiled:
                forward = _compiled(forward, compiled_rows)
            if recomputed:
                forward = functools.partial(checkpoint, forward, use_reentrant=False)
            block.forward = forward


def _compiled(forward: Forward, rows: Collection[int] | None) -> Forward:
    compiled = torch.compile(forward, dynamic=False, fullgraph=True)
    if rows is None:
        return compiled

    def chosen(x_BTD: Tensor, *rest: object, **named: object) -> tuple[Tensor, tuple[Tensor, ...]]:
        return (compiled if len(x_BTD) in rows else forward)(x_BTD, *rest, **named)

    return chosen


COMPUTED_IN: dict[Dtype, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types other than that of the weights."""


def autocast(dtype: Dtype, device: torch.device) -> AbstractContextManager[object]:
    """Within the block forward passes multiply matrices and attend in `dtype`; their backward passes do so too.

    Weights stay float32 and are rounded where they are used; norms, the softmax over the vocabulary, the residual
    stream, gradients of weights and all sums over micro-batches and ranks are float32 (YaLM-100B's practice). The
    rounded weights are not kept: a copy that several products share would add up its gradient in `dtype`, and the head
    is used once for each piece of the logits.
    """
    if dtype not in COMPUTED_IN:
        return nullcontext()
    return torch.autocast(device.type, dtype=COMPUTED_IN[dtype], cache_enabled=False)


def set_matmul_precision(dtype: Dtype) -> None:
    """Set how float32 matrices are multiplied on CUDA devices, for the whole process: with factors rounded to ten bits
    of mantissa for `tf32`, else as they are."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")


@contextmanager
def flush_denormals() -> Iterator[None]:
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


AMPERE = (8, 0)
"""Compute capability of the first generation that multiplies bfloat16 and tf32."""


def training_device(config: TrainConfig, rank: int) -> torch.device:
    """The device of a rank; RecipeError where this machine has none as is asked for.

    Makes CUDA's sums repeat: cuBLAS does so with a workspace of its own, which it must be told before it starts.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        build = "was built without CUDA" if torch.version.cuda is None else "finds no device"
        raise RecipeError(
            f"train.device is cuda, and PyTorch {torch.__version__} {build}. Set train.device = cpu, or run where"
            f" `python -c 'import torch; print(torch.cuda.is_available())'` prints True."
        )
    found = torch.cuda.device_count()
    here = config.ranks // config.hosts.count
    rank %= here
    if here > found:
        raise RecipeError(
            f"train.ranks puts {here} ranks on a machine, each with a CUDA device of its own, and this one has {found}."
            f" Set train.ranks = {found * config.hosts.count} or less."
        )
    if config.dtype in ("bfloat16", "tf32") and torch.cuda.get_device_capability(rank) < AMPERE:
        raise RecipeError(
            f"train.dtype is {config.dtype}, which {torch.cuda.get_device_name(rank)} cannot multiply; devices from"
            f" Ampere on can. Set train.dtype = float16, or float32."
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def move_batch(batch: Any, device: torch.device) -> Any:
    """A batch on the device; itself on a processor."""
    if device.type == "cpu":
        return batch
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Set torch's own generator for one step of one rank.

    It is the one that attention's kernels and recomputed activations draw from; nothing else in a trainer does.
    """
    digest = blake3.blake3(f"{seed}\x1fdropout\x1f{step}\x1f{rank}".encode()).digest(length=7)
    torch.manual_seed(int.from_bytes(digest, "little"))


class LossScale:
    """Doubled after many steps without overflow, halved by each. 1 for ever in types other than float16."""

    def __init__(self, config: TrainConfig, state: dict[str, float] | None = None) -> None:
        self._config: LossScaleConfig | None = config.loss_scale if config.dtype == "float16" else None
        self.value = self._config.start if self._config else 1.0
        self._clean_steps = 0
        if state:
            self.value, self._clean_steps = state["value"], int(state["clean_steps"])

    @property
    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"value": self.value, "clean_steps": self._clean_steps}

    def adapt(self, done: StepResult) -> bool:
        """Take in what became of a step; whether it was an overflow, which the next, lower scale may not have.

        An infinite gradient is one while the loss is finite and the scale above its floor; all else is for the rule on
        non-finite steps.
        """
        if self._config is None:
            return False
        if done.finite and not done.applied:
            # Left out for its numbers, which were some: the scale has no part in it.
            return False
        if done.applied:
            self._clean_steps += 1
            if self._clean_steps == self._config.growth_steps:
                self.value, self._clean_steps = self.value * 2.0, 0
            return False
        overflow = math.isfinite(done.loss) and self.value > self._config.floor
        self.value, self._clean_steps = max(self.value / 2.0, self._config.floor), 0
        return overflow
