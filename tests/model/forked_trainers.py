"""Trainers, and ranks without one, that are forks of this process: it has imported what `python -m model.train` and the
template of its ranks would import again."""

import functools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import model.launch.template
import model.train.template
import model.train.trainer
from model.code_digest import code_digest
from model.config.train import TrainConfig, TrainerRun, read_run
from model.distributed.protocol import LauncherChannel, error_file
from model.engines import engine_class
from model.train import rank as rank_program
from model.train.__main__ import main
from tests.model.forked_ranks import run_ranks
from tests.processes import fork_program


def import_engine(train: TrainConfig) -> None:
    """Import here what each fork would import."""
    with mock.patch.dict(os.environ):
        engine_class(train)
    if train.divides_weights:
        import torch.distributed.pipelining  # noqa: F401 - and with it the compiler


def pause_at_each_step() -> None:
    """Have ranks wait after each step, so that a few steps leave time enough to disturb them in the middle."""
    beat = LauncherChannel.beat

    def beat_later(self: LauncherChannel, step: int) -> None:
        time.sleep(0.05)
        beat(self, step)

    LauncherChannel.beat = beat_later


def fork_trainer(
    train: TrainConfig,
    words: Sequence[str],
    before: Callable[[], object] = lambda: None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start `python -m model.train WORDS`, whose template is a fork, too; it calls `before` first.

    Options are those of `subprocess.Popen`; without any, its output is text in pipes.
    """
    import_engine(train)
    # Recorded with each finished training, and known from then on.
    code_digest()
    supervise = functools.partial(_supervise, list(words), before)
    text: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return fork_program(supervise, env or os.environ.copy(), **(options or text))


def _supervise(words: list[str], before: Callable[[], object]) -> int:
    model.launch.template.subprocess = SimpleNamespace(Popen=_fork_template, DEVNULL=subprocess.DEVNULL)
    before()
    return main(words)


def _fork_template(
    words: Sequence[str], *, stdin: int, env: Mapping[str, str], pass_fds: Collection[int]
) -> subprocess.Popen[bytes]:
    """Take the place of `subprocess.Popen` for the only program that a supervisor starts."""
    assert words[1:3] == ["-m", "model.train.template"]
    template = functools.partial(model.train.template.main, list(words[3:]))
    return fork_program(template, env, pass_fds, stdin=stdin)


@contextmanager
def stages_fork_trainers() -> Iterator[None]:
    """Have the train stage start trainers as forks within this block.

    Not those of several ranks or threads: OpenMP's do not survive a fork. Portable numerics are a matter of the
    environment in which PyTorch is loaded.
    """
    with mock.patch("tasks.train.launcher.subprocess", _FORKS):
        yield


def _start(words: Sequence[str], *, env: Mapping[str, str], **options: Any) -> subprocess.Popen[Any]:
    assert words[1:3] == ["-m", "model.train"]
    train = read_run(Path(words[3])).train
    if (train.ranks, train.threads, train.engine, train.numerics) != (1, 1, "native", "native"):
        return subprocess.Popen(words, env=env, **options)
    return fork_trainer(train, words[3:], env=env, **options)


_FORKS = SimpleNamespace(Popen=_start, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)


def train_in_ranks(run: TrainerRun) -> None:
    """Train to the end in the ranks of a run, without a supervisor; AssertionError where a rank fails."""
    import_engine(run.train)
    folder = Path(tempfile.mkdtemp(dir=run.out.parent))
    (folder / "run.json").write_text(run.model_dump_json())
    run_ranks(run.train.ranks, functools.partial(_train, folder, run.train.ranks))


def _train(folder: Path, size: int, rank: int) -> None:
    code = rank_program.main([str(folder / "run.json"), str(rank), str(folder), str(size), "", ""])
    assert code == 0, error_file(folder, rank).read_text()
