"""Trainers that are forks of this process: it has imported what `python -m model.train`, and the template of its ranks,
would import again."""

import functools
import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace

import model.launch.template
import model.train.template
from model.config.train import TrainConfig
from model.distributed.protocol import LauncherChannel
from model.train.__main__ import main
from tests.forked_programs import fork_program


def import_engine(train: TrainConfig) -> None:
    """Import here what each fork would import."""
    if train.engine == "deepspeed":
        import model.engines.deepspeed  # noqa: F401
    if train.engine == "fsdp":
        import torch._dynamo  # noqa: F401


def pause_at_each_step() -> None:
    """Have ranks wait after each step, so that a few steps leave time enough to disturb them in the middle."""
    beat = LauncherChannel.beat

    def beat_later(channel: LauncherChannel, step: int) -> None:
        time.sleep(0.03)
        beat(channel, step)

    LauncherChannel.beat = beat_later


def fork_trainer(
    train: TrainConfig, words: Sequence[str], before: Callable[[], object] = lambda: None
) -> subprocess.Popen[str]:
    """Start `python -m model.train WORDS`, whose template is a fork, too; it calls `before` first."""
    import_engine(train)
    supervise = functools.partial(_supervise, list(words), before)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return fork_program(supervise, dict(os.environ), text=True, **pipes)


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
