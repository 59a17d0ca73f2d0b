"""Every benchmark item of a run by name: leaked and where, clean, or unmatchable; from LEAKS alone."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from model.errors import InputError
from tasks.artifact import Artifact
from tasks.tables import read_table

STATES = ("leaked", "clean", "unmatchable")


def count_states(artifact: Artifact) -> list[dict[str, Any]]:
    """By benchmark, in order of the recipe: items, and how many are in each state."""
    return [
        {"benchmark": name, **{key: line[key] for key in ("items", *STATES, "remains")}}
        for name, line in artifact.report.facts.get("benchmarks", {}).items()
    ]


def list_items(artifacts: dict[str, Artifact], benchmarks: list[str], states: list[str]) -> list[dict[str, Any]]:
    """Items of the given benchmarks in the given states, in order: benchmark, item_id, state, and `leaks`.

    Each leak has the document, its path and record, the bytes that it shares, and how many of the item's patterns.

    Raises InputError for a benchmark that the run did not check.
    """
    artifact = artifacts["decontaminate"]
    known = [line["benchmark"] for line in count_states(artifact)]
    for name in benchmarks:
        if name not in known:
            raise InputError(f"leaks {name}: the run checked no benchmark of this name; it has {', '.join(known)}")
    table = artifact.table("leaks")
    for column, wanted in (("benchmark", benchmarks), ("state", states)):
        table = table.filter(pc.is_in(table.column(column), pa.array(wanted, pa.string())))
    origins = _origins(artifacts, set(table.column("doc_id").drop_null().to_pylist()))
    items: dict[tuple[str, str], dict[str, Any]] = {}
    for row in table.to_pylist():
        named = {name: row[name] for name in ("benchmark", "item_id", "state")}
        item = items.setdefault((row["benchmark"], row["item_id"]), {**named, "leaks": []})
        if row["doc_id"] is not None:
            found = {name: row[name] for name in ("form", "matched", "total", "start", "end", "remains")}
            item["leaks"].append({"doc_id": row["doc_id"].hex(), **origins.get(row["doc_id"], {}), **found})
    return list(items.values())


def _origins(artifacts: dict[str, Artifact], wanted: set[bytes]) -> dict[bytes, dict[str, Any]]:
    """Source, path and record of documents, as decontaminate read them."""
    found: dict[bytes, dict[str, Any]] = {}
    ids = pa.array(sorted(wanted), pa.binary(16))
    for path in artifacts["dedup"].files("documents") if wanted and "dedup" in artifacts else ():
        table = read_table(path).select(["doc_id", "source", "origin"])
        for row in table.filter(pc.is_in(table.column("doc_id"), ids)).to_pylist():
            origin = row["origin"]
            found[row["doc_id"]] = {"source": row["source"], "path": origin["path"], "record": origin["record"]}
    return found


def states_told(items: list[dict[str, Any]]) -> str:
    """`3 leaked, 3,957 clean, 40 unmatchable`."""
    counts = Counter(item["state"] for item in items)
    return ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state]) or "no items"
