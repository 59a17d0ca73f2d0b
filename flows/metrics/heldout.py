"""Held-out metrics, read from artifacts: what BERT and T5 are measured by, fair comparisons of two runs, tokens per
character, and what the notes of SCORES say about sampled items and few-shot examples.

BERT and T5 do not predict each next token, so that bits per byte do not apply (`HELDOUT_METRICS`).

Two runs whose data differ hold out different documents. Where near-duplicates are kept, the copy of a held-out document
may be in the training text, and bits per byte look better than the model is (Lee et al. 2022, section 6). Runs are
therefore compared over the documents that both held out and of which neither was trained on a copy (`fair_documents`).
"""

import functools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from flows.metrics.formatting import UNKNOWN_LANGUAGE, format_share, format_shots
from flows.metrics.lines import BitsLine, HeldoutLine
from flows.runs.run_documents import dropped_copies, parts_of, sample_parts
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.rows import HELDOUT_ALL, ScoreRow


@dataclass(frozen=True)
class HeldoutMetric:
    """A metric of SCORES on held-out text, and the baseline that guessing by frequency reaches."""

    metric: str
    words: str
    baseline: str = ""
    baseline_words: str = ""
    is_share: bool = False

    def format(self, value: float) -> str:
        """Return `2.310`, or `31.2%` where it is a share."""
        return f"{value:.1%}" if self.is_share else f"{value:.3f}"


HELDOUT_METRICS = (
    HeldoutMetric("pseudo_bits_per_byte", "pseudo-bits per byte"),
    HeldoutMetric("masked_nats_per_token", "nats per hidden token", "unigram_masked_nats_per_token", "by frequency"),
    HeldoutMetric(
        "masked_accuracy",
        "hidden tokens predicted correctly",
        "frequent_token_accuracy",
        "the most frequent one",
        is_share=True,
    ),
    HeldoutMetric(
        "next_accuracy",
        "pairs classified correctly",
        "majority_next_accuracy",
        "the more frequent answer",
        is_share=True,
    ),
    HeldoutMetric("target_nats_per_token", "nats per target of the decoder"),
    HeldoutMetric(
        "target_bits_per_byte",
        "bits per byte of the text that the decoder writes",
        "unigram_target_bits_per_byte",
        "by frequency",
    ),
)

METRICS_BY_NAME = {measure.metric: measure for measure in HELDOUT_METRICS}


def heldout_metrics(rows: Sequence[ScoreRow]) -> list[HeldoutLine]:
    """Return a line for each held-out metric and source from rows of SCORES, the source `all` last."""
    values = {(row["task"], row["metric"]): row["value"] for row in rows}
    ordered = sorted(rows, key=lambda row: (row["task"] == HELDOUT_ALL, row["task"]))
    return [
        {
            "metric": measure.metric,
            "source": row["task"].partition("/")[2],
            "value": row["value"],
            "stderr": row["stderr"],
            "n": row["n"],
            "note": row["note"],
            "baseline": values.get((row["task"], measure.baseline)),
        }
        for measure in HELDOUT_METRICS
        for row in ordered
        if row["metric"] == measure.metric
    ]


def format_heldout_metric(line: HeldoutLine) -> str:
    """Return `31.2% (the most frequent one 7.4%)`; a dash without a value."""
    measure = METRICS_BY_NAME[line["metric"]]
    if line["value"] is None:
        return "-"
    baseline = f" ({measure.baseline_words} {measure.format(line['baseline'])})" if line["baseline"] is not None else ""
    return f"{measure.format(line['value'])}{baseline}"


def summarize_heldout_metrics(lines: Sequence[HeldoutLine]) -> str:
    """Return the means over sources as one sentence; empty without any."""
    return ", ".join(
        f"{METRICS_BY_NAME[line['metric']].words} {format_heldout_metric(line)}"
        for line in lines
        if line["source"] == "all" and line["value"] is not None
    )


def mean_words(lines: Sequence[HeldoutLine | BitsLine]) -> str:
    """Return `, mean of the sources` for what the line `all` of `lines` says of several sources; empty for one."""
    sources = {line["source"] for line in lines if line["source"] != "all" and line.get("model", 0) is not None}
    return ", mean of the sources" if len(sources) > 1 else ""


DOCUMENT_SCORES = "document_scores"

Document = tuple[str, bytes, int, int]
"""(source, doc_id, piece, bytes)."""


