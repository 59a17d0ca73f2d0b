"""The trainer as a process: `python -m model.train run.json [PARENT]`.

PARENT is the process id of the launcher, where it wants the trainer to be gone whenever it is. The exit code is that of
the error's class (`model/errors.py`); what went wrong stands on stderr as `Class: message`.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

from pydantic import ValidationError

from model.config import TrainerRun
from model.errors import BessemerError, Bug, Infra, InputError, RecipeError
from model.parent_death import die_with_parent


def main(arguments: list[str]) -> int:
    """Train as the JSON file says; returns the exit code of the error's class, 0 when trained to the end."""
    die_with_parent(signal.SIGKILL, parent=int(arguments[1]) if len(arguments) > 1 else None)
    # Threads that spin while they wait take the processor from the thread they wait for as soon as another process
    # runs: five times slower with one busy neighbour on two cores. libgomp reads this once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        if not arguments:
            raise RecipeError("no file named; call: python -m model.train run.json")
        run = read_run(Path(arguments[0]))
        from model.training import train

        train(run)
    except BessemerError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    except (OSError, MemoryError) as error:
        sys.stderr.write(f"Infra: {type(error).__name__}: {error}\n")
        return Infra.exit_code
    except Exception as error:
        traceback.print_exc()
        sys.stderr.write(f"Bug: {type(error).__name__}: {error}\n")
        return Bug.exit_code
    return 0


def read_run(path: Path) -> TrainerRun:
    """The run described by a JSON file; InputError without one, RecipeError names every wrong key."""
    if not path.is_file():
        raise InputError(f"there is no file {path} that describes a training run")
    try:
        return TrainerRun.model_validate_json(path.read_text())
    except ValidationError as error:
        raise RecipeError(f"{path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
