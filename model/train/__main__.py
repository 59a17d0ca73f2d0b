"""Run the trainer as a process: `python -m model.train run.json [PARENT]`.

PARENT is the process id of the launcher; with it, the trainer is killed when the launcher ends. The exit code is that
of the error's class (`model/errors.py`), and the error is the last line on stderr, as `Class: message`.

This process supervises the ranks (`model/launch/supervisor.py`), each a process of its own (`model/train/rank.py`).
"""

import sys
import traceback
from pathlib import Path

from model.config.train import read_run
from model.errors import Bug, Infra, RecipeError
from model.guard.decisions import effective_config, read_decisions
from model.launch.failures import reported_error
from model.processes import die_with_parent, exit_now, write_log


def main(arguments: list[str]) -> int:
    """Train the run that the JSON file describes; return 0 when trained to the end, or the exit code of the error."""
    die_with_parent(int(arguments[1]) if len(arguments) > 1 else None)
    try:
        if not 1 <= len(arguments) <= 2:
            raise RecipeError(f"a run file was expected, and {arguments} given. Call: python -m model.train run.json")
        return _supervise(Path(arguments[0]))
    except Exception as error:
        reported = reported_error(error) or Infra(f"{type(error).__name__}: {error}")
        if isinstance(reported, Bug):
            write_log(traceback.format_exc())
        write_log(f"{type(reported).__name__}: {reported}\n")
        return reported.exit_code


def _supervise(run_file: Path) -> int:
    from model.engines import check_engine
    from model.launch.supervisor import Supervisor

    original = read_run(run_file)
    # Decisions since the run began may have changed its engine and the number of its ranks.
    run = effective_config(original, read_decisions(original.out))
    check_engine(run.train)
    return Supervisor(run, run_file).supervise()


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
