"""Ctrl-C is never lost, and a killed run is known to be interrupted."""

import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.runs.guards import raise_if_interrupted, remember_interrupts
from flows.runs.record import RECORD, new_run_id
from flows.upkeep.gc import plan
from model.checksummed_json import read_sealed, write_sealed

RUN_ID = new_run_id()
BEGUN = """
import sys, time
from pathlib import Path
from flows.runs.context import CURRENT_LISTENER
from flows.runs.record import RunRecord
folder = Path(sys.argv[1])
record = {"run_id": folder.name, "recipe_name": "r", "root": str(folder.parents[1]), "started": time.time()}
RunRecord(folder, record, CURRENT_LISTENER.get())
print("begun", flush=True)
sys.stdin.read()
"""


async def _swallow() -> None:
    """What a library may do that takes a cancellation for one of its own."""
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return


def test_asyncio_alone_loses_an_interrupt_that_a_coroutine_swallows() -> None:
    """The reason for the module; where this fails one day, it may go."""
    asyncio.run(_swallow())


def test_within_the_block_it_is_raised_at_once() -> None:
    with remember_interrupts(), pytest.raises(KeyboardInterrupt):
        asyncio.run(_swallow())


def test_one_that_was_swallowed_is_raised_again() -> None:
    with remember_interrupts():
        raise_if_interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            raise_if_interrupted()
    raise_if_interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun a run under `tmp_path` and lives."""
    command = [sys.executable, "-c", BEGUN, str(tmp_path / "runs" / RUN_ID)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def listed_state(root: Path) -> str:
    (run,) = json.loads(CliRunner().invoke(app, ["runs", "list", "--root", str(root), "--json"]).stdout)
    return run["state"]


def test_a_run_whose_process_is_killed_is_listed_as_interrupted(begun: subprocess.Popen[str], tmp_path: Path) -> None:
    assert listed_state(tmp_path) == "running"
    begun.kill()
    begun.wait()
    assert listed_state(tmp_path) == "interrupted"
    assert "interrupted" in CliRunner().invoke(app, ["runs", "list", "--root", str(tmp_path)]).stdout
    assert plan(tmp_path, keep_last=0).kept_runs == (RUN_ID,), "what it made is kept for the run that goes on"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"boot": "an-earlier-boot pid:[1]"}, "interrupted"),
        ({"boot": "an-earlier-boot pid:[1]", "host": f"not-{platform.node()}"}, "running"),
        ({"boot": ""}, "running"),
    ],
)
def test_a_run_that_ended_with_its_machine_is_listed_as_interrupted(
    begun: subprocess.Popen[str], tmp_path: Path, changes: dict[str, Any], state: str
) -> None:
    record = tmp_path / "runs" / RUN_ID / RECORD
    reported = read_sealed(record, "")
    write_sealed(record, {**reported, "process": reported["process"] | changes})
    assert listed_state(tmp_path) == state
