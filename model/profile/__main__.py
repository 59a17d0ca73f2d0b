"""The command `python -m model.profile run.json`; `model/profile/__init__.py` says what it prints.

The run's folder is not changed. The exit code is that of the error's class (`model/errors.py`).
"""

import argparse
import json
import sys
from pathlib import Path

from model.config.train import TrainerRun, read_run
from model.environment import filter_environment
from model.errors import BessemerError, Infra


def main(arguments: list[str]) -> int:
    """Profile the run that a JSON file describes; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        run = read_run(options.run)
        _profile(run, options)
    except BessemerError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    except (OSError, MemoryError) as error:
        sys.stderr.write(f"Infra: {type(error).__name__}: {error}\n")
        return Infra.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m model.profile",
        description="Run a few steps of a training run and show where their time goes. Its folder is not changed.",
    )
    parser.add_argument("run", type=Path, help="the run.json that the trainer takes")
    parser.add_argument("--steps", type=_positive, default=5, help="steps of each kind, plain and timed (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a step's operations for a browser, too")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} steps cannot be measured; at least 1")
    return number


def _profile(run: TrainerRun, options: argparse.Namespace) -> None:
    from model.profile.report import as_json, findings_of, table
    from model.profile.step import profile_step

    profile = profile_step(run, options.steps, trace=options.trace)
    findings = findings_of(profile)
    print(json.dumps(as_json(profile, findings), indent=1) if options.json else table(profile, findings))


if __name__ == "__main__":
    filter_environment()
    sys.exit(main(sys.argv[1:]))
