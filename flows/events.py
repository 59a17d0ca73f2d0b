"""What happens to a run that somebody may want to be told of, as events of the Prefect server.

An event is named `bessemer.KIND` and belongs to its flow run: it stands in the feed of the run's page, and automations
can act on it (docs/operations.md).

| kind | when |
|---|---|
| spike, skipped_step, rollback, recovered, diverged, restart, ... | the trainer says so (`tasks/train/task.py`) |
| leak | benchmark items remain in the training text, or more than a tenth of a benchmark's items were found there |
| source_wiped | a rule or dedup would have removed more of a source than its limit allows |
| stopped | another limit that protects the user ended the run |
| promotion_blocked | a model was not made the current one |
| disowned | a process ended because the server had ended its run (`flows/disowned.py`) |
"""

from collections.abc import Mapping, Sequence
from typing import Any

from prefect.events import emit_event
from prefect.runtime import flow_run

from model.errors import BessemerError, GuardError
from tasks.artifact import Artifact
from tasks.wipeout import SourceWiped

MOST_LEAKED = 0.1
"""Share of a benchmark's items found in the text, above which it is an event."""


def tell_event(kind: str, /, **facts: Any) -> None:
    """Have the server know that `bessemer.KIND` happened to the current flow run; nothing outside of one.

    Facts are what JSON can hold. The event goes out from a thread of Prefect's own: nobody waits for the server.
    """
    if flow_run.id is None:
        return
    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name or ""}
    emit_event(f"bessemer.{kind}", resource=resource, payload=facts)


def tell_error(stages: Sequence[Mapping[str, Any]], error: BessemerError) -> None:
    """An event where a limit that protects the user ended the run; `stages` are those of its record."""
    if isinstance(error, GuardError):
        kind = "source_wiped" if isinstance(error, SourceWiped) else "stopped"
        tell_event(kind, stage=stages[-1]["stage"] if stages else "", error=str(error))


def tell_leaks(decontaminated: Artifact) -> None:
    """An event for each benchmark of which too much was found in the text, or some remains there."""
    for benchmark, counts in leaks_over_limit(decontaminated.report.facts.get("benchmarks", {})).items():
        tell_event("leak", benchmark=benchmark, **counts)


def leaks_over_limit(benchmarks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Counts of those benchmarks of which more than a tenth of the items leaked, or any remains in the text."""
    return {
        name: dict(counts)
        for name, counts in benchmarks.items()
        if counts["remains"] or counts["leaked"] > MOST_LEAKED * counts["items"]
    }
