"""Trainings in ranks that are forked from this process: a launched training imports everything twice before it begins.

Launched ranks are tested in `tests/model/launch` and `tests/model/distributed`.
"""

import functools

import torch.distributed.pipelining  # noqa: F401 - Each rank of a pipeline would import it.

from model.config.train import TrainerRun
from model.distributed.process_group import join_process_group
from model.train.trainer import train
from tests.model.forked_ranks import run_ranks


def train_in_ranks(run: TrainerRun) -> None:
    """Train to the end of the run in `train.ranks` processes."""
    run_ranks(run.train.ranks, functools.partial(_train, run))


def _train(run: TrainerRun, rank: int) -> None:
    with join_process_group(rank, run.train.ranks, run.out.with_suffix(".meeting")) as ranks:
        train(run, ranks)
