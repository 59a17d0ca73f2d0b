"""Rows of the tables that stages pass on, as `Table.to_pylist` gives them; the schemas follow from these types.

Where a table is read with some of its columns, its rows have these alone.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

Row = TypeVar("Row")

DOC_ID_BYTES = 16
Digest = Annotated[bytes, DOC_ID_BYTES]
Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
UInt64 = Annotated[int, "uint64"]
Float32 = Annotated[float, "float32"]
LongText = Annotated[str, "large_string"]
RepeatedName = Annotated[str, "dictionary"]
"""Columns that are not of the usual Arrow type of their values: `tasks.artifacts.tables.schema.COLUMN_TYPES`."""


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
    """A row of DOCUMENTS; `meta` is JSON with the format and the URL where they are known."""

    doc_id: Digest
    piece: Int16
    source: RepeatedName
    lang: RepeatedName | None
    text: LongText
    text_digest: Digest
    origin: Origin
    meta: str | None
    text_kind: RepeatedName | None
    """One of `tasks.clean.document.KINDS`; None before clean."""


class LedgerRow(TypedDict):
    """A row of LEDGER; `evidence` is JSON."""

    doc_id: Digest
    piece: Int16
    stage: str
    action: str
    rule: str
    value: Float32 | None
    limit: Float32 | None
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
    doc_id: Digest | None
    piece: Int16 | None
    start: int | None
    end: int | None
    matched: Int32
    total: Int32
    remains: Int32


class SpanRow(TypedDict):
    """A row of SPANS."""

    row: int
    tok_start: Int32
    tok_len: Int32
    doc_id: Digest
    piece: Int16
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


HELDOUT, LANGUAGE = "heldout/", "language/"
"""Beginnings of the tasks of SCORES that are held-out text, by source and by language."""

HELDOUT_ALL = f"{HELDOUT}all"
"""The plain mean of the sources."""


class ScoreRow(TypedDict):
    """A row of SCORES."""

    task: str
    metric: str
    shots: Int32
    subset: str
    n: int
    value: float | None
    stderr: float | None
    note: str


class ItemScoreRow(TypedDict):
    """A row of ITEM_SCORES: the primary metric of an item, which is 1 or 0 for right or wrong, else a share from 0 to 1
    (chrF: 0 to 100). `state` is that of LEAKS."""

    task: str
    item_id: str
    shots: Int32
    state: str
    metric: str
    value: float


class GapRow(TypedDict):
    """A row of GAPS: `difference` is the mean of leaked items less that of clean ones, in the primary metric; `p` the
    share of random divisions with a difference as large."""

    task: str
    metric: str
    shots: Int32
    leaked_n: int
    clean_n: int
    difference: float
    stderr: float | None
    p: float
    beyond_chance: bool


class DocumentScoreRow(TypedDict):
    """A row of DOCUMENT_SCORES: `metric` is that of SCORES whose value is the sum of `bits` over the sum of `bytes`.
    Sources that the vocabulary cannot represent without loss have no rows."""

    source: str
    doc_id: Digest
    piece: Int16
    metric: str
    bits: float
    bytes: int


class SampleRow(TypedDict):
    """A row of SAMPLES: `text` is what follows the prompt, up to the end of text or `sample_tokens`. Where the prompt
    has blanks (`tasks.evaluate.samples.BLANK`), it is what the model puts there, and `truth` what the text has there,
    both with `BETWEEN` from one blank to the next."""

    prompt: str
    text: str
    temperature: float
    seed: UInt64
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
