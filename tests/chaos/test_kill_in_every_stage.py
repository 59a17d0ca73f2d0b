"""kill -9 once inside each stage, then again: the same digests as an undisturbed run, weights included."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.road import STAGES

SECONDS = 180.0


def command(recipe: Path, root: Path) -> list[str]:
    return [sys.executable, "-m", "flows.cli", "run", str(recipe), "--root", str(root), "--json"]


def finished_run(recipe: Path, root: Path) -> dict[str, Any]:
    done = subprocess.run(command(recipe, root), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def contents(run: dict[str, Any]) -> dict[str, str]:
    return {entry["stage"]: entry["content"] for entry in run["stages"]}


def stage_under_way(root: Path) -> str | None:
    """The stage that the latest run is building now."""
    for path in sorted(root.glob("runs/*/run.json"))[-1:]:
        record = json.loads(path.read_text())
        building = [note["stage"] for note in record["notes"] if note["note"].startswith("building")]
        finished = {entry["stage"] for entry in record["stages"]}
        if building and building[-1] not in finished:
            return building[-1]
    return None


def kill_inside(stage: str, recipe: Path, root: Path, delay: float) -> bool:
    """Start a run and kill -9 it while `stage` is being built; False where the stage was over too soon."""
    process = subprocess.Popen(command(recipe, root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and stage_under_way(root) != stage:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return not list(root.glob(f"artifacts/{stage}/*/manifest.json"))


def processes_of(root: Path) -> list[str]:
    found = subprocess.run(["pgrep", "-af", str(root)], capture_output=True, text=True, check=False).stdout
    return [line for line in found.splitlines() if "pgrep" not in line]


@pytest.mark.prove
def test_killed_in_every_stage_ends_with_the_digests_of_an_undisturbed_run(foundry: Path, tmp_path: Path) -> None:
    recipe, delays = foundry / "foundry.toml", random.Random(7)
    undisturbed = finished_run(recipe, tmp_path / "undisturbed")
    assert [entry["outcome"] for entry in undisturbed["stages"]] == ["built"] * len(STAGES)
    root = tmp_path / "disturbed"
    killed: dict[str, bool] = {}
    for stage in STAGES:
        killed[stage] = kill_inside(stage, recipe, root, delays.uniform(0.0, 0.02))
    time.sleep(1.0)
    assert processes_of(root) == [], "a process outlived its run"
    again = finished_run(recipe, root)
    assert all(killed.values()), killed
    assert contents(again) == contents(undisturbed)
    third = finished_run(recipe, root)
    assert [entry["outcome"] for entry in third["stages"]] == ["reused"] * len(STAGES)


@pytest.mark.prove
def test_two_runs_at_once_build_each_stage_once(foundry: Path, tmp_path: Path) -> None:
    words = command(foundry / "foundry.toml", tmp_path)
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    records = [json.loads(process.communicate(timeout=2 * SECONDS)[0]) for process in both]
    assert contents(records[0]) == contents(records[1])
    for stage in STAGES:
        ends = sorted(entry["outcome"] for record in records for entry in record["stages"] if entry["stage"] == stage)
        assert ends == ["built", "reused"], stage