@dataclass(frozen=True)
class HeldOut:
    """What a run held out: bits of each document, and the artifacts that know its copies."""

    bits: Mapping[str, Mapping[Document, float]] = field(default_factory=dict)
    """Metric of SCORES -> held-out document -> its bits."""
    dedup: Artifact | None = None
    decontaminate: Artifact | None = None

    def documents(self, metric: str) -> frozenset[Document]:
        """Return the documents that a metric was measured on."""
        return frozenset(self.bits.get(metric, {}))


def held_out(artifacts: Mapping[str, Artifact]) -> HeldOut:
    """Return what a run held out, from its artifacts; empty where evaluation kept no bits of single documents."""
    scores = artifacts.get("evaluate")
    bits: dict[str, dict[Document, float]] = defaultdict(dict)
    if scores is not None and scores.files(DOCUMENT_SCORES):
        for row in scores.table(DOCUMENT_SCORES).to_pylist():
            if row["bytes"]:
                bits[row["metric"]][row["source"], row["doc_id"], row["piece"], row["bytes"]] = row["bits"]
    return HeldOut(dict(bits), artifacts.get("dedup"), artifacts.get("decontaminate"))


def is_same_text(one: HeldOut, other: HeldOut) -> bool:
    """Return whether both runs were measured on the same documents, with the same copies in their training text."""
    documents = [{metric: run.documents(metric) for metric in run.bits} for run in (one, other)]
    dedups = [run.dedup.content if run.dedup is not None else None for run in (one, other)]
    return documents[0] == documents[1] and dedups[0] == dedups[1]


def fair_documents(one: HeldOut, other: HeldOut, metric: str) -> frozenset[Document]:
    """Return the documents that both held out and of which neither trained on a copy known to either's dedup."""
    both = one.documents(metric) & other.documents(metric)
    trained = [_trained(run.decontaminate.path) for run in (one, other) if run.decontaminate is not None]
    copies = [_copies(run.dedup.path) for run in (one, other) if run.dedup is not None]

    def is_seen(doc_id: bytes) -> bool:
        return any(known.get(doc_id, set()) & of_run for known in copies for of_run in trained)

    return frozenset(document for document in both if not is_seen(document[1]))


def mean_of_sources(run: HeldOut, metric: str, documents: frozenset[Document]) -> float:
    """Return the plain mean over sources of bits per byte of their documents, as `heldout/all` has it."""
    by_source: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        by_source[document[0]].append(document)
    bits = run.bits[metric]
    return statistics.fmean(
        math.fsum(bits[one] for one in of_source) / sum(one[3] for one in of_source) for of_source in by_source.values()
    )


@functools.lru_cache(maxsize=8)
def _trained(decontaminate: Path) -> frozenset[bytes]:
    """Return the ids of the documents that remained for training."""
    parts = parts_of(Artifact.open(decontaminate), "documents", ["doc_id"])
    return frozenset(doc_id for part in parts for doc_id in part.column("doc_id").to_pylist())


@functools.lru_cache(maxsize=8)
def _copies(dedup: Path) -> dict[bytes, set[bytes]]:
    """Return, for each document kept in place of copies, the documents that were dropped as its copies."""
    found: dict[bytes, set[bytes]] = defaultdict(set)
    for doc_id, kept in dropped_copies(Artifact.open(dedup)):
        found[kept].add(doc_id)
    return dict(found)


MAX_LANGUAGES, MIN_LANGUAGE_SHARE = 12, 0.002
"""Languages shown at most, and the least share of characters of one; misdetected languages would make a long list."""


