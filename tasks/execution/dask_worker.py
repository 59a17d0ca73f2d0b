"""The worker's side of a Dask cluster: check the build's folder and the versions, mark the part, process it.

A mark is an empty file in the build's folder while a part is processed. A killed worker leaves it behind, so that a
part that exhausts the memory of every worker is distinguished from parts that were lost together with it."""

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
from tasks.common.code_cache import cached_code_of
from tasks.common.code_fingerprint import module_file

MOST_LOSSES = 2
"""Workers that may die at one part before it counts as the cause."""


class PoisonedPart(Exception):
    """Raised on a worker for a part at which too many workers died; the driver reports it."""


@dataclass(frozen=True)
class Job:
    """What is sent to each worker once."""

    stage: str
    packed: bytes
    """The function, pickled: a worker unpickles it after it has checked versions, the scheduler never does."""
    identity_file: Path
    """File in the build's folder with the identity of the build: its code and libraries."""
    identity: str
    """Its text, as read by the driver."""
    marks: Path
    """Folder of the marks of this pass."""

    @staticmethod
    def of(stage: str, function: Callable[..., Any], identity_file: Path, identity: str, marks: Path) -> "Job":
        """Return the job of applying `function`, which must be picklable, to parts."""
        return Job(stage, pickle.dumps(function, protocol=5), identity_file, identity, marks)

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """What is applied to a part."""
        return pickle.loads(self.packed)  # from the cluster's own connection, on which everything is pickled

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the job without unpickling its function, also from worker to worker."""
        return Job, (self.stage, self.packed, self.identity_file, self.identity, self.marks)


def share_job(job: Job) -> Job:
    """Return the job, as a Dask result that workers pass to each other."""
    return job


def run_part(job: Job, index: int, arguments: tuple[Any, ...]) -> Any:
    """Return `job.function(index, *arguments)`, on a worker that produces the same bytes as the driver would.

    Raises InputError if this worker does not see the build's folder, or has other code or libraries; PoisonedPart if
    too many workers died at the part."""
    if not job.identity_file.exists():
        raise InputError(
            f"worker {_worker_name()} does not see {job.identity_file.parent}. All machines of a cluster need the"
            f" artifact root under the same path, on a file system that they share."
        )
    check_agreement(job.identity)
    if count_losses(job.marks, index) >= MOST_LOSSES:
        raise PoisonedPart
    mark = job.marks / f"{index}.{uuid.uuid4().hex[:12]}"
    mark.touch()
    try:
        return job.function(index, *arguments)
    finally:
        mark.unlink(missing_ok=True)


def count_losses(marks: Path, index: int) -> int:
    """Return the number of workers that died at a part or process it now."""
    return len(list(marks.glob(f"{index}.*")))


@functools.lru_cache(maxsize=16)
def check_agreement(identity: str) -> None:
    """Raise InputError if this process has other code or libraries than those of `identity`."""
    stated = json.loads(identity)
    if difference := _difference(stated["code"], stated["libs"]):
        raise InputError(
            f"worker {_worker_name()} has other versions than the build of {stated['stage']} ({difference}), and would"
            f" produce other bytes. Install the driver's version on its machine, restart the worker, and run again;"
            f" finished parts are kept."
        )


def _difference(code: Mapping[str, Any], libs: Mapping[str, str]) -> str | None:
    try:
        mine = cached_code_of(tuple(code["roots"]))
        versions = library_versions(name for name in libs if name != ENVIRONMENT)
    except (Bug, metadata.PackageNotFoundError) as error:
        return str(error)
    difference = first_difference({"code": code, "libs": libs}, {"code": mine.to_json(), "libs": versions})
    if difference is not None:
        return difference
    # A file that is newer than this process may differ from the code that was loaded.
    started = psutil.Process().create_time()
    for module in sorted({name.partition(":")[0] for name in mine.definitions if ":" in name}):
        if module_file(module).stat().st_mtime > started:
            return f"{module} was edited after the worker had started"
    return None


def _worker_name() -> str:
    return f"{platform.node()} (process {psutil.Process().pid})"
