"""What a stage knows of whoever works on its parts: an executor takes a function and gives results as they are done."""

import itertools
import queue
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Work(Generic[Result]):
    """What is done to every part: `function(index, *arguments(index))`."""

    function: Callable[..., Result]
    """Travels once to each process that works: a module-level function, or a `functools.partial` of one."""
    name: Callable[[int], str]
    """The file of a part, for errors."""
    arguments: Callable[[int], tuple[Any, ...]] = lambda index: ()
    """What belongs to one part and travels with it."""


class Executor(Protocol):
    """Works on parts. What decides a stage's bytes never depends on the order in which they are done, nor on where."""

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """(index, result) of every part in `indices`, as they are done.

        An error of the function is raised as it is. Raises Infra where workers die.
        """
        ...

    def await_files(self, folder: Path, names: Iterable[str]) -> None:
        """Return once this machine sees the files that workers wrote into `folder`."""
        ...


AHEAD = 2
"""Parts that are handed out for each worker: the one it is at, and the next."""

IDLE_SECONDS = 5.0


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
