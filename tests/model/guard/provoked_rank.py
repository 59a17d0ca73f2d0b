"""One rank of a real group, whose last member computes non-finite numbers in some steps of the first attempt.

Arguments: run.json, rank, rendezvous file, first and last step.
"""

import sys
from pathlib import Path
from typing import Any

import torch

import model.train.trainer
from model.config.train import read_run
from model.distributed.process_group import join_process_group
from model.engines import make_engine
from model.guard.decisions import read_decisions
from model.processes import exit_now
from model.train.trainer import train


def main(file: str, rank: int, rendezvous: str, first: int, last: int) -> None:
    run = read_run(Path(file))

    def make(run: Any, network: Any, ranks: Any, *parts: Any) -> Any:
        engine: Any = make_engine(run, network, ranks, *parts)
        if read_decisions(run.out) or rank != ranks.size - 1:
            return engine
        real, made = engine.begin, iter(range(last + 1))

        def begin(*arguments: Any) -> None:
            fault = network.final_norm.register_forward_hook(lambda module, inputs, output: output * torch.nan)
            if not first <= next(made, last + 1) <= last:
                fault.remove()
            real(*arguments)
            fault.remove()

        engine.begin = begin
        return engine

    model.train.trainer.make_engine = make
    with join_process_group(rank, run.train.ranks, Path(rendezvous)) as ranks:
        train(run, ranks)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    exit_now(0)
