"""What each stage found besides counts by source: the facts of its report, under the keys of its manifest.

A stage writes a result with `facts`, and a reader of an artifact gets it back with `of`; values are those of JSON. An
optional one is absent from the manifest where it is None here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NotRequired, Self, TypedDict

from model.errors import InputError
from model.finetune.description import FinetuneDescription
from tasks.artifacts.report import StageReport


@dataclass(frozen=True)
class StageResult:
    """What the stage of this name found."""

    stage: ClassVar[str]

    def facts(self) -> dict[str, Any]:
        """Return the facts of the stage's report."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, report: StageReport) -> Self:
        """Return the result in a report of this stage; InputError where it has other facts than this version writes."""
        try:
            return cls(**report.facts)
        except TypeError as error:
            raise InputError(
                f"the manifest of {cls.stage} was written by another version: {error}. Run the stage again, or read it"
                f" with that version"
            ) from error

    @classmethod
    def among(cls, reports: Mapping[str, StageReport]) -> Self | None:
        """Return the stage's result in the reports of a run; None where it did not run."""
        return cls.of(reports[cls.stage]) if cls.stage in reports else None


class PlannedSource(TypedDict):
    """One line of the mixture table."""

    files: int
    bytes: int
    """UTF-8 bytes of text in the files, estimated from the beginning of some."""
    weight: float
    """Share of the budget by the recipe; all sources together 1."""
    target_tokens: int
    """Tokens that training reads, after the cap on repetition."""
    available_tokens: int
    """Tokens in the source: configured, measured by a pilot, or estimated from its bytes."""
    rate: float
    """Share of its documents to keep (0 to 1)."""
    epochs: float
    """Times that training reads the source."""
    asked_epochs: float
    """Epochs by its weight alone; more than `epochs` if the cap limits it."""
    slack: float
    """Tokens kept for every token that training reads."""


class RejectedFile(TypedDict):
    """A file with rejects: how many, and the reason of the first."""

    path: str
    records: int
    reason: str


@dataclass(frozen=True)
class SampleResult(StageResult):
    """What sample found, by source."""

    stage = "sample"
    mixture_plan: dict[str, PlannedSource]
    mixture_remarks: list[str]
    """Sentences."""
    files: dict[str, dict[str, int]]
    """Number of files that were read, and of others by why they were not."""
    records_passed_over: dict[str, int]
    """Number of records by `SOURCE: KIND`."""
    unreadable_records: dict[str, int]
    decoded_records: dict[str, int]
    """`SOURCE: ENCODING` -> documents whose file was not UTF-8."""
    rejected_files: dict[str, list[RejectedFile]]
    """Those with the most rejects."""


@dataclass(frozen=True)
class CleanResult(StageResult):
    """What clean found; parts add up."""

    stage = "clean"
    languages: dict[str, int] = field(default_factory=dict)
    """Kept documents."""
    kind_bytes_read: dict[str, int] = field(default_factory=dict)
    """Bytes of all documents by kind; those that a deny-list drops have none."""
    kind_bytes_kept: dict[str, int] = field(default_factory=dict)
    """After edits."""
    kind_bytes_dropped: dict[str, int] = field(default_factory=dict)
    """As read."""
    quality: dict[str, Any] | None = None
    """Scores of the quality classifier on sources that it has not seen."""
    classifiers: dict[str, Any] | None = None
    """Examples and held-out scores of those that were trained."""


class Clusters(TypedDict):
    """Kept documents that represent others, and the documents of the largest such cluster."""

    count: int
    largest: int


class InjectedCopies(TypedDict):
    """Recall of injected copies; `bins` are [from, to, pairs, found, expected share]."""

    pairs: int
    found: int
    recall: float | None
    low: float | None
    high: float | None
    threshold: float
    planted: int
    bins: list[list[Any]]


@dataclass(frozen=True)
class DedupResult(StageResult):
    """What dedup found."""

    stage = "dedup"
    clusters: Clusters
    s_curve: list[list[float]]
    """[true Jaccard similarity, chance that such a pair is compared]."""
    similarities: list[list[float]]
    """[from, to, near duplicates removed]."""
    planted: InjectedCopies
    signed_by_datasketch: int
    precision: str
    against: list[dict[str, Any]] | None = None
    """Identity and number of documents of the earlier artifacts whose copies were removed too."""


class BenchmarkCounts(TypedDict):
    """Items of a benchmark by state; `remains`: leaked and still in some text, `visible`: share that can be found."""

    items: int
    leaked: int
    clean: int
    unmatchable: int
    remains: int
    visible: float


class InjectedLeaks(TypedDict):
    """Recall of injected leaks over all and by form, and precision over all reports, with Wilson's 95% intervals."""

    planted: int
    found: int
    recall: float | None
    low: float | None
    high: float | None
    forms: dict[str, dict[str, Any]]
    near_misses: int
    precision: dict[str, Any]


