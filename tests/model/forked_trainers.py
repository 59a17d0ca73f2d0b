"""Trainers that are forks of this process: it has imported what `python -m model.train`, and the template of its ranks,
would import again."""

import functools
import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from unittest import mock

import model.launch.template
import model.train.template
from model.code_digest import code_digest
from model.config.train import TrainConfig
from model.distributed.protocol import LauncherChannel
from model.engines import engine_class
from model.train.__main__ import main
from tests.forked_programs import fork_program


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
    train: TrainConfig, words: Sequence[str], before: Callable[[], object] = lambda: None
) -> subprocess.Popen[str]:
    """Start `python -m model.train WORDS`, whose template is a fork, too; it calls `before` first."""
    import_engine(train)
    # Recorded with each finished training, and known from then on.
    code_digest()
    supervise = functools.partial(_supervise, list(words), before)
    return fork_program(supervise, os.environ.copy(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
