"""Trainers of one rank that are forks of this process: it has imported what `python -m model.train`, and the template
that it starts, would import again."""

import faulthandler
import functools
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import model.train.trainer  # noqa: F401 - Each trainer would import it.
from model.code_digest import code_digest
from model.config.train import read_run
from model.errors import Paused
from model.processes import exit_now
from model.train import __main__ as program
from model.train import rank


def start_trainer(words: Sequence[str], *, env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Take the place of `subprocess.Popen` where the train stage starts a trainer."""
    train = read_run(Path(words[3])).train
    # Threads of OpenMP that this process may have started do not survive a fork, and portable numerics are a matter of
    # the environment in which PyTorch is loaded.
    if (train.ranks, train.threads, train.engine, train.numerics) != (1, 1, "native", "native"):
        return subprocess.Popen(words, env=env, **options)
    code_digest()  # It is written beside the model, and kept by the process that has computed it.
    become = functools.partial(_become, list(words[3:]), env)
    return subprocess.Popen(["trainer"], preexec_fn=become, restore_signals=False, **options)


def _become(arguments: list[str], environment: dict[str, str]) -> None:
    """Call the program's `main`, whose only rank is this process instead of one that it supervises."""
    try:
        # `Popen` waits for the end of a pipe, which a program closes as it starts.
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2:
                with suppress(OSError):
                    os.close(number)
        faulthandler.disable()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(1)
        program._supervise = _train
        exit_now(program.main(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _train(run_file: Path) -> int:
    with tempfile.TemporaryDirectory() as folder, suppress(Paused):
        rank._train(read_run(run_file), Path(folder), 0, 1, (), "")
    return 0


PROGRAMS = SimpleNamespace(Popen=start_trainer, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
"""Takes the place of `subprocess` in `tasks.train.launcher`."""
