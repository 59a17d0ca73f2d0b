"""The law of conservation over a whole run: every document read has a fate, every row given to training was read."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow.compute as pc

from model.kept_rows import kept_steps
from tasks.artifact import Artifact
from tasks.report import StageReport

DOCUMENT_STAGES = ("sample", "clean", "dedup", "decontaminate", "chunk")


def conservation(artifacts: dict[str, Artifact], reports: dict[str, StageReport]) -> dict[str, Any]:
    """Whether every document that was read has a fate, and every position that training was given was read.

    `documents`: read = rejected + not selected + dropped + held out + what the last document stage let through;
    `positions` of ORDER: given = trained + skipped by the guard + not reached.
    """
    stages = [stage for stage in DOCUMENT_STAGES if stage in reports]
    if not stages or stages != list(DOCUMENT_STAGES[: len(stages)]):
        return {}
    totals = {stage: reports[stage].total() for stage in stages}
    last = stages[-1]
    documents = {
        "read": totals[stages[0]].documents_in,
        "rejected": sum(total.rejected for total in totals.values()),
        "not_selected": sum(total.not_selected for total in totals.values()),
        "dropped": {stage: total.dropped.total() for stage, total in totals.items() if total.dropped.total()},
        "held_out": sum(total.held_out for total in totals.values()),
        "packed" if last == "chunk" else "kept": totals[last].documents_out,
    }
    ends = (documents[fate] for fate in ("rejected", "not_selected", "held_out", "packed", "kept") if fate in documents)
    balanced = documents["read"] == sum(ends) + sum(documents["dropped"].values()) and all(
        totals[before].documents_out == totals[after].documents_in for before, after in pairwise(stages)
    )
    found: dict[str, Any] = {"documents": documents, "balanced": balanced}
    if "train" in artifacts and "chunk" in artifacts:
        found["positions"] = positions = _positions(artifacts)
        spent = positions["trained"] + positions["skipped"] + positions["not_reached"]
        found["balanced"] = found["balanced"] and spent == positions["given"]
        found["rows"] = _rows(artifacts)
    return found


def _positions(artifacts: dict[str, Artifact]) -> dict[str, int]:
    steps = kept_steps(artifacts["train"].table("steps"))
    applied = steps.filter(steps.column("applied"))
    given = artifacts["chunk"].rows("order")
    reached = pc.max(steps.column("pos_end")).as_py() or 0
    trained = pc.sum(pc.subtract(applied.column("pos_end"), applied.column("pos_start"))).as_py() or 0
    return {"given": given, "trained": trained, "skipped": reached - trained, "not_reached": given - reached}


def _rows(artifacts: dict[str, Artifact]) -> dict[str, int]:
    rows = artifacts["chunk"].rows("sequences")
    read = len(np.unique(artifacts["chunk"].table("order").column("row").to_numpy()))
    return {"packed": rows, "in_order": read, "never_read": rows - read}


def conservation_line(found: dict[str, Any]) -> str:
    """The law as one line: `2,688 read = 12 rejected + 0 not selected + ...`; empty where nothing is known."""
    if not found:
        return ""
    documents = found["documents"]
    dropped = " + ".join(f"{count:,} dropped in {stage}" for stage, count in documents["dropped"].items())
    last = "packed" if "packed" in documents else "kept"
    fates = [
        f"{documents['rejected']:,} rejected",
        f"{documents['not_selected']:,} not selected",
        *([dropped] if dropped else []),
        f"{documents['held_out']:,} held out",
        f"{documents[last]:,} {last}",
    ]
    line = f"{documents['read']:,} documents read = {' + '.join(fates)}"
    if "positions" in found:
        positions = found["positions"]
        line += f"; {positions['given']:,} rows given = {positions['trained']:,} trained"
        for word in ("skipped", "not_reached"):
            if positions[word]:
                line += f" + {positions[word]:,} {word.replace('_', ' ')}"
    return line if found["balanced"] else f"{line} (DOES NOT BALANCE)"
