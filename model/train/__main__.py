"""The trainer as a process: `python -m model.train run.json [PARENT]`.

PARENT is the process id of the launcher, where it wants the trainer to be gone whenever it is. The exit code is that of
the error's class (`model/errors.py`); what went wrong stands on stderr as `Class: message`.

This process watches over the ranks (`model/launch/supervisor.py`), and each of them is
`python -m model.train run.json PARENT RANK MEETING SIZE [STORE]`, which leaves its last words in the folder MEETING and
finds ranks on other machines through STORE.
"""

import signal
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

from model.config.train import TrainerRun, read_run
from model.errors import BessemerError, Bug, Infra, RecipeError
from model.guard.decisions import in_force, read_decisions
from model.processes import die_with_parent, exit_now


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
    from model.launch.supervisor import supervise

    begun = read_run(run_file)
    # How many ranks there are, and of which engine, may have been changed since the run began.
    run = in_force(begun, read_decisions(begun.out))
    check_engine(run.train)
    return supervise(run, run_file)


def _say(error: BessemerError) -> int:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return error.exit_code


def _rank(run_file: Path, rank: int, meeting: Path, size: int, store: str | None = None) -> int:
    from model.distributed.protocol import error_file
    from model.errors import Paused
    from model.launch.failures import as_told, leave_words, make_room_for_words

    try:
        make_room_for_words(error_file(meeting, rank))
        _train_rank(read_run(run_file), rank, meeting, size, store)
    except Paused:
        return 0
    except Exception as error:
        told = as_told(error)
        if told is None:
            return Infra.exit_code
        if isinstance(told, Bug):
            traceback.print_exc()
        leave_words(error_file(meeting, rank), f"{type(told).__name__}: {told}\n")
        return told.exit_code
    return 0


def _train_rank(run: TrainerRun, rank: int, meeting: Path, size: int, store: str | None) -> None:
    from model.distributed.heartbeat import Heartbeat
    from model.distributed.protocol import heartbeat_file, rendezvous_file
    from model.launch.watchdog import answer_with_stacks

    heartbeat = Heartbeat(heartbeat_file(meeting, rank))
    answer_with_stacks(meeting, rank)

    from model.distributed.process_group import Ranks, join_process_group
    from model.distributed.protocol import claim_stdout
    from model.engines.runtime import flush_denormals
    from model.train.trainer import train

    messages = claim_stdout()
    now = in_force(run, read_decisions(run.out)).train
    # DeepSpeed needs a process group for a single rank too.
    meets = size > 1 or now.engine == "deepspeed"
    meeting_place = store or rendezvous_file(meeting)
    group = (
        join_process_group(rank, size, meeting_place, now.device, heartbeat)
        if meets
        else nullcontext(Ranks(heartbeat=heartbeat))
    )
    with flush_denormals(), group as ranks:
        train(run, ranks, messages)


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
