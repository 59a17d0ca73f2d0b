"""Bessemer's commands, in a process of their own or in this one."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

SECONDS = 1800.0
"""For one command; the machine may be busy."""


def words(*more: object) -> list[str]:
    """Return the words of a command for `subprocess`."""
    return [sys.executable, "-m", "flows.cli", *map(str, more)]


def bessemer(
    *more: object, code: int | None = 0, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, with further environment variables and in `folder` if given.

    It must end with the exit code `code`; None takes any.
    """
    mine = {**os.environ, **(environment or {})}
    done = subprocess.run(
        words(*more), capture_output=True, text=True, timeout=SECONDS, check=False, env=mine, cwd=folder
    )
    assert code is None or done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def invoke(*more: object, code: int | None = 0) -> Result:
    """Run a command in this process, which has imported what a process would import anew, in 3 to 5 s.

    The fixture `shared_server` gives one that starts a flow its server.
    """
    from flows.cli import app

    done = CliRunner().invoke(app, [*map(str, more)])
    assert code is None or done.exit_code == code, f"exit code {done.exit_code}\n{done.output}"
    return done
