"""What makes a healthy run diverge, done to its engine from outside, and to its first attempt alone."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from model.checkpoint.checkpoint import checkpoint_steps
from model.checkpoint.run_folder import CHECKPOINTS
from model.config.train import TrainerRun
from model.distributed.process_group import Ranks
from model.engines import make_engine
from model.engines.base import Engine
from model.guard.decisions import read_decisions
from model.nn.factory import Network
from model.optim.schedules import StepSchedule

LR_FACTOR, LR_STEPS = 30.0, 50
POISONED_STEPS = 200
NAN_STEPS = 6
OVERFLOW_STEPS = 40
TOP_EXPONENT_BIT = 30
"""Of a float32: to flip it multiplies a weight below 2 by 2^128. The three bits below it are ones in a weight of usual
size, and a flip makes one weight of thousands small, which costs a run nothing that can be measured."""


@dataclasses.dataclass(frozen=True)
class Provocation:
    """One of those of `prove.py`, from step `begin` on; `seed` decides what is left open."""

    kind: str
    begin: int
    seed: int


class Provoked:
    """An engine to which it happens."""

    def __init__(self, engine: Engine, provocation: Provocation, first: int) -> None:
        self._engine: Any = engine
        self._provocation = provocation
        self._step = first
        self._random = torch.Generator().manual_seed(provocation.seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def begin(self, batch: Any, pace: StepSchedule, loss_scale: float = 1.0) -> None:
        """Begin a step as the engine does, with what the provocation does to it."""
        since, kind = self._step - self._provocation.begin, self._provocation.kind
        self._step += 1
        weight = self._engine.network.blocks[0].mlp_in.weight
        if kind == "learning rate" and 0 <= since < LR_STEPS:
            pace = dataclasses.replace(pace, lr=pace.lr * LR_FACTOR)
        if kind == "poisoned batches" and 0 <= since < POISONED_STEPS:
            noise = torch.randint(0, 256, batch.tokens_BL.shape, generator=self._random)
            batch = dataclasses.replace(batch, tokens_BL=noise)
        if kind == "flipped bit" and since == 0:
            self._flip(weight)
        broken = (kind == "NaN gradient" and 0 <= since < NAN_STEPS) or (
            kind == "overflow burst" and 0 <= since < OVERFLOW_STEPS
        )
        value = torch.nan if kind == "NaN gradient" else torch.inf
        hook = weight.register_hook(lambda gradient: torch.full_like(gradient, value)) if broken else None
        self._engine.begin(batch, pace, loss_scale)
        if hook is not None:
            hook.remove()

    def _flip(self, weight: torch.Tensor) -> None:
        place = int(torch.randint(0, weight.numel(), (), generator=self._random))
        with torch.no_grad():
            bits = weight.view(-1).view(torch.int32)
            bits[place] ^= 1 << TOP_EXPONENT_BIT


def provoking(provocation: Provocation | None) -> Callable[[TrainerRun, Network, Ranks], Engine]:
    """Return a `make_engine` that provokes in the first attempt of a run."""

    def make(run: TrainerRun, network: Network, ranks: Ranks) -> Any:
        engine = make_engine(run, network, ranks)
        if provocation is None or read_decisions(run.out):
            return engine
        return Provoked(engine, provocation, max(checkpoint_steps(run.out / CHECKPOINTS), default=0))

    return make
