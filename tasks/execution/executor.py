"""The executors of this machine (this process, threads, processes), and the choice of an executor by the settings.

Results are yielded as they are finished. Few parts are submitted at a time, so that the arguments of a part are made
when they are needed.
"""

import copy
import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import Bug, Infra
from model.processes import die_with_parent
from tasks.artifacts.workspace import Workspace
from tasks.common.work import PARTS_PER_WORKER, Executor, Result, Work, run_in_flight
from tasks.execution.machines import DASK, THREADS, Machines


def make_executor(machines: Machines, workers: int, workspace: Workspace, *, in_threads: bool) -> Executor:
    """Return the executor that the settings choose, for a build in `workspace`.

    `workers` is the number of threads or processes of this machine; a cluster has its own. `in_threads` says whether
    `auto` means threads: for functions that spend their time in compiled code that releases the GIL.
    """
    kind = machines.kind(in_threads=in_threads)
    if kind == DASK:
        from tasks.execution.dask import DaskCluster

        return DaskCluster(str(machines.address), workspace)
    return Threads(workers) if kind == THREADS else Processes(workers)


@dataclass(frozen=True)
class ThisProcess:
    """Processes one part after the other in this process."""

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """Yield (index, result) for every part in `indices`, in order."""
        for index in indices:
            yield index, work.function(index, *work.arguments(index))

    def await_files(self, folder: Path, names: Iterable[str]) -> None:
        """Return at once: this machine sees what it wrote."""


@dataclass(frozen=True)
class Threads(ThisProcess):
    """Processes `workers` parts at a time in threads."""

    workers: int

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """Yield (index, result) for every part in `indices` as it is finished."""
        if self.workers <= 1 or len(indices) <= 1:
            yield from super().map(work, indices)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            yield from run_in_flight(
                lambda index: pool.submit(work.function, index, *work.arguments(index)),
                indices,
                PARTS_PER_WORKER * self.workers,
            )


@dataclass(frozen=True)
class Processes(ThisProcess):
    """Processes `workers` parts at a time in child processes."""

    workers: int

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """Yield (index, result) for every part in `indices` as it is finished. Raises Infra if a process dies."""
        workers = min(self.workers, len(indices))
        if workers <= 1:
            yield from super().map(work, indices)
            return

        def died(index: int, error: BaseException) -> bool:
            if isinstance(error, BrokenExecutor):
                raise Infra(
                    f"a worker process died while it processed {work.name(index)} (often killed by the kernel when"
                    f" memory runs out). Finished parts are kept: run again with fewer workers, so that each has more"
                    " memory."
                ) from error
            return False

        with ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(os.getpid(), work.function),
        ) as pool:
            yield from run_in_flight(
                lambda index: pool.submit(_run_part, index, *work.arguments(index)),
                indices,
                PARTS_PER_WORKER * workers,
                should_retry=died,
            )


_function: Callable[..., Any]


def _start_worker(parent: int, function: Callable[..., Any]) -> None:
    global _function
    die_with_parent(parent)
    _function = function


def _run_part(index: int, *arguments: Any) -> Any:
    try:
        return _function(index, *arguments)
    except Exception as error:
        try:
            copy.deepcopy(error)  # Makes it again as the driver does.
        except Exception:
            # The pool would count an error that the driver cannot read as a dead process.
            raise Bug(f"{type(error).__name__}: {error}") from error
        raise
