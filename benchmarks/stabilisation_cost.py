"""What a step of training costs more by each of what keeps it stable, and by all of it: a GPT on this machine.

    python benchmarks/stabilisation_cost.py [--width 512] [--layers 8] [--dtype float32] [--steps 40]

Activation ranges, the guard's judgement, a norm behind the embedding, and (in bfloat16) residual stream, norms and the
softmax over the vocabulary in float32. A step of each variant is made beside a step of the bare one on the same rows,
and the figure is the median of the pairs' ratios of processor time: whatever else the machine does slows both. 95%
intervals are of that median, by order statistics.
"""

import contextlib
import statistics
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.loader import CausalBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines.base import Engine
from model.engines.native import NativeEngine
from model.guard.guard import Guard
from model.nn.factory import make_network, parameter_count
from model.nn.gpt import GPT
from model.optim.schedules import StepSchedule

PIECES = 8192
WARM_UP = 4
RANGES, GUARD, NORM, ISLANDS = "activation ranges", "guard", "norm behind the embedding", "float32 islands"


@dataclass
class Variant:
    """A network with some of what keeps it stable; its engine and its guard."""

    label: str
    parts: frozenset[str]
    run: TrainerRun
    engine: Engine
    guard: Guard
    made: int = 0

    def step(self, batch: CausalBatch) -> float:
        """Make a step; return its seconds of processor time, all threads together."""
        with contextlib.ExitStack() as without:
            if RANGES not in self.parts:
                without.enter_context(_nothing_read())
            if self.run.train.dtype == "bfloat16" and ISLANDS not in self.parts:
                without.enter_context(_narrow())
            began = time.process_time()
            if GUARD in self.parts:
                done = self.engine.step(batch, StepSchedule(1e-4), 1.0, self.guard.limits())
                self.guard.step_done(self.made, done, overflow=False, scale=1.0)
            else:
                self.engine.step(batch, StepSchedule(1e-4))
            self.made += 1
            return time.process_time() - began


@contextlib.contextmanager
def _nothing_read() -> Iterator[None]:
    """Read no activation ranges within this block."""
    nothing = torch.zeros(2)
    places = ("model.nn.gpt.activation_range", "model.objectives.cross_entropy.activation_range")
    with contextlib.ExitStack() as patches:
        for place in places:
            patches.enter_context(mock.patch(place, return_value=nothing))
        patches.enter_context(mock.patch("model.nn.activation_stats.ScoreRange.forward", return_value=nothing))
        yield


@contextlib.contextmanager
def _narrow() -> Iterator[None]:
    """Compute the residual stream, and with it every norm, and the softmax in bfloat16 within this block."""
    enter, log_softmax = GPT.enter, torch.log_softmax

    def narrow(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return log_softmax(x, dim)

    with (
        mock.patch.object(GPT, "enter", lambda self, *arguments: enter(self, *arguments).bfloat16()),
        mock.patch.object(torch, "log_softmax", narrow),
    ):
        yield


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    parts = [RANGES, GUARD, NORM, *([ISLANDS] if chosen.dtype == "bfloat16" else [])]
    wanted = {"bare": frozenset[str](), **{part: frozenset({part}) for part in parts}, "all of it": frozenset(parts)}
    bare, *others = [
        _variant(label, found, chosen.width, chosen.layers, chosen.context, chosen.rows, chosen.dtype)
        for label, found in wanted.items()
    ]
    draw = torch.Generator().manual_seed(1)
    ratios: dict[str, list[float]] = {other.label: [] for other in others}
    seconds: list[float] = []
    for turn in range(WARM_UP + chosen.steps):
        tokens = torch.randint(4, PIECES, (chosen.rows, chosen.context + 1), generator=draw)
        batch = CausalBatch(tokens, torch.zeros(chosen.rows, dtype=torch.int64))
        for place, other in enumerate(others):
            # The second finds the caches warm.
            first, second = (bare, other) if (turn + place) % 2 else (other, bare)
            took = {one.label: one.step(batch) for one in (first, second)}
            if turn >= WARM_UP:
                ratios[other.label].append(took[other.label] / took[bare.label])
                seconds.append(took[bare.label])
    _tell(bare, seconds, ratios)


def _variant(
    label: str, parts: frozenset[str], width: int, layers: int, context: int, rows: int, dtype: str
) -> Variant:
    config = GPTConfig(
        vocab_size=PIECES,
        context=context,
        layers=layers,
        heads=width // 64,
        width=width,
        embedding_norm=NORM in parts,
    )
    train = TrainConfig.model_validate({"batch_rows": rows, "micro_batch_rows": rows, "dtype": dtype})
    run = TrainerRun(
        sequences=(), order=Path("order"), out=Path("out"), pad=3, tokenizer_digest="none", model=config, train=train
    )
    network = make_network(config).initialise(1)
    return Variant(label, parts, run, NativeEngine(run, network, SINGLE_PROCESS), Guard(run, ()))


def _tell(bare: Variant, seconds: list[float], ratios: dict[str, list[float]]) -> None:
    config = bare.run.model
    table = Table(
        title=f"{parameter_count(config) / 1e6:.1f}M parameters, width {config.width}, {bare.run.train.dtype};"
        f" a bare step takes {statistics.median(seconds):.3f} s of processor time"
    )
    for column in ("with", "costs more", "95% interval"):
        table.add_column(column, justify="left" if column == "with" else "right")
    for label, found in ratios.items():
        ordered = sorted(found)
        # Ranks between which the median lies in 95 of 100 samples, by the normal form of the binomial.
        half = 0.98 * len(ordered) ** 0.5
        low = ordered[max(0, int(len(ordered) / 2 - half))]
        high = ordered[min(len(ordered) - 1, int(len(ordered) / 2 + half))]
        table.add_row(label, f"{statistics.median(found) - 1:+.2%}", f"{low - 1:+.2%} to {high - 1:+.2%}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
