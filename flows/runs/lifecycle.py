"""What happens to a run that somebody may want to be told of, as events of the Prefect server.

An event is named `bessemer.KIND` and belongs to its flow run: it stands in the feed of the run's page, and automations
can act on it (docs/operations.md).

| kind | when |
|---|---|
| spike, skipped_step, rollback, recovered, diverged, restart, ... | the trainer says so (`tasks/prefect_tasks.py`) |
| leak | benchmark items remain in the training text, or more than a tenth of a benchmark's items were found there |
| source_wiped | a rule or dedup would have removed more of a source than its limit allows |
| stopped | another limit that protects the user ended the run |
| promotion_blocked | a model was not made the current one |
| disowned | a process ended because the server had ended its run (`flows/runs/lifecycle.py`) |

How often a deployment whose runs crash is started again: an automation starts it, and knows no number.

Ends a process whose run the server has ended: one that slept while its run was given up, or was cut off from it.

A process that stands still for 90 seconds is called crashed by an automation, which starts another run. When it wakes
up, two would run; nothing that is built would be harmed by that (`tasks/artifacts/lease.py`), but a machine would be
shared for nothing, and a person who looks at the server would not know."""

import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter
from prefect.client.schemas.objects import State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run

from model.errors import BessemerError, GuardError, Infra
from model.files import DISK_FULL
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.drop_rate_limit import SourceWiped

MAX_LEAKED_SHARE = 0.1
"""Share of a benchmark's items found in the text, above which it is an event."""


def emit_run_event(kind: str, /, **facts: Any) -> None:
    """Have the server know that `bessemer.KIND` happened to the current flow run; nothing outside of one.

    Facts are what JSON can hold. The event goes out from a thread of Prefect's own: nobody waits for the server.
    """
    if flow_run.id is None:
        return
    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name or ""}
    emit_event(f"bessemer.{kind}", resource=resource, payload=facts)


def emit_guard_event(stages: Sequence[Mapping[str, Any]], error: BessemerError) -> None:
    """An event where a limit that protects the user ended the run; `stages` are those of its record."""
    if isinstance(error, GuardError):
        kind = "source_wiped" if isinstance(error, SourceWiped) else "stopped"
        emit_run_event(kind, stage=stages[-1]["stage"] if stages else "", error=str(error))


def emit_leak_events(decontaminated: Artifact) -> None:
    """An event for each benchmark of which too much was found in the text, or some remains there."""
    for benchmark, counts in leaks_over_limit(decontaminated.report.facts.get("benchmarks", {})).items():
        emit_run_event("leak", benchmark=benchmark, **counts)


def leaks_over_limit(benchmarks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Counts of those benchmarks of which more than a tenth of the items leaked, or any remains in the text."""
    return {
        name: dict(counts)
        for name, counts in benchmarks.items()
        if counts["remains"] or counts["leaked"] > MAX_LEAKED_SHARE * counts["items"]
    }


MAX_CRASHES = 4
"""Runs of a deployment that may crash, or fail for the machine's sake, one behind the other before the next one ends
as failed, for a person to look at."""


def check_crashes() -> None:
    """Raises GuardError, after which nothing is started again, where the last runs of this run's deployment have all
    crashed or failed for the machine's sake."""
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
            f"the last {MAX_CRASHES} runs of this deployment crashed or failed for the machine's sake, and it is not"
            f" started again by itself. Look at their logs and at the machine; what is built stands, and the next run"
            f" goes on from there: run once more, or by `bessemer run`"
        )


def as_bessemer_error(error: BessemerError | OSError) -> BessemerError:
    """The error that a run ends with: what its record or page met outside of any stage, a full disk say, is the
    machine's failure as it is within one. Other errors of the operating system are raised as they are."""
    if isinstance(error, BessemerError):
        return error
    if error.errno not in (*DISK_FULL, errno.EIO, errno.ESTALE):
        raise error
    where = error.filename or "a file under the root"
    return Infra(f"{where}: {error.strerror}; what is built is kept: free some space if that is it, and run again")


def machine_failed(state: State | None) -> bool:
    """Whether a run ended in a way after which it is started again."""
    return state is not None and (state.is_crashed() or (state.is_failed() and state.name == Infra.__name__))


SECONDS_BETWEEN_LOOKS = 30.0

SECONDS_TO_ANSWER = 10.0


@contextmanager
def exit_when_run_ends(seconds: float = SECONDS_BETWEEN_LOOKS) -> Iterator[None]:
    """Within this block the process ends when the server says that the current flow run has ended, or knows it no more.

    Runs without a deployment are somebody's own: nothing starts them again, and nothing ends them here.
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
        target=_watch, args=(context.flow_run, context.flow.name, get_run_logger(), done, seconds), daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        done.set()


def _watch(flow_run: Any, flow: str, log: Any, done: threading.Event, seconds: float) -> None:
    # Settings of its own keep Prefect from handing out the flow's client, which another thread uses.
    client = get_client(httpx_settings={"timeout": SECONDS_TO_ANSWER}, sync_client=True)
    while not done.wait(seconds):
        ended = _ended(client, flow_run.id)
        # The flow may have come to its own end while the server was asked.
        if ended is None or done.is_set():
            continue
        log.warning("the server has ended this run (%s), and its process ends too; what is built stands", ended)
        # The heartbeats that came late would else be missed, and the run called crashed once more.
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
        # At once, and as one that has nothing to report: the trainer dies with its parent, checkpoints stand.
        os._exit(0)


def _ended(client: Any, flow_run: Any) -> str | None:
    """The name of the state in which the server has ended the run; None where it goes on or nobody can say."""
    try:
        state = client.read_flow_run(flow_run).state
    except ObjectNotFound:
        return "deleted"
    except Exception:  # A server that does not answer ends nothing.
        return None
    return state.name if state is not None and state.is_final() else None
