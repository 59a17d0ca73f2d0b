"""Process the parts of a stage on the workers of a Dask cluster.

Dask transfers the function and its arguments to a worker and a part's report back; the part's bytes are written
directly into the build's folder, which all machines share. Parts of a dead worker or machine are given to others. A
late worker does no harm: units are renamed into place, and a build that was taken over has another folder."""

import importlib.util
import json
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.checksummed_json import read_sealed_text
from model.errors import Infra, RecipeError
from tasks.artifacts.workspace import Workspace
from tasks.common.work import PARTS_PER_WORKER, Result, Work, run_in_flight
from tasks.execution.dask_worker import MOST_LOSSES, Job, PoisonedPart, count_losses, run_part, share_job

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 30.0
WORKERLESS_SECONDS = 300.0
"""How long a cluster may have no worker: machines that are restarted need minutes."""
MOST_RETURNS = 5
"""Times that a part is submitted again after Dask gave it up."""
LARGEST_JOB = "4 GiB"
"""Dask warns above 10 MB; a table of n-grams is larger, and is sent once."""
MARKS = "marks"

VISIBLE_SECONDS = 120.0
"""By default NFS shows new entries of a folder after 60 s at the latest."""

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class DaskCluster:
    """The workers of the scheduler at `address`, for a build in `workspace`."""

    address: str
    workspace: Workspace
    workerless_seconds: float = WORKERLESS_SECONDS

    def map(self, work: Work[Result], indices: Sequence[int]) -> Generator[tuple[int, Result]]:
        """Yield (index, result) for every part in `indices` as it is finished.

        Raises InputError if a worker does not see the build's folder or has other versions, Infra if no scheduler
        responds, there is no worker for `workerless_seconds`, or two workers died at the same part.
        """
        if not indices:
            return
        check_dask()
        from distributed.comm.core import CommClosedError

        try:
            yield from self._map(work, indices)
        except CommClosedError as error:
            # A request may fail before the client's status shows that the scheduler died.
            raise _lost(self.address) from error

    def _map(self, work: Work[Result], indices: Sequence[int]) -> Iterator[tuple[int, Result]]:
        import dask.config
        import distributed

        token = uuid.uuid4().hex[:12]
        marks = self.workspace.scratch(MARKS) / token
        sent = _job(work, self.workspace, marks)
        client = _connect(self.address)
        try:
            marks.mkdir()
            _await_workers(client, self.address, self.workerless_seconds)
            # Submitted and not scattered: if all workers that hold it die, the scheduler computes it on others.
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": LARGEST_JOB}):
                job = client.submit(share_job, sent, pure=False)
            attempts: Counter[int] = Counter()

            def submit(index: int) -> Any:
                key = (f"{sent.stage}-{token}", index, attempts[index])
                return client.submit(run_part, job, index, work.arguments(index), key=key, pure=False)

            def should_retry(index: int, error: BaseException) -> bool:
                attempts[index] += 1
                if isinstance(error, PoisonedPart) or count_losses(marks, index) >= MOST_LOSSES:
                    raise Infra(
                        f"{MOST_LOSSES} workers died while they processed part {index}, {work.name(index)}: most likely"
                        f" it needs more memory than they have. Finished parts are kept: give each worker more memory"
                        f" or fewer threads, look at the part (`bessemer data peek`), and run again."
                    ) from None
                if client.status != "running":
                    raise _lost(self.address) from error
                if not isinstance(error, distributed.KilledWorker):
                    return False
                # Dask also gives up parts that only waited at a worker that died.
                if attempts[index] > MOST_RETURNS:
                    raise Infra(
                        f"workers of the cluster at {self.address} keep dying ({error}). Finished parts are kept: check"
                        f" the workers' logs, and run again."
                    ) from error
                return True

            threads = _threads(client)
            check = _watch(client, self.address, self.workerless_seconds)
            yield from run_in_flight(
                submit, indices, max(1, PARTS_PER_WORKER * threads), should_retry=should_retry, on_idle=check
            )
        finally:
            client.close()
            shutil.rmtree(marks, ignore_errors=True)

    def await_files(self, folder: Path, names: Iterable[str]) -> None:
        """Return once this machine sees the files that workers wrote into `folder`; Infra if some are still missing
        after VISIBLE_SECONDS."""
        wanted = set(names)
        deadline = time.monotonic() + VISIBLE_SECONDS
        # The folder itself, which a worker made, may not be visible yet.
        while missing := wanted.difference(os.listdir(folder) if folder.is_dir() else ()):
            if time.monotonic() > deadline:
                raise Infra(
                    f"{folder}: {len(missing)} files that other machines wrote, such as {min(missing)}, are not visible"
                    f" here after {VISIBLE_SECONDS:.0f} s. Is the artifact root a file system that all machines share?"
                    f" Finished parts are kept: repair it and run again."
                )
            time.sleep(POLL_SECONDS)


