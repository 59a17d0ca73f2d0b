"""A rank of a real group that meets numbers that are no numbers; prints what the step did to it, as JSON.

Arguments: run.json, rank, rendezvous file, and the case: `nan` (only the last rank computes one) or `infinite` (a loss
that is infinite although its gradient is finite).
"""

import json
import sys
from pathlib import Path

import torch

from model.config.train import read_run
from model.data.loader import CausalBatch
from model.distributed.process_group import join_process_group
from model.distributed.protocol import claim_stdout
from model.engines import make_engine
from model.nn.factory import Network, make_shapes
from model.nn.gpt import GPT
from model.optim.schedules import StepSchedule
from model.processes import exit_now

RARE = 47
"""A token that is predicted once and never read."""


def main(file: str, rank: int, rendezvous: str, case: str) -> None:
    out = claim_stdout()
    torch.set_num_threads(1)
    run = read_run(Path(file))
    tokens = torch.randint(4, RARE, (4, 17), generator=torch.Generator().manual_seed(6))
    starts = torch.zeros(4, dtype=torch.int64)
    with join_process_group(rank, run.train.ranks, Path(rendezvous)) as ranks:
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
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
    exit_now(0)
