"""The text on which a vocabulary is trained: documents sampled by source weight, split into lines that trainers
accept."""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sentencepiece

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.columns import count_documents
from tasks.artifacts.tables.files import read_table
from tasks.common.numeric import apportion, seed64, unit_interval
from tasks.tokenizer.model_file import BLANK

UNKNOWN_LANGUAGE = "unknown"
"""The language of documents that name none."""
LONGEST_LINE = 2000
"""Characters. SentencePiece's BPE trainer numbers positions in a word with 16 bits, and a line may be one word."""


def count_sources(documents: Artifact) -> StageReport:
    """Return what was read of each source, in sorted order of names. All documents that come in go out."""
    report = StageReport()
    for path in documents.files("documents"):
        table = read_table(path, ["source", "doc_id", "text"])
        sizes = pc.binary_length(table.column("text")).cast(pa.int64())
        report.merge(count_documents(table.column("source"), table.column("doc_id"), sizes))
    report.sources = dict(sorted(report.sources.items()))
    return report


def bytes_by_source(report: StageReport) -> dict[str, int]:
    """Return the UTF-8 bytes of text of each source."""
    return {source: counts.bytes_in for source, counts in report.sources.items()}


def plan_bytes(sizes: Mapping[str, int], weights: Mapping[str, float], max_bytes: int) -> dict[str, int]:
    """Return the bytes to sample from each source: `max_bytes` by weight; what a small source cannot give goes to the
    others.

    Raises InputError for a source without a weight, or when no source has both text and weight.
    """
    chosen = dict(weights) or {source: float(size) for source, size in sizes.items()}
    for source in sizes:
        if source not in chosen:
            raise InputError(
                f"vocab: there are documents of the source `{source}`, and vocab.weights names only"
                f" {', '.join(sorted(chosen))}. Give `{source}` a weight (0 leaves it out)."
            )
    plan = apportion(max_bytes, {source: chosen[source] for source in sizes}, sizes)
    if not any(plan.values()):
        raise InputError(
            "vocab: no text to train a vocabulary on: every source is empty or has the weight 0. Check what the earlier"
            " stages kept (`bessemer runs list`)."
        )
    return plan


def sample_texts(
    documents: Artifact, sizes: Mapping[str, int], plan: Mapping[str, int], seed: int
) -> Iterator[tuple[str, str]]:
    """Yield (source, text) of the documents that `draw_documents` draws, never more bytes of a source than planned: the
    document that would exceed the plan is cut at a character boundary."""
    for drawn in draw_documents("source", documents, sizes, plan, seed64(seed, "vocab", "sample")):
        yield drawn.name, drawn.text.encode()[: drawn.left].decode(errors="ignore")


@dataclass(frozen=True)
class DrawnDocument:
    """A document of a source or language, `name`, of which `left` bytes were still to be drawn."""

    name: str
    text: str
    left: int


def draw_documents(
    column: str, documents: Artifact, sizes: Mapping[str, int], plan: Mapping[str, int], draw: int
) -> Iterator[DrawnDocument]:
    """Yield documents of each language or source (`column` is `lang` or `source`) in input order, until they have its
    bytes of `plan`, out of its `sizes`.

    A document is drawn by its id and the seed `draw`, so that the same ones are drawn however the documents are divided
    into parts; of each language or source one at least.
    """
    left = dict(plan)
    lowest: dict[str, float] = {}
    for name, doc_id in rows_by(column, documents, "doc_id"):
        lowest[name] = min(lowest.get(name, 1.0), unit_interval(doc_id, draw))
    for name, doc_id, text in rows_by(column, documents, "doc_id", "text"):
        # Of a few long documents each may be above the rate; the first in the order of the draw is taken then.
        number = unit_interval(doc_id, draw)
        if left.get(name, 0) > 0 and (number < plan[name] / max(1, sizes[name]) or number == lowest[name]):
            yield DrawnDocument(name, text, left[name])
            left[name] -= len(text.encode())


def rows_by(column: str, documents: Artifact, *others: str) -> Iterator[tuple[Any, ...]]:
    """Yield the language or source of each document, and its values in other columns."""
    for path in documents.files("documents"):
        for batch in read_table(path, [column, *others]).to_batches():
            names = pc.fill_null(batch.column(column).cast(pa.string()), UNKNOWN_LANGUAGE)
            columns = (names, *(batch.column(other) for other in others))
            yield from zip(*(values.to_pylist() for values in columns), strict=True)


def train_on_lines(texts: Iterable[str], **options: Any) -> bytes:
    """Return the model that SentencePiece's trainer makes of all lines of the texts, which it does not normalise."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=training_lines(texts),
        model_writer=model,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        max_sentence_length=2**30,
        input_sentence_size=0,
        shuffle_input_sentence=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def training_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines of at most LONGEST_LINE characters, without line ends, NUL (reserved by the trainer) and U+2581."""
    for text in texts:
        for line in text.replace("\0", "\n").replace(BLANK, "\n").split("\n"):
            for start in range(0, len(line), LONGEST_LINE):
                yield line[start : start + LONGEST_LINE]
