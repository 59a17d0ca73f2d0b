"""A rank of a real group that meets numbers that are no numbers; prints what the step did to it, as JSON.

Arguments: run.json, rank, rendezvous file, and the case: `nan` (only the last rank computes one) or `infinite` (a loss
that is infinite although its gradient is finite).
"""

import json
import sys
from pathlib import Path

import torch

from model.engines import make_engine
from model.link import claim_stdout
from model.ranks import joined
from model.train import leave, read_run
from model.transformer import GPT

RARE = 47
"""A token that is predicted once and never read."""


def main(file: str, rank: int, rendezvous: str, case: str) -> None:
    out = claim_stdout()
    torch.set_num_threads(1)
    run = read_run(Path(file))
    tokens = torch.randint(4, RARE, (4, 17), generator=torch.Generator().manual_seed(6))
    starts = torch.zeros(4, dtype=torch.int64)
    with joined(rank, run.train.ranks, Path(rendezvous)) as ranks:
        network = GPT(run.model).initialise(1)
        if case == "infinite":
            # Every hidden vector is (6e17, ...); its product with this row of the head is beyond float32, and both are
            # small enough for the squares of their gradients.
            with torch.no_grad():
                network.final_norm.weight.zero_()
                network.final_norm.bias.fill_(6e17)
                network.embedding.weight[RARE] = -4e19
            tokens[3, 16] = RARE
        engine = make_engine(run, network, ranks)
        applied = [] if case == "infinite" else [engine.step(tokens, starts, 0.01).applied]
        before, moments = whole(engine.weights()), whole(engine.optimizer_state())
        if case == "nan" and rank == ranks.size - 1:
            with torch.no_grad():
                network.final_norm.weight[0] = torch.nan
        done = engine.step(tokens, starts, 0.01)
        after = whole(engine.weights())
        same = all(torch.equal(before[name], after[name]) or bool(after[name].isnan().any()) for name in before)
        kept = {name: bool(torch.equal(value, moments[name])) for name, value in engine.optimizer_state().items()}
        facts = {"applied": [*applied, done.applied], "loss": str(done.loss), "weights_kept": same}
        out.write(json.dumps({**facts, "moments_kept": all(kept.values())}) + "\n")
        out.flush()


def whole(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
    leave(0)
