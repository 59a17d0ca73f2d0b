"""kill -9 in the middle of each stage, then again: the digests of an undisturbed run, weights included, and no process
left over.

The middle is counted in renames, by which a build finishes each file (`hook/sitecustomize.py`), so that a kill falls on
the same place however fast the machine is. `make prove` kills at instants of the clock as well.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.stages import STAGES

SECONDS = 300.0
ENDING_SECONDS = 20.0
"""Within which the processes of a killed run are gone: the kernel ends most at once, a trainer hears of it."""
HOOK = Path(__file__).parent / "hook"
MARK = "BESSEMER_TEST_MARK"
"""Environment variable that every process of a run inherits, however its command line reads."""


def command(recipe: Path, root: Path) -> list[str]:
    return [sys.executable, "-m", "flows.cli", "run", str(recipe), "--root", str(root), "--json"]


def start(recipe: Path, root: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A run that writes beside its root. A pipe would not end before the last process that a run leaves behind."""
    with root.with_suffix(".json").open("wb") as out, root.with_suffix(".err").open("wb") as err:
        return subprocess.Popen(command(recipe, root), stdout=out, stderr=err, env={**os.environ, **environment})


def record_of(process: subprocess.Popen[bytes], root: Path) -> dict[str, Any]:
    assert process.wait(SECONDS) == 0, root.with_suffix(".err").read_text()
    return json.loads(root.with_suffix(".json").read_text())


def finished_run(recipe: Path, root: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    return record_of(start(recipe, root, environment or {}), root)


def contents(run: dict[str, Any]) -> dict[str, str]:
    return {entry["stage"]: entry["content"] for entry in run["stages"]}


def outcomes(run: dict[str, Any]) -> list[str]:
    return [entry["outcome"] for entry in run["stages"]]


def processes_of(mark: str) -> dict[int, str]:
    """The processes that carry the mark: their numbers and command lines."""
    carried = f"{MARK}={mark}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # One that ends meanwhile, or is another user's, cannot be read; of one that has ended nothing is left to read.
        with suppress(OSError):
            if carried in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = words.decode(errors="replace").strip()
    return found


def left_over(mark: str) -> list[str]:
    """The processes that carry the mark and do not end within the time given to them."""
    deadline = time.monotonic() + ENDING_SECONDS
    while (found := processes_of(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return list(found.values())


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark that no other run carries; what still carries it at the end is ended."""
    mark = uuid.uuid4().hex
    yield mark
    for number in processes_of(mark):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def counting(root: Path, log: Path, kill_at: str = "") -> dict[str, str]:
    """The environment in which a run's renames are counted, and one of them, `IDENTITY:N`, ends the run."""
    path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))
    renames = {"BESSEMER_RENAMES_ROOT": str(root), "BESSEMER_RENAMES_LOG": str(log)}
    return {"PYTHONPATH": path, **renames, "BESSEMER_KILL_AT": kill_at}


def test_killed_in_the_middle_of_every_stage_ends_with_the_digests_of_an_undisturbed_run(
    foundry: Path, tmp_path: Path, mark: str, server_settings: dict[str, str]
) -> None:
    """Each run goes on from the one before, which was killed in the stage before.

    The first kill is of a run with a Prefect server of its own; the others share one, which takes half the time.
    """
    recipe, root, quiet = foundry / "foundry.toml", tmp_path / "disturbed", tmp_path / "quiet"
    undisturbed = finished_run(recipe, quiet, {**counting(quiet, tmp_path / "quiet.log"), **server_settings})
    assert outcomes(undisturbed) == ["built"] * len(STAGES)
    renames = Counter((tmp_path / "quiet.log").read_text().split())
    builds = {entry["stage"]: entry["identity"] for entry in undisturbed["stages"]}
    for stage, build in builds.items():
        middle = renames[build] // 2 + 1
        server = {} if stage == STAGES[0] else server_settings
        environment = {**counting(root, tmp_path / f"{stage}.log", f"{build}:{middle}"), **server, MARK: mark}
        process = start(recipe, root, environment)
        assert process.wait(SECONDS) == -signal.SIGKILL, f"{stage}: {root.with_suffix('.err').read_text()}"
        assert list(root.glob(f"work/{build}.*")), f"{stage} left no work to go on from"
        assert not (root / "artifacts" / stage).exists(), f"{stage} was published before its middle"
        assert left_over(mark) == [], f"processes outlived the run that was killed in {stage}"
    again = finished_run(recipe, root, server_settings)
    assert contents(again) == contents(undisturbed)
    assert outcomes(again) == ["reused"] * (len(STAGES) - 1) + ["built"]
    for stage, build in builds.items():
        manifest = json.loads((root / "artifacts" / stage / build / "manifest.json").read_text())
        assert manifest["timings"]["resumed"], f"{stage} began anew"
    assert not list((root / "work").iterdir())


def test_the_search_for_processes_sees_the_server_of_a_run(foundry: Path, tmp_path: Path, mark: str) -> None:
    """A search that cannot find what lives would never find what is left over."""
    process = start(foundry / "foundry.toml", tmp_path / "root", {MARK: mark})
    deadline = time.monotonic() + SECONDS
    while len(found := processes_of(mark)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert any("server" in words for words in found.values()), found


def stage_under_way(root: Path) -> str | None:
    """The stage that the latest run is building now."""
    for path in sorted(root.glob("runs/*/run.json"))[-1:]:
        record = json.loads(path.read_text())
        building = [note["stage"] for note in record["notes"] if note["note"].startswith("building")]
        finished = {entry["stage"] for entry in record["stages"]}
        if building and building[-1] not in finished:
            return building[-1]
    return None


def kill_inside(stage: str, recipe: Path, root: Path, delay: float, mark: str) -> bool:
    """Start a run and kill -9 it while `stage` is being built; False where the stage was over too soon."""
    process = start(recipe, root, {MARK: mark})
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and stage_under_way(root) != stage:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.wait()
    return not list(root.glob(f"artifacts/{stage}/*/manifest.json"))


@pytest.mark.prove
def test_killed_at_any_instant_of_every_stage_ends_with_the_digests_of_an_undisturbed_run(
    foundry: Path, tmp_path: Path, mark: str
) -> None:
    recipe, delays = foundry / "foundry.toml", random.Random(7)
    undisturbed = finished_run(recipe, tmp_path / "undisturbed")
    assert outcomes(undisturbed) == ["built"] * len(STAGES)
    root = tmp_path / "disturbed"
    killed: dict[str, bool] = {}
    for stage in STAGES:
        killed[stage] = kill_inside(stage, recipe, root, delays.uniform(0.0, 0.02), mark)
        assert left_over(mark) == [], f"processes outlived the run that was killed in {stage}"
    again = finished_run(recipe, root)
    assert all(killed.values()), killed
    assert contents(again) == contents(undisturbed)
    assert outcomes(finished_run(recipe, root)) == ["reused"] * len(STAGES)


@pytest.mark.prove
def test_two_runs_at_once_build_each_stage_once(foundry: Path, tmp_path: Path) -> None:
    words = command(foundry / "foundry.toml", tmp_path)
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    records = [json.loads(process.communicate(timeout=2 * SECONDS)[0]) for process in both]
    assert contents(records[0]) == contents(records[1])
    for stage in STAGES:
        ends = sorted(entry["outcome"] for record in records for entry in record["stages"] if entry["stage"] == stage)
        assert ends == ["built", "reused"], stage
