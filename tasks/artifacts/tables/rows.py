"""Rows of the tables that stages pass on, as `Table.to_pylist` gives them: their columns, by the schemas' names.

Where a table is read with some of its columns, its rows have these alone.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NotRequired, TypedDict, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

Row = TypeVar("Row")


def rows_of(table: "pa.Table", kind: type[Row]) -> list[Row]:
    """Return the rows of a table, which are of this kind."""
    del kind
    return table.to_pylist()


class Origin(TypedDict):
    """The file and the record that a document was read from."""

    path: str
    record: int
    byte: int


class DocumentRow(TypedDict):
    """A row of DOCUMENTS."""

    doc_id: bytes
    piece: int
    source: str
    lang: str | None
    text: str
    text_digest: bytes
    origin: Origin
    meta: str | None
    text_kind: str | None


class LedgerRow(TypedDict):
    """A row of LEDGER; `evidence` is JSON."""

    doc_id: bytes
    piece: int
    stage: str
    action: str
    rule: str
    value: float | None
    limit: float | None
    bytes_in: int
    bytes_out: int
    evidence: str | None


EventRow = TypedDict(
    "EventRow",
    {
        "seq": int,
        "time": float,
        "step": int,
        "attempt": int,
        "kind": str,
        "class": str,
        "positions": list[int],
        "detail": str,
    },
)
"""A row of EVENTS of a training; `detail` is JSON."""


class RejectRow(TypedDict):
    """A row of REJECTS."""

    source: str
    path: str
    record: int
    byte: int
    reason: str
    excerpt: str


class ItemRow(TypedDict):
    """A row of ITEMS."""

    benchmark: str
    item_id: str
    lang: str | None
    context: str
    choices: list[str]
    answer: str
    match_text: str
    answers: list[str] | None
    ending: str | None


class LeakRow(TypedDict):
    """A row of LEAKS; one of an item that did not leak has no document."""

    benchmark: str
    item_id: str
    state: str
    form: str
    doc_id: bytes | None
    piece: int | None
    start: int | None
    end: int | None
    matched: int
    total: int
    remains: int


class SpanRow(TypedDict):
    """A row of SPANS."""

    row: int
    tok_start: int
    tok_len: int
    doc_id: bytes
    piece: int
    start: int
    end: int


class SequenceRow(TypedDict):
    """A row of SEQUENCES; only rows of pairs have `is_next`, which is None for a single text."""

    row: int
    source: str
    tokens: list[int]
    loss_start: int
    is_next: NotRequired[bool | None]


class StepRow(TypedDict):
    """A row of STEPS."""

    step: int
    attempt: int
    pos_start: int
    pos_end: int
    row_pieces: int
    applied: bool


class ScoreRow(TypedDict):
    """A row of SCORES."""

    task: str
    metric: str
    shots: int
    subset: str
    n: int
    value: float | None
    stderr: float | None
    note: str


class ItemScoreRow(TypedDict):
    """A row of ITEM_SCORES."""

    task: str
    item_id: str
    shots: int
    state: str
    metric: str
    value: float


class GapRow(TypedDict):
    """A row of GAPS."""

    task: str
    metric: str
    shots: int
    leaked_n: int
    clean_n: int
    difference: float
    stderr: float | None
    p: float
    beyond_chance: bool


class SampleRow(TypedDict):
    """A row of SAMPLES."""

    prompt: str
    text: str
    temperature: float
    seed: int
    truth: str | None


@dataclass(frozen=True)
class Survivor:
    """The document that was kept in the place of a duplicate: what dedup's LEDGER has as evidence."""

    survivor: str
    """Its id, hexadecimal."""
    jaccard: float | None = None
    """True similarity; None where passages were cut."""
    earlier: str | None = None
    """Identity of the artifact of an earlier run that has it."""

    @staticmethod
    def of(evidence: str | None) -> "Survivor | None":
        """Return the survivor that the evidence of a LEDGER row names; None where it names none."""
        try:
            named = json.loads(evidence or "null")
        except json.JSONDecodeError:
            return None
        if not isinstance(named, dict) or "survivor" not in named:
            return None
        return Survivor(named["survivor"], named.get("jaccard"), named.get("earlier"))
