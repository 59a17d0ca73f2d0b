"""Check that a learning rate transfers to wider networks: `python benchmarks/coordinate_check.py [--base 64]
[--widths 64,128]`.

Yang et al. (2022), appendix D.1: networks of several widths take a few steps on the same rows, and the typical size of
their activations is measured. In the maximal update parametrisation it does not depend on the width; in the standard
one the changes grow with it, which is why the best rate falls. The table shows the exponent e of size ~ width^e, after
the steps, for the change of the residual stream after the last block and of the logits.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.loader import CausalBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines.native import NativeEngine
from model.nn.gpt import GPT
from model.optim.schedules import StepSchedule

VOCABULARY, CONTEXT, ROWS, HEAD_SIZE = 256, 32, 8, 16

STEADY = 0.15
"""Exponents up to this count as zero: the spread of a few hundred values of one seed."""


@dataclass(frozen=True)
class Sizes:
    """Root mean squares of the changes since the start."""

    width: int
    stream: float
    logits: float


def measure(width: int, base: int | None, rate: float, steps: int, seed: int) -> Sizes:
    """Train a network of the width for some steps and return the sizes of its changes.

    `base` is the width that the rate is for; None selects the standard parametrisation.
    """
    config = GPTConfig(
        vocab_size=VOCABULARY,
        context=CONTEXT,
        layers=2,
        heads=width // HEAD_SIZE,
        width=width,
        mup_base_width=base,
    )
    train = TrainConfig.model_validate({"batch_rows": ROWS, "micro_batch_rows": ROWS, "threads": 1})
    run = TrainerRun(
        sequences=(), order=Path("order"), out=Path("out"), pad=0, tokenizer_digest="none", model=config, train=train
    )
    network = GPT(config).initialise(seed)
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCABULARY, (ROWS, CONTEXT + 1), generator=draw)
    before = _computed(network, tokens)
    engine = NativeEngine(run, network, SINGLE_PROCESS)
    for _ in range(steps):
        engine.step(CausalBatch(tokens, torch.zeros(ROWS, dtype=torch.int64)), StepSchedule(rate))
    stream, logits = (
        float((now - then).square().mean().sqrt()) for now, then in zip(_computed(network, tokens), before, strict=True)
    )
    return Sizes(width, stream, logits)


def _computed(network: GPT, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the residual stream after the last block, normalised as for the head but not scaled, and the logits."""
    with torch.no_grad():
        hidden = network.hidden(tokens[:, :-1])
        return hidden * network.config.width_multiplier, network.logits(hidden)


def exponents(sizes: Sequence[Sizes]) -> tuple[float, float]:
    """Return the exponents e of size ~ width^e, of the stream and of the logits, by least squares of the logarithms."""
    widths = np.log([one.width for one in sizes])
    found = [np.polyfit(widths, np.log([getattr(one, name) for one in sizes]), 1)[0] for name in ("stream", "logits")]
    return float(found[0]), float(found[1])


def main(arguments: Sequence[str]) -> int:
    """Print the table; return 1 where sizes depend on the width in the maximal update parametrisation."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=int, default=64, help="width that the rate is for")
    parser.add_argument("--widths", default="64,128,256,512")
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    widths = [int(width) for width in chosen.widths.split(",")]
    torch.set_num_threads(1)
    steady = True
    print(f"{'':>10} {'width':>6} {'stream':>9} {'logits':>9}")
    for name, base in (("standard", None), ("mup", chosen.base)):
        sizes = [measure(width, base, chosen.rate, chosen.steps, chosen.seed) for width in widths]
        for one in sizes:
            print(f"{name:>10} {one.width:>6} {one.stream:>9.4f} {one.logits:>9.4f}")
        found = exponents(sizes)
        print(f"{name:>10} {'grows':>6} {found[0]:>+9.2f} {found[1]:>+9.2f}")
        if base is not None:
            steady = max(found) <= STEADY
    return 0 if steady else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
