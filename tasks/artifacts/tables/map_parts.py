"""Map part i of the documents to part i of the result: equal bytes on every executor, resumed from finished parts."""

import functools
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from model.errors import InputError
from tasks.artifacts.artifact import Artifact, artifact_at
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import read_table, table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.work import Executor, Work

MOST_PARTS = 100_000
"""Unit names have five digits, so that they sort in order."""


@dataclass
class PartResult:
    """The result of one part: tables by name (`documents`, `ledger`, ...) and its share of the report."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    report: StageReport = field(default_factory=StageReport)


PartFunction = Callable[..., PartResult]


def map_parts(
    workspace: Workspace,
    parent: Artifact,
    function: PartFunction,
    executor: Executor,
    *,
    about: Callable[[int], tuple[Any, ...]] = lambda index: (),
) -> StageReport:
    """Apply `function(documents of part i, i, *about(i))` to every part, write its tables as unit i, and return the
    merged report.

    `function` must be picklable (a module-level function or a `functools.partial` of one), and so must `about(i)`,
    which is called when part i is submitted. The worker that reads a part checks its bytes. Units finished by an
    earlier, killed build are not run again. Raises GuardError as soon as the first parts exceed a limit whatever the
    others hold.
    """
    names = parent.names("documents")
    merged = OrderedMerge(workspace)
    waiting: list[int] = []
    for index in range(len(names)):
        report = workspace.finished(unit_name(index))
        if report is None:
            waiting.append(index)
        else:
            merged.add(index, report)
    finished = len(names) - len(waiting)
    workspace.advance(finished, len(names), "parts")
    work = Work(
        functools.partial(_map_part, workspace.for_worker(), parent.path, function),
        name=names.__getitem__,
        arguments=lambda index: (names[index], about(index)),
    )
    with closing(executor.map(work, waiting)) as results:
        for done, (index, report) in enumerate(results, start=finished + 1):
            merged.add(index, report)
            workspace.advance(done, len(names), "parts")
    workspace.await_units([unit_name(index) for index in waiting], executor)
    return merged.report


def work_on_missing(
    work: Work[Any], parts: int, scratch: Workspace, executor: Executor, advance: Callable[[int], None]
) -> None:
    """Do the work of each part whose unit an earlier, killed build has not left in `scratch`; `advance` is called with
    the number of parts done."""
    missing = [index for index in range(parts) if scratch.finished(unit_name(index)) is None]
    for done, _ in enumerate(executor.map(work, missing), start=parts - len(missing) + 1):
        advance(done)
    scratch.await_units([unit_name(index) for index in missing], executor)


class OrderedMerge:
    """Merges reports in the order of their parts, whatever the order of arrival, and checks the limits after each, so
    that a build ends at the same part for any number of workers. `on_merge` gets each part before the limits do."""

    def __init__(
        self, workspace: Workspace, on_merge: Callable[[int, StageReport], None] = lambda index, report: None
    ) -> None:
        self.report = StageReport()
        self._workspace = workspace
        self._on_merge = on_merge
        self._waiting: dict[int, StageReport] = {}
        self._next = 0

    def add(self, index: int, report: StageReport) -> None:
        """Add the report of part `index`."""
        self._waiting[index] = report
        while self._next in self._waiting:
            report = self._waiting.pop(self._next)
            self.report.merge(report)
            self._on_merge(self._next, report)
            self._next += 1
            self._workspace.check_so_far(self.report)


def unit_name(index: int) -> str:
    """Return the name of unit `index`: five digits, so that names sort in order. Raises InputError above MOST_PARTS."""
    if index >= MOST_PARTS:
        raise InputError(
            f"an artifact has {MOST_PARTS:,} parts at most, and this would be one more. Make parts larger, so that"
            f" there are a tenth as many: sample.part_bytes."
        )
    return f"{index:05d}"


def _map_part(
    workspace: Workspace, parent: Path, function: PartFunction, index: int, name: str, about: tuple[Any, ...]
) -> StageReport:
    result = function(read_table(artifact_at(parent).file(name)), index, *about)
    with workspace.unit(unit_name(index)) as unit:
        for table, rows in result.tables.items():
            write_table(unit, table, rows, table_file_name(table, unit_name(index)))
        unit.report = result.report
    return result.report