def check_dask() -> None:
    """Raise RecipeError if Dask is not installed."""
    if importlib.util.find_spec("distributed") is None:
        raise RecipeError(
            "machines.address names a Dask cluster, which needs the extra `dask` here and on every machine:"
            " pip install 'bessemer[dask]'"
        )


def _connect(address: str) -> "Client":
    from distributed import Client

    _check_address(address)
    try:
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="bessemer")
    except OSError as error:
        raise Infra(
            f"no Dask scheduler responds at {address} ({error}). Start one (`dask scheduler`,"
            f" deployments/local/dask.sh), or correct machines.address."
        ) from error


def _check_address(address: str) -> None:
    """Raise RecipeError for an address without a port, or one that needs certificates that Dask does not know: a client
    that fails because of them cannot be closed, which takes a minute."""
    from distributed.comm.addressing import parse_address, parse_host_port
    from distributed.security import Security

    scheme, place = parse_address(address)
    try:
        if scheme in ("tcp", "tls"):
            parse_host_port(place)
    except ValueError as error:
        raise RecipeError(f"machines.address = {address} cannot be used ({error})") from error
    if scheme in ("tls", "wss") and Security().get_connection_args("client")["ssl_context"] is None:
        raise RecipeError(
            f"machines.address = {address} cannot be used without certificates: name them in Dask's own configuration,"
            f" distributed.comm.tls"
        )


def _job(work: Work[Any], workspace: Workspace, marks: Path) -> Job:
    assert workspace.identity_file is not None, "a cluster processes parts of a build, whose folder names its identity"
    identity = read_sealed_text(workspace.identity_file, "Run again: it is rewritten.").decode()
    return Job.of(json.loads(identity)["stage"], work.function, workspace.identity_file, identity, marks)


def _await_workers(client: "Client", address: str, seconds: float) -> None:
    try:
        client.wait_for_workers(1, timeout=seconds)
    except TimeoutError as error:
        raise _workerless(address, seconds) from error


def _watch(client: "Client", address: str, seconds: float) -> Callable[[float], None]:
    """Return a check that raises Infra if the scheduler is lost, or had no worker for `seconds`; it is called while no
    part is finished, with the seconds since one was."""
    seen = time.monotonic()

    def check(idle: float) -> None:
        nonlocal seen
        if client.status != "running":
            raise _lost(address)
        if _threads(client):
            seen = time.monotonic()
        elif min(idle, time.monotonic() - seen) > seconds:
            raise _workerless(address, seconds)

    return check


def _threads(client: "Client") -> int:
    """Return the number of threads of all workers together."""
    by_worker: Any = client.nthreads()
    return sum(by_worker.values())


def _lost(address: str) -> Infra:
    return Infra(
        f"the connection to the Dask scheduler at {address} is lost. Finished parts are kept: restart it and run again."
    )


def _workerless(address: str, seconds: float) -> Infra:
    return Infra(
        f"the Dask scheduler at {address} had no worker for {seconds:.0f} s. Finished parts are kept: start workers"
        f" (`dask worker {address}`) and run again."
    )
