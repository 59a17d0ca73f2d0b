"""How a flow run ends, and when it is started again.

`end_of_flow` gives a run its last state: an error's type is the state's name, and decides whether an automation starts
the run again. `check_crashes` limits how often a deployment whose runs crash is started again; the automation that
restarts it does not count.

`exit_when_run_ends` ends a process whose run the server has ended. An automation marks a process that was silent for 90
seconds as crashed and starts another run. If the first process wakes up, both would run: leases protect the artifacts
(`tasks/artifacts/lease.py`), but the machine would be shared for nothing, and the server would not show it."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from typing import Any, Generic, TypeVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed

from flows.runs.context import report_result
from model.errors import BessemerError, GuardError, Infra
from model.files import DISK_FULL
from tasks.execution.outcome import one_line

MAX_CRASHES = 4
"""Runs of a deployment in a row that may crash or fail because of the machine, before the next one fails for good."""


def check_crashes() -> None:
    """Raise GuardError, after which no automation restarts it, where the last runs of this deployment all crashed or
    failed because of the machine."""
    if deployment.id is None:
        return
    with get_client(sync_client=True) as client:
        earlier = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(id={"not_any_": [flow_run.id]}, start_time={"is_null_": False}),  # pyright: ignore[reportArgumentType]
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
            sort=FlowRunSort.START_TIME_DESC,
            limit=MAX_CRASHES,
        )
    if len(earlier) == MAX_CRASHES and all(machine_failed(run.state) for run in earlier):
        raise GuardError(
            f"the last {MAX_CRASHES} runs of this deployment crashed or failed because of the machine, so it is not"
            f" restarted automatically. Check their logs and the machine; finished artifacts are kept, and the next run"
            f" continues from there: start it again, or use `bessemer run`"
        )


def as_bessemer_error(error: BessemerError | OSError) -> BessemerError:
    """Return the error that a run ends with; a full or broken disk outside of any stage becomes Infra, as within one.

    Raises other errors of the operating system unchanged.
    """
    if isinstance(error, BessemerError):
        return error
    if error.errno not in (*DISK_FULL, errno.EIO, errno.ESTALE):
        raise error
    where = error.filename or "a file under the root"
    return Infra(
        f"{where}: {error.strerror}; finished artifacts are kept: free some space if the disk is full, and run again"
    )


Result = TypeVar("Result")


@dataclass(frozen=True)
class FlowEnd(Generic[Result]):
    """What a flow that went well hands back, and its state on the server in words."""

    data: Result
    message: str
    name: str = "Completed"


def end_of_flow(work: Callable[[], FlowEnd[Result]]) -> Result:
    """Return the state in which a flow ends: what `work` returns, or the error that it raises, of which the type is
    the state's name. Prefect gives the caller what the state holds: the data, or the error to raise."""
    try:
        end = work()
    except (BessemerError, OSError) as failed:
        error = as_bessemer_error(failed)
        report_result(error)
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    report_result(end.data)
    return Completed(name=end.name, message=end.message, data=end.data)  # pyright: ignore[reportReturnType]


def machine_failed(state: State | None) -> bool:
    """Return whether a run ended in a way after which it is restarted."""
    return state is not None and (state.is_crashed() or (state.is_failed() and state.name == Infra.__name__))


POLL_SECONDS = 30.0

SECONDS_TO_ANSWER = 10.0


@contextmanager
def exit_when_run_ends() -> Iterator[None]:
    """Within this block, end the process when the server has ended or deleted the current flow run.

    Does nothing for runs without a deployment, which no automation restarts.
    """
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    assert context.flow is not None
    if context.flow_run.deployment_id is None:
        yield
        return
    done = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(context.flow_run, context.flow.name, get_run_logger(), done), daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        done.set()


def _watch(flow_run: FlowRun, flow: str, log: Logger | LoggerAdapter[Any], done: threading.Event) -> None:
    # With settings of its own Prefect does not hand out the flow's client, which another thread uses.
    client = get_client(httpx_settings={"timeout": SECONDS_TO_ANSWER}, sync_client=True)
    while not done.wait(POLL_SECONDS):
        ended = _ended(client, flow_run.id)
        # The flow may have ended by itself while the server was asked.
        if ended is None or done.is_set():
            continue
        log.warning("the server has ended this run (%s), and its process ends too; finished artifacts are kept", ended)
        # Without this event the automation would miss the late heartbeats and mark the run as crashed again.
        emit_event(
            "bessemer.disowned",
            resource={"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name},
            related=[
                {
                    "prefect.resource.id": f"prefect.flow.{flow_run.flow_id}",
                    "prefect.resource.role": "flow",
                    "prefect.resource.name": flow,
                }
            ],
        )
        EventsWorker.drain_all(timeout=SECONDS_TO_ANSWER)
        # Exit at once and without reporting a state: the trainer dies with its parent, checkpoints are kept.
        os._exit(0)


def _ended(client: SyncPrefectClient, flow_run: UUID) -> str | None:
    """Return the name of the state in which the server has ended the run; None where it has not or does not answer."""
    try:
        state = client.read_flow_run(flow_run).state
    except ObjectNotFound:
        return "deleted"
    except Exception:  # A server that does not answer must not end the run.
        return None
    return state.name if state is not None and state.is_final() else None
