"""Engines that compute a training step: plain PyTorch, portable, tensor and pipeline parallel, FSDP, and DeepSpeed's
ZeRO."""

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING, Any

from model.config.train import TrainConfig, TrainerRun
from model.errors import RecipeError

if TYPE_CHECKING:
    from model.distributed.process_group import Ranks
    from model.engines.base import Engine, Parts
    from model.nn.factory import Network


def check_engine(config: TrainConfig) -> None:
    """Raise RecipeError where the recipe needs a compiler that is not installed; loads no PyTorch."""
    compiler = os.environ.get("CXX", "g++")
    if config.compile and shutil.which(compiler) is None:
        raise RecipeError(
            f"train.compile is on, and there is no C++ compiler `{compiler}`. Install g++, name another in the"
            f" environment variable CXX, or set train.compile = false: blocks are then computed without it."
        )
    if config.compile and config.device == "cuda" and importlib.util.find_spec("triton") is None:
        from model.engines.runtime import training_device

        training_device(config)  # Without a device, that is what to say.
        raise RecipeError(
            "train.compile is on for CUDA devices, and Triton, which compiles for them, is not installed. Install the"
            " PyTorch that is built for CUDA, which brings it, or leave the key out."
        )


def make_engine(run: TrainerRun, network: "Network", ranks: "Ranks", weights: "Parts | None" = None) -> "Engine":
    """Return the configured engine around a network whose weights are the same on every rank.

    Where ranks divide weights it is on the meta device, and `weights` returns parts of its weights; the run's initial
    ones by default.
    """
    from model.engines.runtime import set_matmul_precision, wrap_blocks
    from model.optim.schedules import micro_batch_row_counts

    check_engine(run.train)
    set_matmul_precision(run.train.dtype)
    wrap_blocks(
        network,
        compiled=run.train.compile,
        recomputed=run.train.recompute,
        # Few shapes: compiling a graph takes many seconds, and partial micro-batches come in any number of rows.
        compiled_rows=micro_batch_row_counts(run.train, run.model.context),
    )
    engine = engine_class(run.train)
    return engine(run, network, ranks, weights) if run.train.divides_weights else engine(run, network, ranks)


def engine_class(config: TrainConfig) -> "type[Any]":
    """Import the configured engine and what it imports at its first step; return its class."""
    if config.engine == "deepspeed":
        # Otherwise DeepSpeed looks for a device when it is imported, and warns.
        os.environ["DS_ACCELERATOR"] = config.device
        from model.engines.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine
    if config.divides_weights:
        from model.engines.divided import DividedEngine

        return DividedEngine
    if config.numerics == "portable":
        from model.engines.portable.engine import PortableEngine

        return PortableEngine
    from model.engines.native import NativeEngine

    return NativeEngine
