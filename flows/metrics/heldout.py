"""What held-out text says of networks that do not predict each next token, in words: BERT's and T5's own measures.

Held-out figures of two runs whose data differ: over the documents that both held out, and of which neither was
trained on a copy.

A change of the data changes what is held out. Where near-duplicates stay, a held-out document's own copy is in the
training text, and bits per byte look better than the model is (Lee et al. 2022, section 6: copies of held-out text).

How many tokens a character of each language takes, measured on the text that was packed.

What the notes of SCORES say of how items were asked: those that were drawn of all, and the examples that they were
shown where fewer fit into the context than were asked for.
"""

import functools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.metrics.formatting import shots_word
from flows.runs.document_history import some_parts
from flows.runs.lineage import parts_of
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables import read_table
from tasks.vocab.comparison import UNKNOWN_LANGUAGE


@dataclass(frozen=True)
class Measure:
    """A metric of SCORES on held-out text, and the figure that a guess by frequency reaches."""

    metric: str
    words: str
    baseline: str = ""
    baseline_words: str = ""
    is_share: bool = False

    def told(self, value: float) -> str:
        """`2.310`, or `31.2%` where it is a share."""
        return f"{value:.1%}" if self.is_share else f"{value:.3f}"


MEASURES = (
    Measure("pseudo_bits_per_byte", "pseudo-bits per byte"),
    Measure("masked_nats_per_token", "nats per hidden token", "unigram_masked_nats_per_token", "by frequency"),
    Measure(
        "masked_accuracy",
        "hidden tokens told rightly",
        "frequent_token_accuracy",
        "the most frequent one",
        is_share=True,
    ),
    Measure("next_accuracy", "pairs told rightly", "majority_next_accuracy", "the more frequent answer", is_share=True),
    Measure("target_nats_per_token", "nats per target of the decoder"),
    Measure(
        "target_bits_per_byte",
        "bits per byte of the text that the decoder writes",
        "unigram_target_bits_per_byte",
        "by frequency",
    ),
)

OF_METRIC = {measure.metric: measure for measure in MEASURES}


