"""A rank of a real group that meets numbers that are no numbers, and writes what the step did to it, as JSON."""

import json
from pathlib import Path

import torch

from model.config.train import TrainerRun
from model.data.loader import CausalBatch
from model.distributed.process_group import join_process_group
from model.engines import make_engine
from model.nn.factory import Network, make_shapes
from model.nn.gpt import GPT
from model.optim.schedules import StepSchedule

RARE = 47
"""A token that is predicted once and never read."""


def meet_faults(run: TrainerRun, folder: Path, case: str, rank: int) -> None:
    """Make the steps of a case in one of the ranks, which meet in the folder and write `rank-RANK.json` there.

    The case is `nan` (only the last rank computes one) or `infinite` (a loss that is infinite although its gradient is
    finite).
    """
    tokens = torch.randint(4, RARE, (4, 17), generator=torch.Generator().manual_seed(6))
    starts = torch.zeros(4, dtype=torch.int64)
    with join_process_group(rank, run.train.ranks, folder / "rendezvous") as ranks:
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
        facts = {"applied": applied, "loss": str(skipped.loss), "kept": kept}
        (folder / f"rank-{rank}.json").write_text(json.dumps(facts))


def copies(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)
