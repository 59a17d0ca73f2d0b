"""What the metrics of a run consist of: JSON values, a class for each kind of line; and lines about tokenizers.

`flows/metrics/run_metrics.py` collects them; the run page, tables, charts and comparisons read them.
"""

from typing import Any, NotRequired, TypedDict

from flows.runs.guards import Gate
from flows.runs.lineage import NetworkLine
from flows.runs.run_documents import NamedDocument
from tasks.artifacts import results
from tasks.artifacts.tables.rows import GapRow, ScoreRow


class StageAmount(TypedDict):
    """The result of a stage, in documents or its own unit."""

    amount: int
    unit: str


class SourceAmounts(TypedDict):
    """A source's documents before and after a stage, and the bytes after it."""

    documents_in: int
    documents_out: int
    bytes_out: int


class StageLine(TypedDict):
    """A stage of the run; those that did not run have no more than `stage` and `outcome`."""

    stage: str
    outcome: str
    seconds: NotRequired[float]
    """Of this run."""
    cause: NotRequired[str]
    identity: NotRequired[str]
    content: NotRequired[str]
    error: NotRequired[str]
    built_seconds: NotRequired[float]
    """Of the build, which may have been in an earlier run."""
    bytes: NotRequired[int]
    by_source: NotRequired[dict[str, SourceAmounts]]
    result: NotRequired[StageAmount]


class FunnelLine(TypedDict):
    """Documents of a source: all that were read, what each stage passed on, and what was held out."""

    source: str
    read: int
    sample: NotRequired[int]
    clean: NotRequired[int]
    dedup: NotRequired[int]
    decontaminate: NotRequired[int]
    chunk: NotRequired[int]
    held_out: int


class RuleLine(TypedDict):
    """The documents that a rule dropped or edited."""

    stage: str
    rule: str
    documents: int
    by_source: dict[str, int]


class SourceLine(results.MixedSource):
    """The mixture's line of a source."""

    source: str


class Sampling(TypedDict):
    """What sample planned and passed over."""

    mixture_plan: dict[str, results.PlannedSource]
    mixture_remarks: list[str]
    records_passed_over: dict[str, int]


class BenchmarkLine(results.BenchmarkCounts):
    """The items of a benchmark by state."""

    benchmark: str


class RowLine(results.RowFacts):
    """How rows are packed, and how much of them is padding."""

    padding_share: float


class BaseModelLine(results.BaseModel):
    """The model that training started from: the recipe's folder, and what was trainable."""

    folder: str | None
    trainable: str


class SkippedDocuments(TypedDict):
    """Positions [begin, end) of ORDER, the number of documents in their rows, and the first of these."""

    positions: list[int]
    documents: int
    first_documents: list[NamedDocument]


class SkippedLine(SkippedDocuments):
    """A rollback of a training, a decision by hand, or a single step that was skipped."""

    kind: str
    step: int
    to_step: NotRequired[int]
    cause: NotRequired[str]
    settings: NotRequired[dict[str, Any]]
    further_steps: NotRequired[int]
    """Steps that have no line."""


BitsLine = TypedDict(
    "BitsLine",
    {
        "source": str,
        "model": NotRequired[float | None],
        "5gram": NotRequired[float | None],
        "unigram": NotRequired[float | None],
        "xz": NotRequired[float | None],
        "model_new": NotRequired[float | None],
        "5gram_new": NotRequired[float | None],
        "model_repeated": NotRequired[float | None],
        "5gram_repeated": NotRequired[float | None],
        "n": int,
        "stderr": float | None,
        "note": str,
    },
)
"""Bits per byte of a held-out source, of the model and its baselines; `new` and `repeated`: of text that training did
not read, or read too."""


class HeldoutLine(TypedDict):
    """A held-out metric of a BERT or T5 on a source, and the value of its baseline."""

    metric: str
    source: str
    value: float | None
    stderr: float | None
    n: int
    note: str
    baseline: float | None


class CommonNgram(TypedDict):
    """A frequent n-gram that is no evidence of a leak by itself, and why."""

    text: str
    documents: int
    why: str


class LeakSearch(TypedDict):
    """How well leaks are found."""

    planted: results.InjectedLeaks
    common_ngrams: list[CommonNgram]


class EarlierIndex(TypedDict):
    """An earlier artifact whose copies were removed too."""

    identity: str
    documents: int


class Duplicates(TypedDict):
    """What was found of duplicates, and how well."""

    clusters: results.Clusters
    planted: results.InjectedCopies
    s_curve: list[list[float]]
    similarities: list[list[float]]
    against: NotRequired[list[EarlierIndex]]


class DocumentCounts(TypedDict):
    """Documents by outcome: read = rejected + not selected + dropped + held out + packed or kept."""

    read: int
    rejected: int
    empty: NotRequired[int]
    """Of the rejected: files of 0 bytes."""
    not_selected: int
    dropped: dict[str, int]
    """By stage."""
    held_out: int
    packed: NotRequired[int]
    """What chunk passed on."""
    kept: NotRequired[int]
    """What the last stage passed on, where that is another."""


class PositionCounts(TypedDict):
    """Positions of ORDER: given = trained + skipped by the guard + not reached."""

    given: int
    trained: int
    skipped: int
    not_reached: int


class RowCounts(TypedDict):
    """Rows that were packed, and of these the ones that ORDER names."""

    packed: int
    in_order: int
    never_read: int


class Conservation(TypedDict):
    """Documents and positions by outcome, and whether they add up."""

    documents: DocumentCounts
    balanced: bool
    positions: NotRequired[PositionCounts]
    rows: NotRequired[RowCounts]


class StageCost(TypedDict):
    """What a stage cost where it was built; watt-hours are None for a run that did not record its machine."""

    stage: str
    seconds: float
    watt_hours: float | None


class Cost(TypedDict):
    """What all stages cost."""

    stages: list[StageCost]
    seconds: float
    money: float | None
    """None where the run was given no price of an hour."""
    watt_hours: float | None
    assumption: str
    """How watt-hours were estimated, in words."""


class Metrics(TypedDict):
    """All metrics of a run. Those of a stage that did not run are empty."""

    stages: list[StageLine]
    files: dict[str, dict[str, int]]
    sampling: Sampling
    not_selected: dict[str, int]
    """Documents that sample read and left out, by the reason in words."""
    funnel: list[FunnelLine]
    languages: dict[str, int]
    remarks: list[str]
    removed: list[RuleLine]
    edited: list[RuleLine]
    mixture: list[SourceLine]
    rows: RowLine
    leaks: list[BenchmarkLine]
    leak_search: LeakSearch
    training: results.Training
    left_out: list[SkippedLine]
    model: NetworkLine
    base_model: BaseModelLine
    gate: Gate
    bits_per_byte: list[BitsLine]
    measures: list[HeldoutLine]
    repeated_text: str
    scores: list[ScoreRow]
    gaps: list[GapRow]
    tokens_per_character: dict[str, float]
    duplicates: Duplicates
    vocabulary: results.Vocabulary
    made: list[str]
    conservation: Conservation
    cost: Cost


class ModelScore(TypedDict):
    """Bits per byte of a text before any training, of its first `scored_bytes`; the note says why there are none."""

    bits_per_byte: float | None
    scored_bytes: int
    note: str


class ComparedTokenizer(ModelScore):
    """The tokens that a vocabulary needs for a text."""

    path: str
    kind: str
    pieces: int
    tokens: int
    tokens_per_character: float | None
    tokens_per_word: float | None
    byte_share: float
    unknown_share: float
    lines: int
    lost_lines: int
    """Lines that decoding changes."""
