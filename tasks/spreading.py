"""One function over many parts: in this process, in threads or processes of this machine, or on a cluster.

Results come as they are done, and what decides a stage's bytes never depends on their order. Few parts are on their way
at a time, so that what belongs to one (its fates, say) is made when it is needed.
"""

import itertools
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from model.errors import Infra
from model.parent_death import die_with_parent
from tasks.machines import THREADS, Spread
from tasks.workspace import Workspace

Result = TypeVar("Result")
AHEAD = 2
"""Parts that are handed out for each worker: the one it is at, and the next."""
IDLE_SECONDS = 5.0


@dataclass(frozen=True)
class Work(Generic[Result]):
    """What is done to every part: `function(index, *arguments(index))`."""

    function: Callable[..., Result]
    """Travels once to each process that works: a module-level function, or a `functools.partial` of one."""
    name: Callable[[int], str]
    """The file of a part, for errors."""
    arguments: Callable[[int], tuple[Any, ...]] = lambda index: ()
    """What belongs to one part and travels with it."""


def spread(
    work: Work[Result], indices: Sequence[int], where: Spread, workspace: Workspace
) -> Iterator[tuple[int, Result]]:
    """(index, result) of every part in `indices`, as they are done.

    An error of the function is raised as it is. Raises Infra where workers die: one process of a pool, or on a cluster
    two on the same part.
    """
    if where.on_many_machines:
        from tasks.cluster import on_cluster

        yield from on_cluster(work, indices, str(where.machines.address), workspace)
    elif where.workers <= 1 or len(indices) <= 1:
        for index in indices:
            yield index, work.function(index, *work.arguments(index))
    elif where.executor == THREADS:
        with ThreadPoolExecutor(where.workers) as pool:
            yield from in_flight(
                lambda index: pool.submit(work.function, index, *work.arguments(index)), indices, AHEAD * where.workers
            )
    else:
        yield from _in_processes(work, indices, min(where.workers, len(indices)))


def in_flight(
    submit: Callable[[int], Any],
    indices: Sequence[int],
    room: int,
    *,
    troubled: Callable[[int, BaseException], bool] = lambda index, error: False,
    idle: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Any]]:
    """Keep `room` futures on their way; (index, result) as they are done. Those that have not begun are cancelled at an
    error.

    The futures are those of the standard library or of Dask. `troubled` hears of an error and tells whether to hand the
    part out again, or raises another; `idle` is called now and then while nothing is done.
    """
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    waiting = iter(indices)
    flying: dict[int, Any] = {}

    def start(index: int) -> None:
        flying[index] = future = submit(index)
        future.add_done_callback(lambda future: done.put((index, future)))

    try:
        for index in itertools.islice(waiting, room):
            start(index)
        while flying:
            try:
                index, future = done.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                idle()
                continue
            try:
                result = future.result()
            except BaseException as error:
                if not troubled(index, error):
                    raise
                start(index)
                continue
            del flying[index]
            for following in itertools.islice(waiting, 1):
                start(following)
            yield index, result
    finally:
        for future in flying.values():
            future.cancel()


def _in_processes(work: Work[Result], indices: Sequence[int], workers: int) -> Iterator[tuple[int, Result]]:
    def died(index: int, error: BaseException) -> bool:
        if isinstance(error, BrokenExecutor):
            raise Infra(
                f"a worker process died while it worked on {work.name(index)} (often the kernel, when memory runs out)."
                f" Finished parts are kept; with fewer workers each has more memory."
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
