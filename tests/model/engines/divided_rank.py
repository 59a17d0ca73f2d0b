"""Ranks that train in float64 over the processor; the first writes losses, norms of gradients and a digest of weights.

Arguments: steps, then the files of runs, NAME.json, of each of which it writes NAME.found. Ranks train runs of their
number one after another: what PyTorch finds out of a division of tensors, it finds out once.
"""

import functools
import hashlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config.train import TrainerRun, read_run
from model.data.dataset import SequenceReader
from model.data.row_format import NO_LOSS
from model.distributed.process_group import Ranks, join_process_group
from model.engines import make_engine
from model.engines.divided import DividedEngine
from model.engines.native import NativeEngine
from model.engines.runtime import seed_dropout
from model.engines.tensor_parallel import ShardedVocabulary
from model.nn.dropout import drop_by_row
from model.nn.factory import make_network, make_shapes
from model.nn.vocab_layers import Vocabulary
from model.objectives import make_objective
from model.objectives.base import RankBatch, Sums, row_count
from model.optim.schedules import StepSchedule
from tests.model.forked_ranks import run_ranks

torch.Tensor.float = torch.Tensor.double  # What is float32 in training.


class DoubleVocabulary(Vocabulary):
    """The loss in float64."""

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(logits_NV, targets_N, ignore_index=NO_LOSS, reduction="sum")


def main(steps: int, files: list[Path]) -> None:
    runs = sorted(((file, read_run(file)) for file in files), key=lambda one: one[1].train.ranks)
    for size, alike in itertools.groupby(runs, lambda one: one[1].train.ranks):
        run_ranks(size, functools.partial(train_all, steps, list(alike), size))


def train_all(steps: int, runs: list[tuple[Path, TrainerRun]], size: int, rank: int) -> None:
    with join_process_group(rank, size, runs[0][0].with_suffix(".store")) as ranks:
        for file, run in runs:
            # Blocks of another run that were compiled would count to the limit of graphs.
            torch._dynamo.reset()
            found = train(run, steps, ranks)
            if ranks.is_first:
                file.with_suffix(".found").write_text(json.dumps(found))


def train(run: TrainerRun, steps: int, ranks: Ranks) -> dict[str, Any]:
    is_divided = run.train.divides_weights
    network = make_shapes(run.model) if is_divided else make_network(run.model).initialise(run.train.seed)
    engine = make_engine(run, network.double(), ranks)
    assert isinstance(engine, NativeEngine)
    if not isinstance(network.vocabulary, ShardedVocabulary):
        # Not before: where blocks are compiled, the engine makes a vocabulary.
        network.vocabulary = DoubleVocabulary(gradient_at_once=False)
    shapes = {name: parameter.shape for name, parameter in make_shapes(run.model).named_parameters()}
    if not is_divided:
        drop_as_ranks_do(engine)
    first = hashlib.sha256()
    for whole in gathered(engine.weights(), engine.begins(), shapes, ranks):
        first.update(whole.numpy().tobytes())
    norms: list[list[float]] = []
    measure = engine._gradient_norm

    def measured() -> Tensor:
        norms.append(ranks.sum_(squares(engine, shapes)).sqrt().tolist())
        return measure()

    engine._gradient_norm = measured
    loader = make_objective(run).loader(SequenceReader(run.sequences, run.order, run.model.vocab_size))
    rows = run.train.batch_rows
    # AdamW divides gradients whose exact value is 0, as of the biases of keys, by their own size: at a rate of .003
    # the rounding errors of two runs grow to 5e-10 within 50 steps. At .0003 the norms of one process with other
    # micro-batches differ by 4e-13, and those of tensor ranks, whose activations differ too, by 1.3e-12.
    schedule = StepSchedule(0.0001, max_norm=1.0)
    losses = []
    for step in range(steps):
        seed_dropout(run.train.seed, step, 0)
        done = engine.step(loader.batch(step * rows, (step + 1) * rows), schedule)
        assert done.applied
        losses.append(done.loss)
    held_out = engine.held_out(loader.batch(0, 3))[0]
    return {"losses": losses, "norms": norms, "first": first.hexdigest(), "held_out": held_out}


def drop_as_ranks_do(engine: NativeEngine) -> None:
    """Drop values by row, not by PyTorch's generator."""
    share, sums, rows = engine._share, engine._sums, itertools.count()

    def shared(batch: Any, size: int) -> RankBatch:
        nonlocal rows
        rows = itertools.count()
        return share(batch, size)

    def summed(micro_batch: Any) -> Sums:
        numbers = [next(rows) for _ in range(row_count(micro_batch))]
        drop_by_row(engine.network, numbers[0], len(numbers), torch.device("cpu"))
        return sums(micro_batch)

    engine._share, engine._sums = shared, summed


def gathered(
    parts: dict[str, Tensor], begins: dict[str, tuple[int, ...]], shapes: dict[str, torch.Size], ranks: Ranks
) -> list[Tensor]:
    """Whole weights from the ranks' parts."""
    found = []
    for name, shape in shapes.items():
        whole = torch.zeros(shape, dtype=torch.float64)
        if name in parts:
            sides = zip(begins.get(name, (0,) * len(shape)), parts[name].shape, strict=True)
            whole[tuple(slice(begin, begin + length) for begin, length in sides)] = parts[name]
        found.append(ranks.sum_(whole))
    return found


def squares(engine: NativeEngine, shapes: dict[str, torch.Size]) -> Tensor:
    """The sum of squares of each weight's gradient that this rank adds to that of all."""
    named = dict(engine.network.named_parameters())
    found = torch.zeros(len(shapes), dtype=torch.float64)
    for index, name in enumerate(shapes):
        gradient = named[name].grad if name in named else None
        if name in named:
            assert gradient is not None, name
        if gradient is not None and isinstance(engine, DividedEngine):
            gradient = gradient.to_local() if hasattr(gradient, "to_local") else gradient  # type: ignore[operator]
            gradient = gradient if engine._place.is_writer(name, engine._model) else None
        if gradient is not None:
            found[index] = gradient.square().sum()
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(file) for file in sys.argv[2:]])
