"""Stages that map part i to part i: the same bytes for any number of workers, and resume from finished parts."""

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from model.errors import Infra
from model.parent_death import die_with_parent
from tasks.artifact import Artifact, read_table
from tasks.report import StageReport
from tasks.workspace import Workspace, table_file_name


@dataclass
class PartResult:
    """What a stage made of one part: tables by name (`documents`, `ledger`, ...) and its share of the report."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    report: StageReport = field(default_factory=StageReport)


PartFunction = Callable[[pa.Table, int], PartResult]


def map_parts(
    workspace: Workspace, parent: Artifact, function: PartFunction, workers: int, *, in_threads: bool = False
) -> StageReport:
    """Apply `function(documents of part i, i)` to every part and write its tables as unit i.

    `function` must be picklable (a module-level function or a `functools.partial` of one) when `workers` > 1, unless
    `in_threads`: for functions whose time goes into compiled code that releases the GIL.
    Returns the merged report in order of parts; units finished by an earlier, killed build are not run again.
    """
    parts = parent.files("documents")
    reports: dict[int, StageReport] = {}
    waiting: list[int] = []
    for index in range(len(parts)):
        report = workspace.finished(unit_name(index))
        if report is None:
            waiting.append(index)
        else:
            reports[index] = report
    workspace.advance(len(reports), len(parts), "parts")
    work = functools.partial(_map_part, workspace.for_worker(), function)
    if workers <= 1 or len(waiting) <= 1:
        for index in waiting:
            reports[index] = work(index, parts[index])
            workspace.advance(len(reports), len(parts), "parts")
    else:
        with _pool(min(workers, len(waiting)), in_threads) as pool:
            futures = {pool.submit(work, index, parts[index]): index for index in waiting}
            for future in as_completed(futures):
                try:
                    reports[futures[future]] = future.result()
                except BrokenExecutor as error:
                    raise Infra(
                        f"a worker process died while it worked on {parts[futures[future]].name} (often the kernel,"
                        f" when memory runs out). Finished parts are kept; with fewer workers each has more memory."
                    ) from error
                workspace.advance(len(reports), len(parts), "parts")
    return StageReport.merged(reports[index] for index in sorted(reports))


def _pool(workers: int, in_threads: bool) -> Executor:
    if in_threads:
        return ThreadPoolExecutor(workers)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        workers, mp_context=context, initializer=die_with_parent, initargs=(signal.SIGKILL, os.getpid())
    )


def unit_name(index: int) -> str:
    """The name of unit `index`: five digits, so that names sort in order."""
    return f"{index:05d}"


def _map_part(workspace: Workspace, function: PartFunction, index: int, path: Path) -> StageReport:
    result = function(read_table(path), index)
    with workspace.unit(unit_name(index)) as unit:
        for table, rows in result.tables.items():
            unit.write_table(table, rows, table_file_name(table, unit_name(index)))
        unit.report = result.report
    return result.report
