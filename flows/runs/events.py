"""Events of a flow run, sent to its Prefect server.

An event is named `bessemer.KIND` and belongs to its flow run: it is shown on the run's page, and automations can act on
it (docs/operations.md).

| kind | when |
|---|---|
| spike, skipped_step, rollback, recovered, diverged, restart, ... | the trainer says so (`tasks/prefect_tasks.py`) |
| leak | benchmark items remain in the training text, or over a tenth of a benchmark's items were found there |
| source_wiped | a rule or dedup would have removed more of a source than its limit allows |
| stopped | another limit that protects the user ended the run |
| promotion_blocked | a model was not made the current one |
| disowned | a process ended because the server had ended its run (`flows/runs/lifecycle.py`) |"""

from collections.abc import Mapping, Sequence
from typing import Any

from prefect.events import emit_event
from prefect.runtime import flow_run

from model.errors import BessemerError, GuardError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.limits import SourceWiped
from tasks.artifacts.remote.metadata import StageEntry
from tasks.artifacts.results import BenchmarkCounts, DecontaminateResult

MAX_LEAKED_SHARE = 0.1
"""Share of a benchmark's items found in the text, above which an event is sent."""


def emit_run_event(kind: str, /, **facts: Any) -> None:
    """Send the event `bessemer.KIND` of the current flow run to the server; do nothing outside of one.

    Facts must be JSON values. A thread of Prefect sends the event, so this does not wait for the server.
    """
    if flow_run.id is None:
        return
    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name or ""}
    emit_event(f"bessemer.{kind}", resource=resource, payload=facts)


def emit_guard_event(stages: Sequence[StageEntry], error: BessemerError) -> None:
    """Send an event where a limit that protects the user ended the run; `stages` are those of its record."""
    if isinstance(error, GuardError):
        kind = "source_wiped" if isinstance(error, SourceWiped) else "stopped"
        emit_run_event(kind, stage=stages[-1]["stage"] if stages else "", error=str(error))


def emit_leak_events(decontaminated: Artifact) -> None:
    """Send an event for each benchmark of which too much was found in the text, or some remains there."""
    for benchmark, counts in leaks_over_limit(DecontaminateResult.of(decontaminated.report).benchmarks).items():
        emit_run_event("leak", benchmark=benchmark, **counts)


def leaks_over_limit(benchmarks: Mapping[str, BenchmarkCounts]) -> dict[str, BenchmarkCounts]:
    """Return the counts of benchmarks of which more than a tenth of the items leaked, or any remains in the text."""
    return {
        name: counts
        for name, counts in benchmarks.items()
        if counts["remains"] or counts["leaked"] > MAX_LEAKED_SHARE * counts["items"]
    }
