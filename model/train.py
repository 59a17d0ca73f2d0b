"""The trainer as a process: `python -m model.train run.json [PARENT]`.

PARENT is the process id of the launcher, where it wants the trainer to be gone whenever it is. The exit code is that of
the error's class (`model/errors.py`); what went wrong stands on stderr as `Class: message`.

This process watches over the ranks (`model/supervisor.py`), and each of them is
`python -m model.train run.json PARENT RANK MEETING SIZE [STORE]`, which leaves its last words in the folder MEETING and
finds ranks on other machines through STORE.
"""

import os
import signal
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from model.config import TrainerRun
from model.errors import BessemerError, Bug, Infra, InputError, RecipeError
from model.guard.decision import in_force, read_decisions
from model.parent_death import die_with_parent
from model.sealed import given_text, write_sealed


def main(arguments: list[str]) -> int:
    """Train as the JSON file says; returns the exit code of the error's class, 0 when trained to the end."""
    die_with_parent(signal.SIGKILL, parent=int(arguments[1]) if len(arguments) > 1 else None)
    if len(arguments) > 2:
        return _rank(Path(arguments[0]), int(arguments[2]), Path(arguments[3]), int(arguments[4]), *arguments[5:])
    try:
        if not arguments:
            raise RecipeError("no file named; call: python -m model.train run.json")
        return _supervise(Path(arguments[0]))
    except BessemerError as error:
        return _say(error)
    except (OSError, MemoryError) as error:
        return _say(Infra(f"{type(error).__name__}: {error}"))
    except Exception as error:
        traceback.print_exc()
        return _say(Bug(f"{type(error).__name__}: {error}"))


def _supervise(run_file: Path) -> int:
    from model.engines import check_engine
    from model.supervisor import supervise

    begun = read_run(run_file)
    # How many ranks there are, and of which engine, may have been changed since the run began.
    run = in_force(begun, read_decisions(begun.out))
    check_engine(run.train)
    return supervise(run, run_file)


def _say(error: BessemerError) -> int:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return error.exit_code


def _rank(run_file: Path, rank: int, meeting: Path, size: int, store: str | None = None) -> int:
    from model.failures import as_told, leave_words, make_room_for_words
    from model.meeting import words_file
    from model.pause import Paused

    try:
        make_room_for_words(words_file(meeting, rank))
        _train_rank(read_run(run_file), rank, meeting, size, store)
    except Paused:
        return 0
    except Exception as error:
        told = as_told(error)
        if told is None:
            return Infra.exit_code
        if isinstance(told, Bug):
            traceback.print_exc()
        leave_words(words_file(meeting, rank), f"{type(told).__name__}: {told}\n")
        return told.exit_code
    return 0


def _train_rank(run: TrainerRun, rank: int, meeting: Path, size: int, store: str | None) -> None:
    from model.hanging import answer_with_stacks
    from model.heartbeat import Heartbeat
    from model.meeting import beat_file, rendezvous_file

    heartbeat = Heartbeat(beat_file(meeting, rank))
    answer_with_stacks(meeting, rank)

    from model.link import claim_stdout
    from model.precision import denormals_flushed
    from model.ranks import Ranks, joined
    from model.training import train

    messages = claim_stdout()
    now = in_force(run, read_decisions(run.out)).train
    # DeepSpeed needs a process group for a single rank too.
    meets = size > 1 or now.engine == "deepspeed"
    meeting_place = store or rendezvous_file(meeting)
    group = (
        joined(rank, size, meeting_place, now.device, heartbeat) if meets else nullcontext(Ranks(heartbeat=heartbeat))
    )
    with denormals_flushed(), group as ranks:
        train(run, ranks, messages)


def read_run(path: Path) -> TrainerRun:
    """The run described by a JSON file; InputError without one, RecipeError names every wrong key.

    A file that a program wrote holds its digest; one that a person wrote need not. Raises IntegrityError where it does,
    and is damaged.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path} that describes a training run")
    try:
        text = given_text(path, "Run the recipe again: it is written anew.")
        return TrainerRun.model_validate_json(text)
    except ValidationError as error:
        raise RecipeError(f"{path}: {error}") from error


def write_run(path: Path, run: TrainerRun) -> None:
    """Write what the trainer is told."""
    write_sealed(path, run.model_dump(mode="json"))


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
