"""Documents and ledger rows of a run's artifacts, and an even, seeded choice among them."""

import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from model.errors import InputError
from tasks.artifact import Artifact
from tasks.seed import seed64, unit_interval
from tasks.tables import read_table

Row = dict[str, Any]


@dataclass(frozen=True)
class Chooser:
    """Which documents are shown: `count` of those that fit, the same ones for the same seed."""

    count: int
    seed: int
    source: str | None = None
    rule: str | None = None

    def choose(self, rows: Iterable[Row], key: Callable[[Row], bytes] = lambda row: row["doc_id"]) -> list[Row]:
        """The rows with the smallest numbers, where a row's number is a function of its document's id and the seed."""
        seed = seed64(self.seed, "peek", "choose", "")
        numbered = ((unit_interval(key(row), seed), index, row) for index, row in enumerate(rows))
        return [row for _, _, row in heapq.nsmallest(self.count, numbered, key=lambda entry: entry[:2])]


def need(artifacts: dict[str, Artifact], stage: str) -> Artifact:
    """The run's artifact of a stage; InputError where the run ended before it."""
    if stage not in artifacts:
        raise InputError(f"peek: this run has no artifact of the stage `{stage}`; it ended before it (`bessemer ls`)")
    return artifacts[stage]


def documents(artifact: Artifact, columns: list[str], table: str = "documents") -> Iterator[Row]:
    """Rows of a table of documents, one part in memory at a time."""
    for path in artifact.files(table):
        yield from read_table(path).select(columns).to_pylist()


def ledger_rows(artifact: Artifact, actions: tuple[str, ...], rule: str | None) -> Iterator[Row]:
    """Ledger rows with one of the actions; those of a `rule` where it is one of the edits or rules named."""
    for path in artifact.files("ledger"):
        table = read_table(path)
        for row in table.filter(pc.is_in(table.column("action"), value_set=pa.array(actions))).to_pylist():
            if rule is None or rule in rules_of(row):
                row["evidence"] = _evidence(row["evidence"])
                yield row


def rules_of(row: Row) -> list[str]:
    """The rule of a ledger row, or the edits of one, which stand merged in it."""
    return row["rule"].split("+")


def sources_of(artifact: Artifact) -> dict[bytes, str]:
    """Document -> source, for a choice by source."""
    return {row["doc_id"]: row["source"] for row in documents(artifact, ["doc_id", "source"])}


def texts_of(artifact: Artifact, wanted: Iterable[bytes]) -> dict[bytes, Row]:
    """Document -> its row with source, origin and text; the pieces of a cut document in `pieces`."""
    ids = pa.array(sorted(set(wanted)), pa.binary(16))
    found: dict[bytes, Row] = {}
    for path in artifact.files("documents"):
        table = read_table(path)
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            found.setdefault(row["doc_id"], {**row, "pieces": []})["pieces"].append(row["text"])
    return found


def _evidence(text: str | None) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
