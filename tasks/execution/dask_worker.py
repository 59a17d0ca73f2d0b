"""What a worker of a cluster does before it works on a part: see the build's folder, agree on versions, leave a mark.

A mark is an empty file in the build's folder while a part is worked on. A worker that is killed leaves it behind, so
that a part that takes the memory of each machine it comes to is told from parts that only lost theirs beside it.
"""

import functools
import json
import pickle
import platform
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from model.errors import Bug, InputError
from tasks.artifacts.identity import ENVIRONMENT, first_difference, library_versions
from tasks.common.code_fingerprint import code_of, module_file

MOST_LOSSES = 2
"""Workers that one part may cost before it is to blame."""


class PoisonedPart(Exception):
    """A part at which as many workers died as may; raised on a worker, told by the driver."""


@dataclass(frozen=True)
class Job:
    """What travels to each worker once."""

    stage: str
    packed: bytes
    """The function, pickled: nobody opens it who has not agreed on versions. A scheduler never does."""
    identity_file: Path
    """In the build's folder: the identity of what is built, with its code and libraries."""
    identity: str
    """Its text, as the driver has it."""
    marks: Path
    """Folder for the marks of this pass."""

    @staticmethod
    def of(stage: str, function: Callable[..., Any], identity_file: Path, identity: str, marks: Path) -> "Job":
        """The job of doing `function` to parts; it must be picklable."""
        return Job(stage, pickle.dumps(function, protocol=5), identity_file, identity, marks)

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """What is done to a part."""
        return pickle.loads(self.packed)  # it came over the cluster's own wire, on which everything is pickled

    def __reduce__(self) -> tuple[Any, ...]:
        """From worker to worker it goes unopened too."""
        return Job, (self.stage, self.packed, self.identity_file, self.identity, self.marks)


def received(job: Job) -> Job:
    """The job, as a result that workers hand each other."""
    return job


def carry_out(job: Job, index: int, arguments: tuple[Any, ...]) -> Any:
    """`job.function(index, *arguments)`, by a worker that makes the same bytes as the driver would.

    Raises InputError where this worker does not see the build's folder, or has other code or libraries; PoisonedPart
    where the part has cost enough workers.
    """
    if not job.identity_file.exists():
        raise InputError(
            f"worker {_me()} does not see {job.identity_file.parent}. All machines of a cluster need the artifact root"
            f" under the same path, on a file system that they share."
        )
    check_agreement(job.identity)
    if losses(job.marks, index) >= MOST_LOSSES:
        raise PoisonedPart
    mark = job.marks / f"{index}.{uuid.uuid4().hex[:12]}"
    mark.touch()
    try:
        return job.function(index, *arguments)
    finally:
        mark.unlink(missing_ok=True)


def losses(marks: Path, index: int) -> int:
    """Workers that died at a part, or are at it now."""
    return len(list(marks.glob(f"{index}.*")))


@functools.lru_cache(maxsize=16)
def check_agreement(identity: str) -> None:
    """Raises InputError where this process would compute with other code or libraries than those of `identity`."""
    stated = json.loads(identity)
    if told := _disagreement(stated["code"], stated["libs"]):
        raise InputError(
            f"worker {_me()} has other versions than the build of {stated['stage']} ({told}), and would make other"
            f" bytes. Install the driver's version on its machine, start the worker anew, and run again; finished parts"
            f" are kept."
        )


def _disagreement(code: Mapping[str, Any], libs: Mapping[str, str]) -> str | None:
    try:
        mine = code_of(code["roots"])
        versions = library_versions(name for name in libs if name != ENVIRONMENT)
    except (Bug, metadata.PackageNotFoundError) as error:
        return str(error)
    told = first_difference({"code": code, "libs": libs}, {"code": mine.to_json(), "libs": versions})
    if told is not None:
        return told
    # A file that is younger than this process may say something else than what was loaded from it.
    started = psutil.Process().create_time()
    for module in sorted({name.partition(":")[0] for name in mine.definitions if ":" in name}):
        if module_file(module).stat().st_mtime > started:
            return f"{module} was edited after the worker had started"
    return None


def _me() -> str:
    return f"{platform.node()} (process {psutil.Process().pid})"