@dataclass(frozen=True)
class DecontaminateResult(StageResult):
    """What decontaminate found."""

    stage = "decontaminate"
    benchmarks: dict[str, BenchmarkCounts]
    common_ngrams: list[dict[str, Any]]
    """Frequent n-grams that are no evidence by themselves: text, documents, why."""
    forms: dict[str, int]
    """Number of leaks by form."""
    leaked_documents: int
    planted: InjectedLeaks


class BaseVocabularySize(TypedDict):
    """Tokens of an extended base: all, those it never emits, and those in addition to the released ones."""

    pieces: int
    unreachable: int
    besides: int


class LanguageTokens(TypedDict):
    """A language's text under [base, extended]: `tasks.vocab.comparison.compare_vocabularies`."""

    characters: int
    tokens: list[int]
    tokens_per_character: list[float | None]
    tokens_per_word: list[float | None] | None
    byte_share: list[float]
    unknown_share: list[float]
    untouched_lines: int
    moved_lines: int


class UnknownShares(TypedDict):
    """Share of unknown tokens by source, of a vocabulary that has some."""

    unknown_share: NotRequired[dict[str, float]]


class Vocabulary(UnknownShares):
    """A vocabulary; one that was trained has `sampled_bytes` by source, an extended one has a base."""

    pieces: int
    model_type: str
    bytes_per_token: dict[str, float]
    sampled_bytes: NotRequired[dict[str, int]]
    base: NotRequired[BaseVocabularySize]
    added: NotRequired[dict[str, dict[str, Any]]]
    """By script; the sampled text never uses the unused ones."""
    languages: NotRequired[dict[str, LanguageTokens]]


@dataclass(frozen=True)
class VocabResult(StageResult):
    """What vocab made; its report also counts the documents by source."""

    stage = "vocab"
    vocabulary: Vocabulary


class MixedSource(TypedDict):
    """A source in what training reads, as GPT-3's table 2.2."""

    documents: int
    tokens: int
    rows: int
    padding_share: float
    weight: float
    planned_share: float
    realised_share: float
    reads: int
    planned_epochs: float
    epochs: float


class OrderSize(TypedDict):
    """Rows and tokens that training reads, and the tokens that the budget asks for."""

    reads: int
    tokens: int
    asked_tokens: int
    blank: NotRequired[int]


class RowFacts(TypedDict):
    """How rows are packed, and how many there are; `labels` counts the kinds of pairs."""

    objective: str
    denoising: NotRequired[str]
    whole_words: NotRequired[bool]
    packing: str
    row_length: int
    rows: int
    labels: NotRequired[dict[str, int]]


@dataclass(frozen=True)
class ChunkResult(StageResult):
    """What chunk packed."""

    stage = "chunk"
    mixture: dict[str, MixedSource]
    padding_share: float
    order: OrderSize
    rows: RowFacts
    spans: dict[str, int]
    phases: list[dict[str, Any]] | None = None
    """Where each part of the order begins, and what it reads by source."""


class BaseModel(TypedDict):
    """The model that training started from; with new rows of the embedding, how they were initialised."""

    weights: str
    new_rows: NotRequired[int]
    start: NotRequired[str]
    without_meaning: NotRequired[int]


class Training(TypedDict):
    """Steps, tokens, and losses in nats per predicted token."""

    steps: int
    skipped_steps: int
    rollbacks: int
    tokens: int
    first_loss: float | None
    last_loss: float | None
    seconds: float | None
    tokens_s: float | None


class Rollback(TypedDict):
    """A rollback or an intervention (`model.guard.decisions.Decision`)."""

    by: str
    cause: str
    step: int
    to_step: int
    skipped: list[int] | None
    settings: dict[str, Any]


@dataclass(frozen=True)
class TrainResult(StageResult):
    """What training measured."""

    stage = "train"
    training: Training
    exact: bool
    """Whether no data were skipped, no setting was changed on the way, and no rank was missing."""
    base_model: BaseModel | None = None
    decisions: list[Rollback] | None = None


class GateRises(TypedDict):
    """The share by which bits per byte rose from those of the base model, by source."""

    rises: dict[str, float]


@dataclass(frozen=True)
class EvaluateResult(StageResult):
    """What evaluate measured; scores are a table."""

    stage = "evaluate"
    headline: dict[str, float | None]
    gaps: list[dict[str, Any]]
    """Rows of GAPS that are beyond chance."""
    gate: GateRises | None = None


@dataclass(frozen=True)
class FinetuneResult(StageResult):
    """The description of a fine-tuned model, as `model.finetune.output` writes it."""

    stage = "finetune"
    finetuned: FinetuneDescription


Exported = TypedDict("Exported", {"model": str, "class": str, "tokenizer_class": str})


@dataclass(frozen=True)
class ExportResult(StageResult):
    """What loads an exported model in `transformers`."""

    stage = "export"
    exported: Exported
