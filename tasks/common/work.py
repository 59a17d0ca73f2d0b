"""The interface between a stage and the executor that processes its parts, and a bounded window of futures."""

import itertools
import queue
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Work(Generic[Result]):
    """What is done with every part: `function(index, *arguments(index))`."""

    function: Callable[..., Result]
    """Sent once to each worker process: a module-level function, or a `functools.partial` of one."""
    name: Callable[[int], str]
    """Returns the file of a part, for errors."""
    arguments: Callable[[int], tuple[Any, ...]] = lambda index: ()
    """Returns what is sent along with one part."""


class Executor(Protocol):
    """Processes parts. The bytes of a stage's result never depend on where, or in which order, parts are processed."""

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """Yield (index, result) for every part in `indices` as it is finished.

        Errors of the function are raised unchanged. Raises Infra if workers die.
        """
        ...

    def await_files(self, folder: Path, names: Iterable[str]) -> None:
        """Return once this machine sees the files that workers wrote into `folder`."""
        ...


PARTS_PER_WORKER = 2
"""Parts submitted for each worker: the one in progress, and the next."""

IDLE_SECONDS = 5.0


def run_in_flight(
    submit: Callable[[int], Any],
    indices: Sequence[int],
    limit: int,
    *,
    should_retry: Callable[[int, BaseException], bool] = lambda index, error: False,
    on_idle: Callable[[float], None] = lambda seconds: None,
) -> Iterator[tuple[int, Any]]:
    """Keep at most `limit` futures in flight and yield (index, result) as they finish; cancel the rest at an error.

    The futures are those of the standard library or of Dask. `should_retry` gets an error and returns whether to submit
    the part again, or raises another error; `on_idle` is called every few seconds while no future finishes, with the
    seconds since one did.
    """
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    waiting = iter(indices)
    pending: dict[int, Any] = {}

    def start(index: int) -> None:
        pending[index] = future = submit(index)
        future.add_done_callback(lambda future: done.put((index, future)))

    try:
        for index in itertools.islice(waiting, limit):
            start(index)
        idle = 0.0
        while pending:
            try:
                index, future = done.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                idle += IDLE_SECONDS
                on_idle(idle)
                continue
            idle = 0.0
            try:
                result = future.result()
            except BaseException as error:
                if not should_retry(index, error):
                    raise
                start(index)
                continue
            del pending[index]
            for following in itertools.islice(waiting, 1):
                start(following)
            yield index, result
    finally:
        for future in pending.values():
            future.cancel()
