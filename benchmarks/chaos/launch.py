"""What runs above the trainer in a flow, without Prefect: the train task, which retries, and the automation, which
runs the flow again when it failed or died.

    launch.py task RUN.json LOG PARENT            the task and its retries; exits with 75 when those are used up
    launch.py automation RUN.json LOG PARENT      the task again and again until training is done
    launch.py flow PARENT COMMAND ...             a command, say `bessemer run`, again and again until it is done
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from model.config.train import TrainerRun
from model.errors import BessemerError, Infra
from model.processes import die_with_parent
from tasks.execution.outcome import RETRY_DELAYS
from tasks.train.launcher import run_trainer


def task(run_file: Path, log: Path) -> int:
    """Run the launcher of the train stage with the task's retries; return the exit code."""
    run = TrainerRun.model_validate_json(run_file.read_text())
    for delay in [*RETRY_DELAYS, None]:
        try:
            run_trainer(
                ["-m", "model.train", str(run_file), str(os.getpid())],
                given=run.train.given,
                log_path=log,
                heartbeat=run.out / "heartbeat",
                on_log=lambda message: None,
                hang_seconds=600.0,
                max_seconds=None,
                stop_seconds=60.0,
            )
        except BessemerError as error:
            print(f"{type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
            if not isinstance(error, Infra):
                return error.exit_code
            if delay is not None:
                time.sleep(delay)
        else:
            return 0
    return Infra.exit_code


def automation(run_file: Path, log: Path) -> int:
    """Run the task until it is done, as `again` does; return its exit code."""
    return again([sys.executable, __file__, "task", str(run_file), str(log)], str(os.getpid()))


def again(command: list[str], *parent: str) -> int:
    """Run a command, and again while it fails for the machine's sake or is killed; return its last exit code."""
    while True:
        code = subprocess.run([*command, *parent], check=False).returncode
        if code != Infra.exit_code and code >= 0:
            return code


def main(which: str, *arguments: str) -> int:
    """Run one of the three, to be killed when the process that started it ends; return the exit code."""
    parent, rest = (arguments[0], arguments[1:]) if which == "flow" else (arguments[-1], arguments[:-1])
    die_with_parent(int(parent))
    if which == "flow":
        return again(list(rest))
    return {"task": task, "automation": automation}[which](*map(Path, rest))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
