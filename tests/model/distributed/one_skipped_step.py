"""Ranks of a real group that meet numbers that are no numbers; each prints what the step did to it, as a line of JSON.

Arguments: run.json, rendezvous file, and the case: `nan` (only the last rank computes one) or `infinite` (a loss
that is infinite although its gradient is finite).
"""

import functools
import json
import sys
from pathlib import Path
from typing import TextIO

import torch

from model.config.train import TrainerRun, read_run
from model.data.loader import CausalBatch
from model.distributed.process_group import join_process_group
from model.distributed.protocol import claim_stdout
from model.engines import make_engine
from model.nn.factory import Network, make_shapes
from model.nn.gpt import GPT
from model.optim.schedules import StepSchedule
from tests.model.forked_ranks import run_ranks

RARE = 47
"""A token that is predicted once and never read."""


def main(file: Path, rendezvous: Path, case: str) -> None:
    out = claim_stdout()
    run = read_run(file)
    if run.train.engine == "deepspeed":
        import model.engines.deepspeed  # noqa: F401 - Each rank would import it.
    run_ranks(run.train.ranks, functools.partial(meet, run, rendezvous, case, out))


def meet(run: TrainerRun, rendezvous: Path, case: str, out: TextIO, rank: int) -> None:
    tokens = torch.randint(4, RARE, (4, 17), generator=torch.Generator().manual_seed(6))
    starts = torch.zeros(4, dtype=torch.int64)
    with join_process_group(rank, run.train.ranks, rendezvous) as ranks:
        network: Network = GPT(run.model).initialise(1)
        if case == "infinite":
            # Every hidden vector is (6e17, ...); its product with this row of the head is beyond float32, and both are
            # small enough for the squares of their gradients.
            with torch.no_grad():
                network.final_norm.weight.zero_()
                network.final_norm.bias.fill_(6e17)
                network.embedding.weight[RARE] = -4e19
            tokens[3, 16] = RARE
        if run.train.divides_weights:
            whole, network = dict(network.named_parameters()), make_shapes(run.model)
            engine = make_engine(run, network, ranks, lambda name, box: whole[name][box])
        else:
            engine = make_engine(run, network, ranks)
        applied = [] if case == "infinite" else [engine.step(CausalBatch(tokens, starts), StepSchedule(0.01)).applied]
        weights, moments = copies(engine.weights()), copies(engine.optimizer_state())
        fault = network.final_norm.register_forward_hook(lambda module, inputs, output: output * torch.nan)
        if case == "infinite" or rank != ranks.size - 1:
            fault.remove()
        skipped = engine.step(CausalBatch(tokens, starts), StepSchedule(0.01))
        kept = same(engine.weights(), weights) and same(engine.optimizer_state(), moments)
        fault.remove()
        if case == "nan":
            applied += [skipped.applied, engine.step(CausalBatch(tokens, starts), StepSchedule(0.01)).applied]
        else:
            applied += [skipped.applied]
        out.write(json.dumps({"applied": applied, "loss": str(skipped.loss), "kept": kept}) + "\n")
        out.flush()


def copies(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
