"""Ends a process whose run the server has ended: one that slept while its run was given up, or was cut off from it.

A process that stands still for 90 seconds is called crashed by an automation, which starts another run. When it wakes
up, two would run; nothing that is built would be harmed by that (`tasks/lease.py`), but a machine would be shared for
nothing, and a person who looks at the server would not know.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger

SECONDS_BETWEEN_LOOKS = 30.0
SECONDS_TO_ANSWER = 10.0


@contextmanager
def ended_with_its_run(seconds: float = SECONDS_BETWEEN_LOOKS) -> Iterator[None]:
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