def tokens_per_character(artifacts: dict[str, Artifact]) -> dict[str, float]:
    """Return tokens per character (Unicode code point) by language, the language with most text first.

    Measured on the packed text of some parts of the documents.
    """
    if "chunk" not in artifacts or "decontaminate" not in artifacts:
        return {}
    documents = [_sizes(read_table(path)) for _, path in sample_parts(artifacts["decontaminate"].files("documents"))]
    spans = [_lengths(read_table(path)) for _, path in sample_parts(artifacts["chunk"].files("spans"))]
    if not documents or not spans:
        return {}
    keys = ["doc_id", "piece"]
    together = pa.concat_tables(spans).group_by(keys).aggregate([("tok_len", "sum"), ("bytes", "sum")])
    joined = together.join(pa.concat_tables(documents), keys, join_type="inner")
    by_language = joined.group_by("lang").aggregate(
        [("tok_len_sum", "sum"), ("bytes_sum", "sum"), ("text_bytes", "sum"), ("characters", "sum")]
    )
    rows = sorted(by_language.to_pylist(), key=lambda row: (-row["characters_sum"], row["lang"]))
    least = MIN_LANGUAGE_SHARE * sum(row["characters_sum"] for row in rows)
    return {
        # Some rows of a document may be in parts that were not read: its packed bytes say how much was.
        row["lang"]: row["tok_len_sum_sum"] / row["bytes_sum_sum"] * row["text_bytes_sum"] / row["characters_sum"]
        for row in rows[:MAX_LANGUAGES]
        if row["bytes_sum_sum"] and row["characters_sum"] and row["characters_sum"] >= least
    }


def _sizes(documents: pa.Table) -> pa.Table:
    text = documents.column("text")
    return pa.table(
        {
            "doc_id": documents.column("doc_id"),
            "piece": documents.column("piece"),
            "lang": pc.fill_null(documents.column("lang").cast(pa.string()), UNKNOWN_LANGUAGE),
            "text_bytes": pc.binary_length(text),
            "characters": pc.utf8_length(text),
        }
    )


def _lengths(spans: pa.Table) -> pa.Table:
    lengths = pc.subtract(spans.column("end"), spans.column("start"))
    return spans.select(["doc_id", "piece", "tok_len"]).append_column("bytes", lengths)


_SHORTENED = re.compile(r"([\d.]+) examples on average: (\d+) of (\d+) items leave room for less than (\d+)")

_SAMPLED = re.compile(r"(\d+) of (\d+) items drawn")

_BYTES = re.compile(r"(\d+) bytes")

_PART = re.compile(r"(\d+) of (\d+) bytes, within (passages of \d+ tokens or more)")


def describe_repeated_text(rows: Iterable[ScoreRow]) -> str:
    """Return how much held-out text training read too, and the figures of the text that is new, as a sentence without
    full stop, from rows of SCORES; empty where no text is repeated or none is new.

    Shares are of the bytes of all sources, figures the sources' plain means.
    """
    means: dict[str, float] = {}
    repeated, every, passages = 0, 0, ""
    for row in rows:
        if row["task"] == HELDOUT_ALL and row["value"] is not None:
            means[row["metric"]] = row["value"]
        elif row["metric"] == "bits_per_byte" and (match := _BYTES.match(row["note"] or "")):
            every += int(match[1])
        elif row["metric"] == "repeated_bits_per_byte" and (match := _PART.match(row["note"] or "")):
            repeated, passages = repeated + int(match[1]), passages or match[3]
    figures = [
        f"{words} {means[metric]:.3f}"
        for metric, words in (("new_bits_per_byte", "the model"), ("5gram_new_bits_per_byte", "the 5-gram"))
        if metric in means
    ]
    if not repeated or not every or not figures:
        return ""
    return (
        f"{format_share(repeated, every, 0)} of the held-out text lies in {passages} that training read too; of the"
        f" text that is new, bits per byte are {', '.join(figures)}"
    )


def describe_sampled_items(scores: Iterable[ScoreRow]) -> str:
    """Return which benchmarks were evaluated on a sample of items, as a sentence without full stop; empty for none."""
    found: dict[str, str] = {}
    for row in scores:
        if match := _SAMPLED.search(row["note"] or ""):
            drawn, available = map(int, match.groups())
            found[row["task"]] = f"{row['task']} {drawn:,} of {available:,} items"
    return f"{', '.join(found.values())}, limited by its max_items" if found else ""


def describe_few_shot_limits(scores: Iterable[ScoreRow]) -> str:
    """Return where fewer few-shot examples fitted than asked for, without full stop; empty where all fitted."""
    found: dict[tuple[str, int], str] = {}
    for row in scores:
        if match := _SHORTENED.search(row["note"] or ""):
            average, fewer, items, _ = match.groups()
            found[row["task"], row["shots"]] = (
                f"{row['task']} {format_shots(row['shots'])} shows {average} examples on average, for {fewer} of"
                f" {items} items leave no room for more"
            )
    if not found:
        return ""
    text = "; ".join(found[key] for key in sorted(found))
    return f"{text}. A larger train.model.context holds more"
