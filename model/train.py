"""The trainer as a process: `python -m model.train run.json [PARENT]`.

PARENT is the process id of the launcher, where it wants the trainer to be gone whenever it is. The exit code is that of
the error's class (`model/errors.py`); what went wrong stands on stderr as `Class: message`.

Where the run asks for several ranks, this process watches over them (`model/supervisor.py`), and each of them is
`python -m model.train run.json PARENT RANK MEETING`, which leaves its last words in the folder MEETING.
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

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
    rank, meeting = (int(arguments[2]), Path(arguments[3])) if len(arguments) > 3 else (0, None)
    try:
        if not arguments:
            raise RecipeError("no file named; call: python -m model.train run.json")
        run = read_run(Path(arguments[0]))
        if meeting is not None:
            _train_rank(run, rank, meeting)
        elif run.train.ranks > 1 or run.train.engine == "deepspeed":
            return _supervise(run, Path(arguments[0]))
        else:
            _train_alone(run)
    except BessemerError as error:
        return _fail(error, rank, meeting)
    except (OSError, MemoryError) as error:
        return _fail(Infra(f"{type(error).__name__}: {error}"), rank, meeting)
    except Exception as error:
        if meeting is not None and _lost_the_others(error):
            return Infra.exit_code
        traceback.print_exc()
        return _fail(Bug(f"{type(error).__name__}: {error}"), rank, meeting)
    return 0


def _train_alone(run: TrainerRun) -> None:
    from model.link import claim_stdout
    from model.precision import denormals_flushed
    from model.training import train

    with denormals_flushed():
        train(run, messages=claim_stdout())


def _supervise(run: TrainerRun, run_file: Path) -> int:
    from model.engines import check_engine
    from model.supervisor import supervise

    check_engine(run.train)
    return supervise(run, run_file)


def _train_rank(run: TrainerRun, rank: int, meeting: Path) -> None:
    from model.link import claim_stdout
    from model.precision import denormals_flushed
    from model.ranks import joined
    from model.supervisor import rendezvous_file
    from model.training import train

    messages = claim_stdout()
    with (
        denormals_flushed(),
        joined(rank, run.train.ranks, rendezvous_file(meeting), run.train.device) as ranks,
    ):
        train(run, ranks, messages)


def _fail(error: BessemerError, rank: int, meeting: Path | None) -> int:
    words = f"{type(error).__name__}: {error}\n"
    if meeting is None:
        sys.stderr.write(words)
    else:
        from model.supervisor import words_file

        words_file(meeting, rank).write_text(words)
    return error.exit_code


def _lost_the_others(error: Exception) -> bool:
    """Whether a rank failed because another one did: gloo names itself in what it raises, and has no class for it."""
    return "gloo" in str(error).lower()


def read_run(path: Path) -> TrainerRun:
    """The run described by a JSON file; InputError without one, RecipeError names every wrong key."""
    if not path.is_file():
        raise InputError(f"there is no file {path} that describes a training run")
    try:
        return TrainerRun.model_validate_json(path.read_text())
    except ValidationError as error:
        raise RecipeError(f"{path}: {error}") from error


def leave(code: int) -> NoReturn:
    """End this process without taking the interpreter down first.

    DeepSpeed keeps references to process groups, and when their threads meet the interpreter's end, one of four
    finished ZeRO-3 trainings died of SIGABRT. By now all files are durable and all words are said.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
