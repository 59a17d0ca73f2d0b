"""Builders that race, that are killed at any instant, and that wake up late: one whole artifact, and nothing lost.

Each case forks real processes. Instants are chosen by counting the byte codes that a builder runs in the modules that
hold the lease, finish units and commit, so that a thousand points lie evenly over the whole of it. What forks hundreds
of times runs in a program that has imported little, since a fork copies the tables of all memory.
"""

import os
import random
import select
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import model.files
import tasks.artifacts.artifact
import tasks.artifacts.build
import tasks.artifacts.lease
import tasks.artifacts.publish
import tasks.artifacts.workspace
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tests.joints.conftest import Tally
from tests.processes import in_a_program

POUR = Stage("pour", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
TRACED = {
    module.__file__
    for module in (
        model.files,
        tasks.artifacts.artifact,
        tasks.artifacts.build,
        tasks.artifacts.lease,
        tasks.artifacts.publish,
        tasks.artifacts.workspace,
    )
}
BUILT_IT, REUSED_IT, BROKE = 0, 1, 99
DEADLINE = 60.0


def quick_and_whole(quick: int, whole: int) -> pytest.MarkDecorator:
    """Parametrise `number`: how many cases the ordinary tests try, and how many the proof."""
    return pytest.mark.parametrize(
        "number", [pytest.param(quick, id="quick"), pytest.param(whole, id="whole", marks=pytest.mark.joints)]
    )


class PourConfig(StrictConfig):
    units: int = 4
    metal: str = "pig iron"


def pour(config: PourConfig, workspace: Workspace, calls: list[int]) -> StageReport:
    """A few parts of one row, a unit each."""
    reports = []
    for number in range(config.units):
        name = f"{number:05d}"
        report = workspace.finished(name)
        if report is None:
            calls.append(number)
            with workspace.unit(name) as unit:
                write_table(
                    unit, "documents", pa.table({"text": [f"ingot {number}"]}), table_file_name("documents", name)
                )
                unit.report.source("ore").documents_in = unit.report.source("ore").documents_out = 1
                report = unit.report
        reports.append(report)
    return StageReport.merged(reports)


def build(root: Path, calls: list[int], lease_seconds: float = 5.0, metal: str = "pig iron") -> Artifact:
    config = PourConfig(metal=metal)
    context = RunContext(root, "run", lease_seconds=lease_seconds)
    return build_artifact(context, POUR, config, {}, lambda workspace: pour(config, workspace, calls))


def fork(body: Callable[[], int]) -> int:
    """Run `body` in a child that ends with its value as exit code."""
    child = os.fork()
    if child:
        return child
    try:
        os._exit(body())
    except BaseException as error:
        os.write(2, f"child: {type(error).__name__}: {error}\n".encode())
        os._exit(BROKE)


def exit_code(child: int) -> int:
    """The child's exit code; minus the signal's number where one ended it."""
    end = os.pidfd_open(child)
    ended, _, _ = select.select([end], [], [], DEADLINE)
    os.close(end)
    if not ended:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert ended, f"process {child} did not end within {DEADLINE} s"
    return os.waitstatus_to_exitcode(status)


def builds(root: Path, **options: float) -> int:
    calls: list[int] = []
    build(root, calls, **options)
    return BUILT_IT if calls else REUSED_IT


class Instant:
    """Does something once when the given number of byte codes has run in the traced modules; counts them without."""

    def __init__(self, number: int = 0, action: Callable[[], object] = lambda: None) -> None:
        self.seen = 0
        self._number = number
        self._action = action

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.seen += 1
            if self.seen == self._number:
                self._action()
        return self


def traced_build(root: Path, instant: Instant, **options: float) -> int:
    sys.settrace(instant)
    try:
        return builds(root, **options)
    finally:
        sys.settrace(None)


def strike(signum: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


def snapshot(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file of every artifact: inode, time of last change, bytes."""
    return {
        str(path.relative_to(root)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.glob("artifacts/*/*/*"))
    }


def left_over(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.glob("work/*")]


def in_small_forks(cases: Callable[[Tally, Path, int], Tally], tally: Tally, folder: Path, number: int) -> None:
    """Count so many cases of a function of this module, which forks for each."""
    vars(tally).update(vars(in_a_program(cases, tally, folder, number)))


@quick_and_whole(100, 1000)
def test_two_builders_race(tmp_path: Path, joint: Any, number: int) -> None:
    with joint("races of two builders: one build each") as tally:
        in_small_forks(races, tally, tmp_path, number)


def races(tally: Tally, folder: Path, number: int) -> Tally:
    undisturbed, both_built = build(folder / "undisturbed", []).content, 0
    for race in range(number):
        root = folder / f"{race}"
        ready, start = os.pipe()

        def racer(root: Path = root, ready: int = ready, start: int = start) -> int:
            os.close(start)
            os.read(ready, 1)  # returns when the parent closes its end
            return builds(root)

        children = [fork(racer), fork(racer)]
        os.close(start)
        codes = sorted(exit_code(child) for child in children)
        os.close(ready)
        both_built += codes == [BUILT_IT, BUILT_IT]
        (artifact,) = (Artifact.open(path) for path in root.glob("artifacts/pour/*"))
        whole = artifact.content == undisturbed and artifact.verify() == []
        fine = codes == [BUILT_IT, REUSED_IT] and whole and not left_over(root)
        tally.expect(fine, f"race {race}: exit codes {codes}, left over {left_over(root)}")
        shutil.rmtree(root)
    tally.note = f"both built in {both_built}"
    return tally


@quick_and_whole(100, 1000)
def test_killed_at_any_instant(tmp_path: Path, joint: Any, number: int) -> None:
    """kill -9 from the lease to the last rename; what had been finished is not done again."""
    with joint("kill points from lease to commit: never a partial artifact") as tally:
        in_small_forks(kills, tally, tmp_path, number)


def kills(tally: Tally, folder: Path, number: int) -> Tally:
    undisturbed, published = build(folder / "undisturbed", []).content, 0
    prepared = folder / "prepared"
    before_commit = Instant()
    assert exit_code(fork(lambda: _stop_before_commit(prepared))) == -signal.SIGKILL
    counting = folder / "counting"
    shutil.copytree(prepared, counting)
    assert traced_build(counting, before_commit) == REUSED_IT  # no unit was left to do
    for kill in range(number):
        root = folder / "killed"
        shutil.copytree(prepared, root)
        point = 1 + kill * before_commit.seen // number
        child = fork(lambda root=root, point=point: traced_build(root, Instant(point, strike(signal.SIGKILL))))
        code = exit_code(child)
        seen = [Artifact.open(path) for path in root.glob("artifacts/*/*")]
        published += len(seen)
        whole = all(artifact.content == undisturbed and artifact.verify() == [] for artifact in seen)
        calls: list[int] = []
        again = build(root, calls, lease_seconds=0.3)
        kept = again.content == undisturbed and again.verify() == [] and calls == []
        build(root, [], metal="steel")  # the next build of anything sweeps what was left
        fine = code == -signal.SIGKILL and whole and kept and not left_over(root)
        tally.expect(fine, f"point {point}: exit {code}, whole {whole}, then {calls} again, {left_over(root)}")
        shutil.rmtree(root)
    tally.note = f"of {before_commit.seen} byte codes; {published} kills came after the rename"
    return tally


def _stop_before_commit(root: Path) -> int:
    """A builder that is killed when all its units are finished and nothing is published."""
    config = PourConfig()

    def run(workspace: Workspace) -> StageReport:
        pour(config, workspace, [])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    build_artifact(RunContext(root, "run"), POUR, config, {}, run)
    return BROKE


@quick_and_whole(8, 60)
def test_killed_again_and_again_goes_on_from_finished_units(tmp_path: Path, joint: Any, number: int) -> None:
    """Kills at random instants of the whole build, until one gets through: each costs one unit at most."""
    with joint("kills during the work: finished parts are kept") as tally:
        in_small_forks(kills_during_the_work, tally, tmp_path, number)


def kills_during_the_work(tally: Tally, folder: Path, number: int) -> Tally:
    undisturbed, killed = build(folder / "undisturbed", []).content, 0
    whole = Instant()
    assert traced_build(folder / "counting", whole) == BUILT_IT
    instants = random.Random(11)
    for case in range(number):
        root, units_before = folder / f"{case}", 0
        for _ in range(12):
            point = instants.randrange(whole.seen // 6, whole.seen // 2)
            code = exit_code(
                fork(lambda root=root, point=point: traced_build(root, Instant(point, strike(signal.SIGKILL))))
            )
            units = len(list(root.glob("work/*/units/*.json")))
            if code != -signal.SIGKILL:
                break
            killed += 1
            tally.expect(units >= units_before, f"case {case}: {units_before} finished units became {units}")
            units_before = units
        calls: list[int] = []
        artifact = build(root, calls)
        tally.expect(
            artifact.content == undisturbed and len(calls) <= PourConfig().units - units_before,
            f"case {case}: {units_before} units were finished, and {calls} were done again",
        )
    tally.note = f"{killed} kills"
    return tally


@quick_and_whole(60, 300)
def test_a_builder_that_wakes_up_late(tmp_path: Path, joint: Any, number: int) -> None:
    """SIGSTOP at any instant, another takes over and publishes, SIGCONT: nothing of the artifact is touched."""
    with joint("paused builders that wake up late: harm nothing") as tally:
        in_small_forks(pauses, tally, tmp_path, number)


def pauses(tally: Tally, folder: Path, number: int) -> Tally:
    undisturbed, taken_over = build(folder / "undisturbed", []).content, 0
    whole = Instant()
    assert traced_build(folder / "counting", whole) == BUILT_IT
    for pause in range(number):
        root = folder / f"{pause}"
        point = 1 + pause * whole.seen // number
        late = fork(lambda root=root, point=point: traced_build(root, Instant(point, strike(signal.SIGSTOP))))
        _, status = os.waitpid(late, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        calls: list[int] = []
        artifact = build(root, calls, lease_seconds=0.12)
        taken_over += bool(calls)
        published = snapshot(root)
        os.kill(late, signal.SIGCONT)
        code = exit_code(late)
        fine = code in (BUILT_IT, REUSED_IT) and artifact.content == undisturbed and artifact.verify() == []
        unmoved = snapshot(root) == published
        tally.expect(
            fine and unmoved and not left_over(root),
            f"pause {point} of {whole.seen}: exit {code}, untouched {unmoved}, left over {left_over(root)}",
        )
    tally.note = f"{taken_over} had their work taken over"
    return tally


def test_a_builder_that_wakes_up_late_writes_nothing_into_the_work_that_was_taken_over(tmp_path: Path) -> None:
    """What a build keeps beside its units, checkpoints say, is written in place: two writers would mix their states."""
    wrote, has_written = os.pipe()

    def stops_and_writes(workspace: Workspace) -> StageReport:
        state = workspace.scratch("state") / "step"
        state.write_text("before")
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            state.write_text("late")
        finally:
            os.write(has_written, b".")
        return pour(PourConfig(), workspace, [])

    def takes_over(workspace: Workspace) -> StageReport:
        os.kill(late, signal.SIGCONT)
        os.read(wrote, 1)
        assert (workspace.scratch("state") / "step").read_text() == "before"
        return pour(PourConfig(), workspace, [])

    def late_builder() -> int:
        context = RunContext(tmp_path, "run")
        return BUILT_IT if not build_artifact(context, POUR, PourConfig(), {}, stops_and_writes).reused else REUSED_IT

    late = fork(late_builder)
    _, status = os.waitpid(late, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    artifact = build_artifact(RunContext(tmp_path, "run", lease_seconds=0.12), POUR, PourConfig(), {}, takes_over)
    assert exit_code(late) == REUSED_IT
    assert artifact.verify() == []


def test_the_work_of_a_living_builder_is_left_alone(tmp_path: Path) -> None:
    """A build sweeps what killed builders left of published artifacts; one that is made again just now is no such."""
    build(tmp_path, [])

    def stops(workspace: Workspace) -> StageReport:
        report = pour(PourConfig(), workspace, [])
        os.kill(os.getpid(), signal.SIGSTOP)
        return report

    def again() -> int:
        context = RunContext(tmp_path, "run", forced=frozenset({"pour"}))
        made = build_artifact(context, POUR, PourConfig(), {}, stops)
        return BUILT_IT if made.outcome == tasks.artifacts.artifact.REPRODUCED else BROKE

    child = fork(again)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    under_way = left_over(tmp_path)
    build(tmp_path, [], metal="steel")
    left = left_over(tmp_path)
    os.kill(child, signal.SIGCONT)  # Before anything is asserted: a child that stays stopped would outlive the test.
    code = exit_code(child)
    assert left == under_way != []
    assert code == BUILT_IT
    assert not left_over(tmp_path)


def test_the_content_of_an_artifact_counts_names_and_bytes(tmp_path: Path) -> None:
    def content(place: str, files: dict[str, bytes]) -> str:
        def write(workspace: Workspace) -> StageReport:
            with workspace.unit("00000") as unit:
                for name, data in files.items():
                    unit.path(name).write_bytes(data)
                    unit.add_file(name)
            return StageReport()

        return build_artifact(RunContext(tmp_path / place, "run"), POUR, PourConfig(), {}, write).content

    assert content("1", {"a": b"x", "b": b"y"}) == content("2", {"b": b"y", "a": b"x"})
    assert content("3", {"a": b"y", "b": b"x"}) != content("1", {"a": b"x", "b": b"y"})
    assert content("4", {"a": b"y"}) != content("5", {"a": b"x"})
    assert content("6", {"a": b"x"}) != content("7", {"c": b"x"})
