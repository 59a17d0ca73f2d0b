"""A rank that trains in float64 over the processor; the first one prints losses, gradient norms and first weights.

Arguments: run.json, rank, rendezvous file, number of ranks, steps. One rank runs the native engine without FSDP where
the run's engine is native.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from model.config.train import read_run
from model.data.dataset import SequenceReader
from model.data.row_format import NO_LOSS
from model.distributed.process_group import join_process_group
from model.distributed.protocol import claim_stdout
from model.engines import make_engine
from model.nn.factory import make_network, make_shapes
from model.nn.vocab_layers import WholeVocabulary
from model.objectives import make_objective
from model.optim.schedules import StepSchedule
from model.processes import exit_now

torch.Tensor.float = torch.Tensor.double  # What is float32 in training.


class DoubleVocabulary(WholeVocabulary):
    """The loss in float64."""

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(logits_NV, targets_N, ignore_index=NO_LOSS, reduction="sum")


def main(file: str, rank: int, rendezvous: str, size: int, steps: int) -> None:
    out = claim_stdout()
    torch.set_num_threads(1)
    run = read_run(Path(file))
    with join_process_group(rank, size, Path(rendezvous)) as ranks:
        is_native = run.train.engine == "native"
        network = make_network(run.model).initialise(run.train.seed) if is_native else make_shapes(run.model)
        network.vocabulary = DoubleVocabulary(gradient_at_once=False)
        engine = make_engine(run, network.double(), ranks)
        first = hashlib.sha256()
        for parameter in network.parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            first.update(whole.detach().numpy().tobytes())
        norms: list[list[float]] = []
        measure = engine._gradient_norm  # type: ignore[attr-defined]

        def measured() -> float:
            gradients = [parameter.grad for parameter in network.parameters()]
            own = [g.to_local() if isinstance(g, DTensor) else g for g in gradients if g is not None]
            assert len(own) == len(gradients)
            squares = torch.stack([one.square().sum() for one in own])
            norms.append(ranks.sum_(squares).sqrt().tolist())
            return measure()

        engine._gradient_norm = measured  # type: ignore[attr-defined]
        loader = make_objective(run).loader(SequenceReader(run.sequences, run.order, run.model.vocab_size))
        rows = run.train.batch_rows
        # AdamW divides gradients whose exact value is 0, as of the biases of keys, by their own size: at a rate of .003
        # the rounding errors of two runs grow to 5e-10 within 50 steps.
        schedule = StepSchedule(0.0003, max_norm=1.0)
        losses = []
        for step in range(steps):
            done = engine.step(loader.batch(step * rows, (step + 1) * rows), schedule)
            assert done.applied
            losses.append(done.loss)
        if ranks.is_first:
            results = {"losses": losses, "norms": norms, "first": first.hexdigest()}
            results["names"] = [name for name, _ in network.named_parameters()]
            out.write(json.dumps(results) + "\n")
            out.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    exit_now(0)
