"""What a training left out or went back from, with the documents that it concerned."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.lineage import documents_at
from tasks.artifact import Artifact

SINGLE = ("spike", "skipped_step")
"""Kinds of EVENTS that left out one step by its numbers."""
MOST_STEPS, MOST_DOCUMENTS = 20, 8


def left_out(artifacts: dict[str, Artifact]) -> list[dict[str, Any]]:
    """The ways back, then the first steps that were left out one by one; each with its positions of ORDER, their number
    of documents, and some of these by source and file."""
    if "train" not in artifacts:
        return []
    train = artifacts["train"]
    lines = [
        {
            "kind": "rollback" if decision["by"] == "guard" else "by hand",
            "step": decision["step"],
            "to_step": decision["to_step"],
            "cause": decision["cause"],
            "settings": decision["settings"],
            **_documents(artifacts, *(decision["skipped"] or (0, 0))),
        }
        for decision in train.report.facts.get("decisions", ())
    ]
    # A run in which all stages stand reads no table.
    if not train.report.facts.get("training", {}).get("skipped_steps"):
        return lines
    events = train.table("events")
    alone = events.filter(pc.is_in(events.column("kind"), value_set=pa.array(SINGLE, pa.string()))).to_pylist()
    for event in alone[:MOST_STEPS]:
        begin, end = min(event["positions"]), max(event["positions"]) + 1
        lines.append({"kind": event["kind"], "step": event["step"], **_documents(artifacts, begin, end)})
    if len(alone) > MOST_STEPS:
        lines[-1]["more"] = len(alone) - MOST_STEPS
    return lines


def _documents(artifacts: dict[str, Artifact], begin: int, end: int) -> dict[str, Any]:
    found = documents_at(artifacts, begin, end) if end > begin else []
    shown = [{"doc_id": doc_id, "source": source, "path": path} for doc_id, source, path in found[:MOST_DOCUMENTS]]
    return {"positions": [begin, end], "documents": len(found), "some": shown}
