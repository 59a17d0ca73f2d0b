"""Another machine's training, joined by this one: it starts its share of the ranks and meets the others."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from model.complete import why_damaged
from model.config import TrainerRun
from model.errors import InputError
from model.run_folder import RESULT, RUN_FILE
from model.train import read_run
from tasks.train.launching import environment

ASK_EVERY_SECONDS = 1.0
TRAININGS = f"*/scratch/train/{RUN_FILE}"


def training_of_several_hosts(root: Path, wait_seconds: float) -> tuple[Path, TrainerRun]:
    """The file and the settings of the training under `root` that was begun last and is not at its end.

    Raises InputError where within `wait_seconds` none stands there that asks for several hosts.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        found = sorted((root / "work").glob(TRAININGS), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in found:
            run = read_run(path)
            if run.train.hosts.count > 1 and why_damaged(run.out / RESULT) is not None:
                return path, run
        if time.monotonic() > deadline:
            told = "no training is under way" if not found else "no training asks for several hosts"
            raise InputError(
                f"{told} under {root}, and none began within {wait_seconds:.0f} seconds. Start the run on the machine"
                f" with the address (train.hosts.count, train.hosts.address), and give the same --root here: a folder"
                f" that all machines see under the same name."
            )
        time.sleep(ASK_EVERY_SECONDS)


def become(run_file: Path, given: Mapping[str, str]) -> NoReturn:
    """Go on as the supervisor of this machine's ranks, with the variables `given`: requests to stop reach it, and its
    exit code is ours."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "model.train", str(run_file)], environment(given))
