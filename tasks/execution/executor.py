"""The executors of this machine: this process, threads or processes; and which one the settings ask for.

Results come as they are done. Few parts are on their way at a time, so that what belongs to one (its outcomes, say) is
made when it is needed.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import Infra
from model.processes import die_with_parent
from tasks.artifacts.workspace import Workspace
from tasks.common.work import AHEAD, Executor, Result, Work, in_flight
from tasks.execution.machines import DASK, THREADS, Machines


def make_executor(machines: Machines, workers: int, workspace: Workspace, *, in_threads: bool) -> Executor:
    """The executor that the settings ask for, for a build in `workspace`.

    `workers` are threads or processes of this machine, a cluster has its own number. `in_threads` says whether `auto`
    means threads: for functions whose time goes into compiled code that releases the GIL.
    """
    kind = machines.kind(in_threads=in_threads)
    if kind == DASK:
        from tasks.execution.dask import DaskCluster

        return DaskCluster(str(machines.address), workspace)
    return Threads(workers) if kind == THREADS else Processes(workers)


@dataclass(frozen=True)
class ThisProcess:
    """One part after the other, here."""

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """(index, result) of every part in `indices`, in their order."""
        for index in indices:
            yield index, work.function(index, *work.arguments(index))

    def await_files(self, folder: Path, names: Iterable[str]) -> None:
        """Return at once: what this machine wrote it sees."""


@dataclass(frozen=True)
class Threads(ThisProcess):
    """`workers` parts at a time, in threads."""

    workers: int

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """(index, result) of every part in `indices`, as they are done."""
        if self.workers <= 1 or len(indices) <= 1:
            yield from super().map(work, indices)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            yield from in_flight(
                lambda index: pool.submit(work.function, index, *work.arguments(index)), indices, AHEAD * self.workers
            )


@dataclass(frozen=True)
class Processes(ThisProcess):
    """`workers` parts at a time, in processes of their own."""

    workers: int

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """(index, result) of every part in `indices`, as they are done. Raises Infra where a process dies."""
        workers = min(self.workers, len(indices))
        if workers <= 1:
            yield from super().map(work, indices)
            return

        def died(index: int, error: BaseException) -> bool:
            if isinstance(error, BrokenExecutor):
                raise Infra(
                    f"a worker process died while it worked on {work.name(index)} (often the kernel, when memory runs"
                    f" out). Finished parts are kept; with fewer workers each has more memory."
                ) from error
            return False

        with ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(os.getpid(), work.function),
        ) as pool:
            yield from in_flight(
                lambda index: pool.submit(_carry_out, index, *work.arguments(index)),
                indices,
                AHEAD * workers,
                troubled=died,
            )


_function: Callable[..., Any]


def _begin(parent: int, function: Callable[..., Any]) -> None:
    global _function
    die_with_parent(signal.SIGKILL, parent)
    _function = function


def _carry_out(index: int, *arguments: Any) -> Any:
    return _function(index, *arguments)
