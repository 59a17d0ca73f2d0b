"""Trainings in forks of this process, which has imported what the trainer's programs would import: for tests of what is
done with a trained model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import tasks.train.run
from model.config.train import read_run
from model.train.trainer import train
from tests.in_a_child import in_a_child


@contextmanager
def training_in_forks() -> Iterator[None]:
    """Train without a supervisor within this block. Only runs of one rank and one thread: threads of OpenMP do not
    survive a fork."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.train.run, "run_trainer", _train)
        yield


def _train(arguments: list[str], *, given: Mapping[str, str], **_: object) -> None:
    run = read_run(Path(arguments[2]))
    assert (run.train.ranks, run.train.threads, dict(given)) == (1, 1, {})
    assert in_a_child(train, run) == 0
