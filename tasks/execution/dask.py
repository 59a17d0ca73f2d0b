"""Parts of a stage on the workers of a Dask cluster, from within the stage.

Dask carries function and arguments there and a part's report back; the part's bytes go straight into the build's
folder, which all machines see. Parts of a worker that dies go to others, as they do where a whole machine is lost. What
a late worker still writes does no harm: units are renamed into place, and a build that another took over is elsewhere.
"""

import importlib.util
import json
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.checksummed_json import read_sealed_text
from model.errors import Infra, RecipeError
from tasks.artifacts.workspace import Workspace
from tasks.common.work import AHEAD, Result, Work, in_flight
from tasks.execution.arrival import await_files
from tasks.execution.dask_worker import MOST_LOSSES, Job, PoisonedPart, carry_out, losses, received

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 30.0
WORKERLESS_SECONDS = 300.0
"""A cluster may be without a worker for so long: machines that are started again need minutes."""
MOST_RETURNS = 5
"""Times that a part is handed out again after Dask gave it up."""
LARGEST_JOB = "4 GiB"
"""Dask warns of more than 10 MB; a table of n-grams is larger, and goes once."""
MARKS = "marks"


@dataclass(frozen=True)
class DaskCluster:
    """The workers of the scheduler at `address`, for a build in `workspace`."""

    address: str
    workspace: Workspace
    workerless_seconds: float = WORKERLESS_SECONDS

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """(index, result) of every part in `indices`, as they are done.

        Raises InputError where a worker does not see the build's folder or has other versions, Infra where no scheduler
        answers, no worker comes for `workerless_seconds`, or two workers died at the same part.
        """
        if not indices:
            return
        check_dask()
        with _loss_told(self.address):
            yield from _handed_out(work, indices, self.address, self.workspace, self.workerless_seconds)

    def await_files(self, folder: Path, names: Iterable[str]) -> None:
        """Return once this machine sees the files that workers wrote into `folder`; Infra where it does not."""
        await_files(folder, names)


def _handed_out(
    work: Work[Result], indices: Sequence[int], address: str, workspace: Workspace, workerless_seconds: float
) -> Iterator[tuple[int, Result]]:
    import dask.config
    import distributed

    token = uuid.uuid4().hex[:12]
    marks = workspace.scratch(MARKS) / token
    sent = _job(work, workspace, marks)
    client = _connect(address)
    try:
        marks.mkdir()
        _await_workers(client, address, workerless_seconds)
        # Computed and not scattered: where all workers that had it died, the scheduler gives it to others again.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": LARGEST_JOB}):
            job = client.submit(received, sent, pure=False)
        turns: Counter[int] = Counter()

        def submit(index: int) -> Any:
            key = (f"{sent.stage}-{token}", index, turns[index])
            return client.submit(carry_out, job, index, work.arguments(index), key=key, pure=False)

        def troubled(index: int, error: BaseException) -> bool:
            turns[index] += 1
            if isinstance(error, PoisonedPart) or losses(marks, index) >= MOST_LOSSES:
                raise Infra(
                    f"{MOST_LOSSES} workers died while they worked on part {index}, {work.name(index)}: most likely it"
                    f" needs more memory than they have. Finished parts are kept: give each worker more memory or fewer"
                    f" threads, look at the part (`bessemer data peek`), and run again."
                ) from None
            if client.status != "running":
                raise _lost(address) from error
            if not isinstance(error, distributed.KilledWorker):
                return False
            # Dask also gives up parts that only waited at workers that died.
            if turns[index] > MOST_RETURNS:
                raise Infra(
                    f"workers of the cluster at {address} die again and again ({error}). Finished parts are kept: see"
                    f" the workers' logs, and run again."
                ) from error
            return True

        threads = _threads(client)
        idle = _watch(client, address, workerless_seconds)
        yield from in_flight(submit, indices, max(1, AHEAD * threads), troubled=troubled, idle=idle)
    finally:
        client.close()
        shutil.rmtree(marks, ignore_errors=True)


def check_dask() -> None:
    """Raises RecipeError where Dask is not installed."""
    if importlib.util.find_spec("distributed") is None:
        raise RecipeError(
            "machines.address names a Dask cluster, which needs the extra `dask` here and on every machine:"
            " pip install 'bessemer[dask]'"
        )


def _connect(address: str) -> "Client":
    from distributed import Client

    try:
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="bessemer")
    except (OSError, ValueError) as error:
        raise Infra(
            f"no Dask scheduler answers at {address} ({error}). Start one (`dask scheduler`,"
            f" deployments/local/dask.sh), or correct machines.address."
        ) from error


def _job(work: Work[Any], workspace: Workspace, marks: Path) -> Job:
    assert workspace.identity_file is not None, "parts go to a cluster within a build, whose folder says what is built"
    identity = read_sealed_text(workspace.identity_file, "Run again: it is written anew.").decode()
    return Job.of(json.loads(identity)["stage"], work.function, workspace.identity_file, identity, marks)


def _await_workers(client: "Client", address: str, seconds: float) -> None:
    try:
        client.wait_for_workers(1, timeout=seconds)
    except TimeoutError as error:
        raise _workerless(address, seconds) from error


def _watch(client: "Client", address: str, seconds: float) -> Callable[[], None]:
    """Raises Infra once the scheduler is gone, or has had no worker for too long."""
    seen = time.monotonic()

    def look() -> None:
        nonlocal seen
        if client.status != "running":
            raise _lost(address)
        if _threads(client):
            seen = time.monotonic()
        elif time.monotonic() - seen > seconds:
            raise _workerless(address, seconds)

    return look


def _threads(client: "Client") -> int:
    """Of all workers together."""
    by_worker: Any = client.nthreads()
    return sum(by_worker.values())


@contextmanager
def _loss_told(address: str) -> Iterator[None]:
    """A question that the scheduler dies over may fail before the client's status tells of its death."""
    from distributed.comm.core import CommClosedError

    try:
        yield
    except CommClosedError as error:
        raise _lost(address) from error


def _lost(address: str) -> Infra:
    return Infra(f"the Dask scheduler at {address} is gone. Finished parts are kept: start it again and run again.")


def _workerless(address: str, seconds: float) -> Infra:
    return Infra(
        f"the Dask scheduler at {address} had no worker for {seconds:.0f} s. Finished parts are kept: start workers"
        f" (`dask worker {address}`) and run again."
    )
