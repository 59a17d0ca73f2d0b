"""How engines compute: compiled and recomputed blocks, precision, devices, dropout seeds, loss scaling.

Blocks take nearly all time and memory, so they alone are compiled and recomputed; parameters keep their names.
"""

import functools
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Any, TypedDict

import blake3
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.config.accelerators import ACCELERATORS
from model.config.fields import Dtype
from model.config.options import LossScaleConfig
from model.config.train import TrainConfig
from model.engines.base import StepResult
from model.errors import Infra, RecipeError
from model.nn.block import Block
from model.nn.vocab_layers import Vocabulary, VocabularyNetwork
from model.objectives.base import Objective, Sums, map_batch

Forward = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""`Block.forward`."""

RECOMPILE_LIMIT = 2**16
"""Graphs of a function after which PyTorch gives up, by default 8, and 256 in all. Never reached: the number of graphs
is limited by the sizes that are compiled."""

AUTOCAST_TYPES: dict[Dtype, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}

AMPERE = (8, 0)
"""Compute capability of the first generation that multiplies bfloat16 and tf32."""


def require_deterministic_kernels() -> None:
    """Have PyTorch refuse operations without a deterministic kernel in this process.

    `torch.use_deterministic_algorithms` does the same and imports the compiler, which takes as long as the rest of
    PyTorch; where blocks are compiled, `wrap_blocks` sets that part of it.
    """
    torch.set_deterministic_debug_mode("error")


@contextmanager
def deterministic_kernels(threads: int) -> Iterator[None]:
    """Compute with so many threads, and by deterministic kernels alone, until the block ends."""
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(threads)
    require_deterministic_kernels()
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_deterministic_debug_mode(before[1])


def wrap_blocks(
    network: VocabularyNetwork, *, compiled: bool, recomputed: bool, compiled_rows: Collection[int] | None = None
) -> None:
    """Replace how the blocks of a network are computed, in place.

    `recomputed`: activation checkpointing; a block keeps only its input (Chen et al. 2016,
    https://arxiv.org/abs/1604.06174), for a third more arithmetic. Dropout draws the same values again. `compiled`:
    torch.compile, one graph for all blocks of a stack and each shape of a batch. Where `compiled_rows` are given,
    batches with other numbers of rows are not compiled, nor is what runs without gradients, such as validation. On CUDA
    devices the sums over logits are compiled for each number of predictions, in a second or two.
    """
    if compiled:
        # Imported here, since it takes as long as the rest of PyTorch.
        import torch._dynamo
        import torch._inductor.config

        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        torch._dynamo.config.accumulated_recompile_limit = RECOMPILE_LIMIT
        # Compile workers would outlive a trainer that is killed.
        torch._inductor.config.compile_threads = 1
        torch._inductor.config.deterministic = torch.are_deterministic_algorithms_enabled()
        network.vocabulary = Vocabulary(gradient_at_once=network.vocabulary.gradient_at_once, fused=True)
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

    def dispatch(x_BTD: Tensor, *rest: object, **named: object) -> tuple[Tensor, tuple[Tensor, ...]]:
        is_step = len(x_BTD) in rows and torch.is_grad_enabled()
        return (compiled if is_step else forward)(x_BTD, *rest, **named)

    return dispatch


def autocast(dtype: Dtype, device: torch.device) -> AbstractContextManager[object]:
    """Multiply matrices and attend in `dtype` in forward passes within the block, and in their backward passes.

    Weights stay float32 and are rounded where they are used; norms, the softmax over the vocabulary, the residual
    stream, gradients of weights and all sums over micro-batches and ranks are float32 (YaLM-100B's practice). Rounded
    weights are not cached: the gradient of a cached copy would be summed in `dtype` over its uses, and the head is used
    for each chunk of logits.
    """
    if dtype not in AUTOCAST_TYPES:
        return nullcontext()
    return torch.autocast(device.type, dtype=AUTOCAST_TYPES[dtype], cache_enabled=False)


class NetworkWithLoss(nn.Module):
    """The network with its loss as one module, for libraries that gather weights where modules are called.

    They look for tensors in inputs and outputs, and know tuples but no dataclasses: call it through `sums_of`.
    """

    def __init__(self, network: nn.Module, objective: Objective, dtype: Dtype) -> None:
        super().__init__()
        self.network = network
        self._objective = objective
        self._dtype: Dtype = dtype

    def forward(
        self, kind: type, first: Tensor, *others: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
        """Return the fields of `Sums` of a batch of this kind, given its fields."""
        with autocast(self._dtype, first.device):
            sums = self._objective.sums(self.network, kind(first, *others))
        return sums.nats, sums.correct, sums.activation_ranges


def sums_of(module: Callable[..., Any], batch: Any, device: torch.device) -> Sums:
    """Return what a `NetworkWithLoss`, perhaps within a library's module, computes of a batch."""
    batch = move_batch(batch, device)
    return Sums(*module(type(batch), *(getattr(batch, field.name) for field in fields(batch))))


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Run a network in evaluation mode, without dropout or gradients, within the block."""
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was_training)


def set_matmul_precision(dtype: Dtype) -> None:
    """Set how CUDA devices multiply float32 matrices, for the whole process: rounded to 10 bits of mantissa for `tf32`,
    else exactly."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Treat numbers below 1.2e-38 as zero in this thread and those that it starts, until the block ends.

    PyTorch's threads start with the first parallel operation. A CPU takes a hundred times as long for a product with a
    denormal number, and a trained T5, whose scores are not scaled by the head size, has many: of a step of 16 rows,
    which took 0.80 s, 0.51 s went there.
    """
    before = sys.float_info.min / 2 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def training_device(config: TrainConfig) -> torch.device:
    """Return the device of this process: the CUDA device numbered LOCAL_RANK, which the launcher sets, by default 0.

    Raises RecipeError where this machine does not have it; Infra where training may go on without it
    (`restarts.fewer_ranks`). Also makes cuBLAS deterministic, which must be configured before it starts.
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
    here, number = config.ranks // config.hosts.count, int(os.environ.get("LOCAL_RANK", "0"))
    if config.restarts.fewer_ranks and number >= found:
        raise Infra(f"CUDA device {number} is lost: PyTorch finds {found}")
    if here > found and not config.restarts.fewer_ranks:
        raise RecipeError(
            f"train.ranks puts {here} ranks on a machine, each with a CUDA device of its own, and this one has {found}."
            f" Set train.ranks = {found * config.hosts.count} or less."
        )
    if config.dtype in ("bfloat16", "tf32") and torch.cuda.get_device_capability(number) < AMPERE:
        raise RecipeError(
            f"train.dtype is {config.dtype}, which {torch.cuda.get_device_name(number)} cannot multiply; devices from"
            f" Ampere on can. Set train.dtype = float16, or float32."
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


_SLOWER_BOARD = re.compile(r"(V100|H100|H200).*(PCIE|NVL)|\bMIG\b")
"""Names of boards with less than their data sheet's peak for SXM, and of parts of a device. An A100 has one peak."""


def peak_flops(train: TrainConfig, device: torch.device) -> float | None:
    """Return the peak FLOP/s of one rank's device in the type of its products; None for a CPU or an unknown device.

    They are the base of MFU (model FLOPs utilization, Chowdhery et al. 2022, PaLM, appendix B).
    A CPU's speed as measured before the first step is no upper bound: other processes use it too, its clock changes,
    and products of other shapes are faster. Utilization relative to such a peak exceeded 100%.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device).upper()
    if _SLOWER_BOARD.search(name):
        return None
    return next((one.flops.get(train.dtype) for one in ACCELERATORS.values() if one.name.upper() in name), None)


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return a batch on the device; the batch itself for the CPU."""
    if device.type == "cpu":
        return batch
    there = map_batch(lambda tensor: tensor.to(device, non_blocking=True), batch)
    if hasattr(batch, "is_token_BT") and bool(batch.is_token_BT.all()):
        # Attention without a mask has faster kernels, and a look at the processor's tensor does not wait.
        there = replace(there, is_token_BT=None)
    return there


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Seed torch's global generator for one step of one rank, so that no generator state is checkpointed.

    Only dropout draws from it, in attention kernels and recomputed blocks too.
    """
    digest = blake3.blake3(f"{seed}\x1fdropout\x1f{step}\x1f{rank}".encode()).digest(length=7)
    torch.manual_seed(int.from_bytes(digest, "little"))


class LossScaleState(TypedDict):
    """What a checkpoint stores of the loss scale."""

    value: float
    clean_steps: int
    """Steps without overflow since it last changed."""


class LossScale:
    """The dynamic loss scale, without which small gradients underflow in float16; 1 for other types.

    Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, section 3.2: doubled after many steps without overflow,
    halved after each overflow. Scales are powers of two, so that dividing gradients by them is exact. The floor, below
    which a run is in trouble, is OPT-175B's.
    """

    def __init__(self, config: TrainConfig, state: LossScaleState | None = None) -> None:
        self._config: LossScaleConfig | None = config.loss_scale if config.dtype == "float16" else None
        self.value = self._config.start if self._config else 1.0
        self._clean_steps = 0
        if state:
            self.value, self._clean_steps = state["value"], state["clean_steps"]

    @property
    def state(self) -> LossScaleState:
        return {"value": self.value, "clean_steps": self._clean_steps}

    def adapt(self, result: StepResult) -> bool:
        """Adapt the scale to a step's result, and return whether the step overflowed.

        An infinite gradient is an overflow while the loss is finite and the scale above its floor; else the step counts
        as non-finite.
        """
        if self._config is None:
            return False
        if result.finite and not result.applied:
            # Not admitted although finite: no matter of the scale.
            return False
        if result.applied:
            self._clean_steps += 1
            if self._clean_steps == self._config.growth_steps:
                self.value, self._clean_steps = self.value * 2.0, 0
            return False
        overflow = math.isfinite(result.loss) and self.value > self._config.floor
        self.value, self._clean_steps = max(self.value / 2.0, self._config.floor), 0
        return overflow
