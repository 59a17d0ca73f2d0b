"""Trainings whose ranks are forks of this process, without the supervisor that starts them."""

import functools
import tempfile
from pathlib import Path

import model.train.trainer  # noqa: F401 - Each rank would import it.
from model.config.train import TrainerRun
from model.distributed.protocol import error_file
from model.engines import engine_class
from model.train.rank import main
from tests.model.forked_ranks import run_ranks


def train_in_forks(run: TrainerRun) -> None:
    """Train to the end; AssertionError where a rank fails."""
    # Each rank would import its engine.
    if run.train.engine == "deepspeed":
        import model.engines.deepspeed  # noqa: F401
    else:
        engine_class(run.train)
    folder = Path(tempfile.mkdtemp(dir=run.out.parent))
    (folder / "run.json").write_text(run.model_dump_json())
    run_ranks(run.train.ranks, functools.partial(_train, folder, run.train.ranks))


def _train(folder: Path, size: int, rank: int) -> None:
    code = main([str(folder / "run.json"), str(rank), str(folder), str(size), "", ""])
    assert code == 0, error_file(folder, rank).read_text()
