"""kill -9 in the middle of each stage, then again: the digests of an undisturbed run, weights included, and no process
left over.

The middle is counted in renames, by which a build finishes each file (`hook/sitecustomize.py`), so that a kill falls on
the same place however fast the machine is. `make prove` kills at instants of the clock as well.
"""

import json
import os
import random
import select
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
TEMPLATE = """
import importlib, json, os, pkgutil, sitecustomize, sys, traceback
given = dict(os.environ)
import tasks
from flows.cli import main
from flows.commands.run import quieten_prefect
from model.processes import exit_now
quieten_prefect(verbose=False)
import flows.pretrain
for module in pkgutil.walk_packages(tasks.__path__, "tasks."):
    importlib.import_module(module.name)
for line in sys.stdin:
    words, environment, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(given | environment)
        importlib.reload(sitecustomize)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["bessemer", *words]
        try:
            main()
        except SystemExit as end:
            exit_now(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            exit_now(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Has imported what a run imports, which takes a command longer than all else here, and forks runs, one at a time."""


def words(recipe: Path, root: Path) -> list[str]:
    return ["run", str(recipe), "--root", str(root), "--json"]


def command(recipe: Path, root: Path) -> list[str]:
    return [sys.executable, "-m", "flows.cli", *words(recipe, root)]


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


def left_over(mark: str, template: int = 0) -> list[str]:
    """The processes that carry the mark and do not end within the time given to them; but for the template of runs."""
    deadline = time.monotonic() + ENDING_SECONDS
    while (found := processes_of(mark)).keys() - {template} and time.monotonic() < deadline:
        time.sleep(0.05)
    return [words for number, words in found.items() if number != template]


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
    renames = {"BESSEMER_RENAMES_ROOT": str(root), "BESSEMER_RENAMES_LOG": str(log)}
    return {"PYTHONPATH": HOOKED, **renames, "BESSEMER_KILL_AT": kill_at}


HOOKED = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))


class Runs:
    """Runs that are forks of a template. The process that was killed in one of them has its number."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._template = subprocess.Popen(
            [sys.executable, "-c", TEMPLATE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": HOOKED, **environment},
        )
        self.template = self._template.pid

    def code_of(self, recipe: Path, root: Path, environment: Mapping[str, str]) -> int:
        """Run a recipe to its end; minus the number of the signal that ended it."""
        assert self._template.stdin is not None is not self._template.stdout
        files = [str(root.with_suffix(suffix)) for suffix in (".json", ".err")]
        self._template.stdin.write(json.dumps([words(recipe, root), environment, *files]) + "\n")
        self._template.stdin.flush()
        assert select.select([self._template.stdout], [], [], SECONDS)[0], root.with_suffix(".err").read_text()
        return int(self._template.stdout.readline())

    def finished(self, recipe: Path, root: Path, environment: Mapping[str, str]) -> dict[str, Any]:
        """The record of a run that must end well."""
        assert self.code_of(recipe, root, environment) == 0, root.with_suffix(".err").read_text()
        return json.loads(root.with_suffix(".json").read_text())

    def end(self) -> None:
        assert self._template.stdin is not None
        self._template.stdin.close()
        self._template.wait(SECONDS)


@pytest.fixture
def runs(mark: str, server_settings: dict[str, str]) -> Iterator[Runs]:
    """Runs whose processes carry the mark, on the shared server."""
    runs = Runs({**server_settings, MARK: mark})
    yield runs
    runs.end()


def test_killed_in_the_middle_of_every_stage_ends_with_the_digests_of_an_undisturbed_run(
    foundry: Path, tmp_path: Path, mark: str, runs: Runs
) -> None:
    """Each run goes on from the one before, which was killed in the stage before.

    The first kill is of a command with a Prefect server of its own; the others are forks and share a server, which
    takes a third of the time.
    """
    recipe, root, quiet = foundry / "foundry.toml", tmp_path / "disturbed", tmp_path / "quiet"
    undisturbed = runs.finished(recipe, quiet, counting(quiet, tmp_path / "quiet.log"))
    assert outcomes(undisturbed) == ["built"] * len(STAGES)
    renames = Counter((tmp_path / "quiet.log").read_text().split())
    builds = {entry["stage"]: entry["identity"] for entry in undisturbed["stages"]}
    for stage, build in builds.items():
        environment = counting(root, tmp_path / f"{stage}.log", f"{build}:{renames[build] // 2 + 1}")
        if stage == STAGES[0]:
            code = code_of_a_command_whose_server_is_seen(recipe, root, {**environment, MARK: mark}, runs.template)
        else:
            code = runs.code_of(recipe, root, environment)
        assert code == -signal.SIGKILL, f"{stage}: {root.with_suffix('.err').read_text()}"
        assert list(root.glob(f"work/{build}.*")), f"{stage} left no work to go on from"
        assert not (root / "artifacts" / stage).exists(), f"{stage} was published before its middle"
        assert left_over(mark, runs.template) == [], f"processes outlived the run that was killed in {stage}"
    again = runs.finished(recipe, root, {})
    assert contents(again) == contents(undisturbed)
    assert outcomes(again) == ["reused"] * (len(STAGES) - 1) + ["built"]
    for stage, build in builds.items():
        manifest = json.loads((root / "artifacts" / stage / build / "manifest.json").read_text())
        assert manifest["timings"]["resumed"], f"{stage} began anew"
    assert not list((root / "work").iterdir())


def code_of_a_command_whose_server_is_seen(
    recipe: Path, root: Path, environment: Mapping[str, str], template: int
) -> int:
    """How a run ends that is a command. A search that cannot find what lives would never find what is left over."""
    process = start(recipe, root, environment)
    deadline, seen = time.monotonic() + SECONDS, False
    while process.poll() is None and not seen and time.monotonic() < deadline:
        found = processes_of(environment[MARK])
        seen = any("server" in words for number, words in found.items() if number not in (process.pid, template))
        time.sleep(0.05)
    code = process.wait(SECONDS)
    assert seen, "the search for processes does not see the server of a run"
    return code


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