def measured(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of SCORES about held-out text -> a line a measure and source, each measure's `all` last: `value`, `stderr`,
    `n`, `note`, and the `baseline`'s value."""
    values = {(row["task"], row["metric"]): row["value"] for row in rows}
    lines = [
        {
            "metric": measure.metric,
            "source": row["task"].partition("/")[2],
            **{key: row[key] for key in ("value", "stderr", "n", "note")},
            "baseline": values.get((row["task"], measure.baseline)),
        }
        for measure in MEASURES
        for row in rows
        if row["metric"] == measure.metric
    ]
    return sorted(lines, key=lambda line: ([*OF_METRIC].index(line["metric"]), line["source"] == "all", line["source"]))


def line_told(line: dict[str, Any]) -> str:
    """`31.2% (the most frequent one 7.4%)`; a dash without a value."""
    measure = OF_METRIC[line["metric"]]
    if line["value"] is None:
        return "-"
    beside = f" ({measure.baseline_words} {measure.told(line['baseline'])})" if line["baseline"] is not None else ""
    return f"{measure.told(line['value'])}{beside}"


def whole_told(lines: Sequence[dict[str, Any]]) -> str:
    """The means of the sources in one sentence; empty without any."""
    return ", ".join(
        f"{OF_METRIC[line['metric']].words} {line_told(line)}"
        for line in lines
        if line["source"] == "all" and line["value"] is not None
    )


DOCUMENT_SCORES = "document_scores"

Document = tuple[str, bytes, int, int]
"""(source, doc_id, piece, bytes)."""


@dataclass(frozen=True)
class HeldOut:
    """What a run held out: its figures' parts, and where copies of a document would stand."""

    bits: Mapping[str, Mapping[Document, float]] = field(default_factory=dict)
    """Metric of SCORES -> held-out document -> its bits."""
    dedup: Artifact | None = None
    decontaminate: Artifact | None = None

    def documents(self, metric: str) -> frozenset[Document]:
        """The documents that a metric was measured on."""
        return frozenset(self.bits.get(metric, {}))


def held_out(artifacts: Mapping[str, Artifact]) -> HeldOut:
    """What a run held out, from its artifacts; nothing where evaluation kept no bits of single documents."""
    scores = artifacts.get("evaluate")
    bits: dict[str, dict[Document, float]] = defaultdict(dict)
    if scores is not None and scores.files(DOCUMENT_SCORES):
        for row in scores.table(DOCUMENT_SCORES).to_pylist():
            if row["bytes"]:
                bits[row["metric"]][row["source"], row["doc_id"], row["piece"], row["bytes"]] = row["bits"]
    return HeldOut(dict(bits), artifacts.get("dedup"), artifacts.get("decontaminate"))


def is_same_text(one: HeldOut, other: HeldOut) -> bool:
    """Whether both were measured on the same documents, with the same copies left in what they were trained on."""
    same = one.bits.keys() == other.bits.keys() and all(
        one.documents(metric) == other.documents(metric) for metric in one.bits
    )
    return same and _content(one.dedup) == _content(other.dedup)


def fair_documents(one: HeldOut, other: HeldOut, metric: str) -> frozenset[Document]:
    """The documents that both held out and of which neither was trained on a copy that either's dedup knows."""
    both = one.documents(metric) & other.documents(metric)
    trained = [_trained(run.decontaminate.path) for run in (one, other) if run.decontaminate is not None]
    copies = [_copies(run.dedup.path) for run in (one, other) if run.dedup is not None]

    def is_seen(doc_id: bytes) -> bool:
        return any(known.get(doc_id, set()) & of_run for known in copies for of_run in trained)

    return frozenset(document for document in both if not is_seen(document[1]))


def mean_of_sources(run: HeldOut, metric: str, documents: frozenset[Document]) -> float:
    """Bits over bytes of each source's documents, and of these the plain mean, as `heldout/all` has it."""
    by_source: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        by_source[document[0]].append(document)
    bits = run.bits[metric]
    return statistics.fmean(
        math.fsum(bits[one] for one in of_source) / sum(one[3] for one in of_source) for of_source in by_source.values()
    )


def _content(artifact: Artifact | None) -> str | None:
    return None if artifact is None else artifact.content


@functools.lru_cache(maxsize=8)
def _trained(decontaminate: Path) -> frozenset[bytes]:
    """Ids of the documents that went on to training."""
    parts = parts_of(Artifact.open(decontaminate), "documents", ["doc_id"])
    return frozenset(doc_id for part in parts for doc_id in part.column("doc_id").to_pylist())


@functools.lru_cache(maxsize=8)
def _copies(dedup: Path) -> dict[bytes, set[bytes]]:
    """Survivor -> the documents that were dropped as its copies."""
    found: dict[bytes, set[bytes]] = defaultdict(set)
    for part in parts_of(Artifact.open(dedup), "ledger", ["doc_id", "evidence"]):
        for row in part.to_pylist():
            survivor = json.loads(row["evidence"] or "{}").get("survivor")
            if survivor is not None:
                found[bytes.fromhex(survivor)].add(row["doc_id"])
    return dict(found)


MOST_LANGUAGES, LEAST_SHARE = 12, 0.002
"""Languages that are told, and the share of all characters that one has at least: single documents whose language was
mistaken would be a long list."""


def tokens_per_character(artifacts: dict[str, Artifact]) -> dict[str, float]:
    """Language -> tokens of its packed text by characters (Unicode code points), from some parts of the documents;
    the language with most text first."""
    if "chunk" not in artifacts or "decontaminate" not in artifacts:
        return {}
    documents = [_sizes(read_table(path)) for _, path in some_parts(artifacts["decontaminate"].files("documents"))]
    spans = [_lengths(read_table(path)) for _, path in some_parts(artifacts["chunk"].files("spans"))]
    if not documents or not spans:
        return {}
    keys = ["doc_id", "piece"]
    together = pa.concat_tables(spans).group_by(keys).aggregate([("tok_len", "sum"), ("bytes", "sum")])
    joined = together.join(pa.concat_tables(documents), keys, join_type="inner")
    by_language = joined.group_by("lang").aggregate(
        [("tok_len_sum", "sum"), ("bytes_sum", "sum"), ("text_bytes", "sum"), ("characters", "sum")]
    )
    rows = sorted(by_language.to_pylist(), key=lambda row: (-row["characters_sum"], row["lang"]))
    least = LEAST_SHARE * sum(row["characters_sum"] for row in rows)
    return {
        # Of a document some rows may lie in parts that were not looked into: its packed bytes tell how much was.
        row["lang"]: row["tok_len_sum_sum"] / row["bytes_sum_sum"] * row["text_bytes_sum"] / row["characters_sum"]
        for row in rows[:MOST_LANGUAGES]
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
    return pa.table(
        {
            **{name: spans.column(name) for name in ("doc_id", "piece", "tok_len")},
            "bytes": pc.subtract(spans.column("end"), spans.column("start")),
        }
    )


_ROOM = re.compile(r"([\d.]+) examples on average: (\d+) of (\d+) items leave room for less than (\d+)")

_DRAWN = re.compile(r"(\d+) of (\d+) items drawn")


def drawn_told(scores: Iterable[Mapping[str, Any]]) -> str:
    """One sentence without its full stop, from the notes of SCORES; empty where every benchmark was asked whole."""
    found: dict[str, str] = {}
    for row in scores:
        match = _DRAWN.search(row["note"] or "")
        if match:
            drawn, available = map(int, match.groups())
            found[row["task"]] = f"{row['task']} {drawn:,} of {available:,} items"
    return f"{', '.join(found.values())}, as many as its max_items lets be drawn" if found else ""


def shots_told(scores: Iterable[Mapping[str, Any]]) -> str:
    """One sentence without its full stop, from the notes of SCORES; empty where all examples fit."""
    found: dict[tuple[str, int], str] = {}
    for row in scores:
        match = _ROOM.search(row["note"] or "")
        if match:
            average, fewer, items, _ = match.groups()
            found[row["task"], row["shots"]] = (
                f"{row['task']} {shots_word(row['shots'])} shows {average} examples on average, for {fewer} of {items}"
                f" items leave no room for more"
            )
    if not found:
        return ""
    told = "; ".join(found[key] for key in sorted(found))
    return f"{told}. A larger train.model.context holds more"
