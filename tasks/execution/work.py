"""What a stage knows of whoever works on its parts: an executor takes a function and gives results as they are done."""

from collections.abc import Callable, Generator, Iterable, Sequence
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
