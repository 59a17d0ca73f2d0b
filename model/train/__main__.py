"""Run the trainer as a process: `python -m model.train run.json [PARENT]`.

PARENT is the process id of the launcher; with it, the trainer is killed when the launcher ends. The exit code is that
of the error's class (`model/errors.py`), and the error is the last line on stderr, as `Class: message`.

This process supervises the ranks (`model/launch/supervisor.py`), each a process of its own (`model/train/rank.py`).
"""

import signal
import sys
import traceback
from pathlib import Path

from model.config.train import read_run
from model.errors import BessemerError, Bug, Infra, RecipeError
from model.guard.decisions import effective_config, read_decisions
from model.processes import die_with_parent, exit_now, write_log


def main(arguments: list[str]) -> int:
    """Train the run that the JSON file describes; return 0 when trained to the end, or the exit code of the error."""
    die_with_parent(signal.SIGKILL, parent=int(arguments[1]) if len(arguments) > 1 else None)
    try:
        if not 1 <= len(arguments) <= 2:
            raise RecipeError(f"a run file was expected, and {arguments} given. Call: python -m model.train run.json")
        return _supervise(Path(arguments[0]))
    except BessemerError as error:
        return _report(error)
    except (OSError, MemoryError) as error:
        return _report(Infra(f"{type(error).__name__}: {error}"))
    except Exception as error:
        write_log(traceback.format_exc())
        return _report(Bug(f"{type(error).__name__}: {error}"))


def _supervise(run_file: Path) -> int:
    from model.engines import check_engine
    from model.launch.supervisor import supervise

    original = read_run(run_file)
    # Decisions since the run began may have changed its engine and the number of its ranks.
    run = effective_config(original, read_decisions(original.out))
    check_engine(run.train)
    return supervise(run, run_file)


def _report(error: BessemerError) -> int:
    write_log(f"{type(error).__name__}: {error}\n")
    return error.exit_code


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
