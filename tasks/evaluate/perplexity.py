"""Held-out bits per byte: total nats / ln 2 / UTF-8 bytes of the text, for a GPT, token frequencies, and xz.

Every document is scored alone, in windows that predict each token once; the end-of-text token is not text and does not
count. Byte counts are those of the original text, so that models with different vocabularies can be compared. Where a
text has unknown tokens, which other texts would have produced as well, the figures are null: a vocabulary would look
better the more text it loses.

The bits of every document are kept too (DOCUMENT_SCORES), so that two models can be compared document by document.
"""

import lzma
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from model.inference.scoring import token_nats
from model.nn.gpt import GPT
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.schema import DOC_ID_BYTES
from tasks.artifacts.tables import read_table
from tasks.common.numeric import seed64, unit_interval
from tasks.evaluate.repeated_passages import add_parts
from tasks.evaluate.scores import NO_MEASUREMENT, HeldoutRows, Measurement, ratio
from tasks.tokenizer.base import Tokenizer

XZ_PRESET = 9
MOST_NATS = 700.0
"""With more nats per token than this, perplexity overflows a float64."""
SMOOTHING = 1
"""Added to the count of every token (Laplace)."""
DOCUMENT_SCORES = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("doc_id", pa.binary(DOC_ID_BYTES), nullable=False),
        pa.field("piece", pa.int16(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
"""`metric` is that of SCORES whose value is the sum of `bits` over the sum of `bytes`. Sources that the vocabulary
cannot represent without loss have no rows."""


@dataclass(frozen=True)
class HeldoutDocument:
    """A held-out document, or a segment of one, that is scored."""

    doc_id: bytes
    piece: int
    text: str
    language: str | None


def heldout_documents(
    decontaminated: Sequence[Artifact], max_bytes: int, seed: int
) -> dict[str, list[HeldoutDocument]]:
    """Return source -> the text held out of it in any of the runs, in a random order by id, up to `max_bytes`.

    The last text of a source is truncated at a character boundary.
    """
    drawn: dict[str, list[tuple[float, HeldoutDocument]]] = {}
    draw = seed64(seed, "evaluate", "heldout")
    for path in (path for artifact in decontaminated for path in artifact.files("heldout")):
        for row in read_table(path).select(["doc_id", "piece", "source", "text", "lang"]).to_pylist():
            found = HeldoutDocument(row["doc_id"], row["piece"], row["text"], row["lang"])
            drawn.setdefault(row["source"], []).append((unit_interval(row["doc_id"], draw), found))
    return {
        source: _within(sorted(mine, key=lambda one: (one[0], one[1].doc_id, one[1].piece)), max_bytes)
        for source, mine in sorted(drawn.items())
    }


def texts_and_languages(
    documents: Mapping[str, Sequence[HeldoutDocument]],
) -> tuple[dict[str, list[str]], dict[str, list[str | None]]]:
    """Return the texts and the languages of documents by source."""
    texts = {source: [one.text for one in mine] for source, mine in documents.items()}
    return texts, {source: [one.language for one in mine] for source, mine in documents.items()}


def _within(drawn: Sequence[tuple[float, HeldoutDocument]], max_bytes: int) -> list[HeldoutDocument]:
    chosen: list[HeldoutDocument] = []
    left = max_bytes
    for _, one in drawn:
        cut = one.text.encode()[:left].decode(errors="ignore")
        if not cut:
            continue
        chosen.append(replace(one, text=cut))
        left -= len(one.text.encode())
        if left <= 0:
            break
    return chosen


class HasDocumentId(Protocol):
    """The key of a document or of a segment of one."""

    @property
    def doc_id(self) -> bytes: ...

    @property
    def piece(self) -> int: ...


class DocumentScores:
    """Collects rows of DOCUMENT_SCORES for the documents of each source, in their order."""

    def __init__(self, documents: Mapping[str, Sequence[HasDocumentId]]) -> None:
        self._documents = documents
        self.rows: list[dict[str, Any]] = []

    def add(self, source: str, metric: str, bits: np.ndarray, sizes: np.ndarray) -> None:
        """Add the bits of each document of a source, and the bytes that they encode."""
        for one, more, size in zip(self._documents[source], bits.tolist(), sizes.tolist(), strict=True):
            key = {"source": source, "doc_id": one.doc_id, "piece": one.piece}
            self.rows.append({**key, "metric": metric, "bits": more, "bytes": int(size)})


def heldout_scores(
    network: GPT | None,
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    languages: dict[str, list[str | None]],
    code_lengths: np.ndarray,
    *,
    batch_tokens: int,
    rounds: int,
    seed: int,
    advance: Callable[[int], None],
    keep: DocumentScores | None = None,
    repeated: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> list[dict[str, Any]]:
    """Return rows of SCORES for the model, token frequencies of the training text, and xz, by source and as their plain
    mean.

    Without a network that predicts next tokens, the rows of the other two alone. Perplexity is per token, so that it
    compares with that of models with the same vocabulary only. `code_lengths` [vocabulary] are those of
    `unigram_code_lengths`; `advance` is called with the number of sources done; `keep` collects the model's bits of
    each document. `repeated` are the tokens of each source's documents that training read too (`repeated_tokens`): with
    it the model's figures of new and of repeated text are given apart.
    """
    found = HeldoutRows()
    for done, (source, documents) in enumerate(texts.items(), start=1):
        sizes = np.array([len(text.encode()) for text in documents], dtype=np.int64)
        encoded = list(tokenizer.encode_batch_with_borders(documents))
        ids = [row for row, _ in encoded]
        draw = seed64(seed, "evaluate", "bootstrap", source)
        unknown = sum(int((row == tokenizer.unk).sum()) for row in ids)
        code = np.array([code_lengths[row].sum() for row in ids])
        measured: dict[str, Measurement] = {}
        bits = {"unigram_bits_per_byte": code}
        if network is not None:
            of_tokens = token_nats(network, [row.tolist() for row in ids], tokenizer.eos, batch_tokens=batch_tokens)
            nats = np.array([float(one.sum()) for one in of_tokens])
            bits = {"bits_per_byte": nats / math.log(2)} | bits
            tokens = np.array([len(row) for row in ids], dtype=np.int64)
            measured["perplexity"] = perplexity(ratio(nats, tokens, rounds, draw))
            if repeated is not None and not unknown:
                token_bits = [one.numpy() / math.log(2) for one in of_tokens]
                lengths = [np.diff(borders) for _, borders in encoded]
                add_parts(found, source, "", token_bits, lengths, repeated[source], rounds, draw)
        measured = {metric: ratio(above, sizes, rounds, draw) for metric, above in bits.items()} | measured
        measured["xz_bits_per_byte"] = Measurement(xz_bits_per_byte("".join(documents).encode()), None)
        if not unknown:
            for metric, above in bits.items():
                found.add_languages(metric, languages[source], above, sizes)
            if keep is not None and network is not None:
                keep.add(source, "bits_per_byte", bits["bits_per_byte"], sizes)
        for metric, result in measured.items():
            note = f"{int(sizes.sum())} bytes, {sum(map(len, ids))} tokens"
            if unknown and metric != "xz_bits_per_byte":
                result = NO_MEASUREMENT
                note += f", {unknown} of them unknown: no value, since their text is lost"
            found.add(source, metric, result, len(documents), note)
        advance(done)
    return found.rows(rounds, seed)


def perplexity(nats_per_token: Measurement) -> Measurement:
    """Return exp(nats per token), with a standard error by the delta method."""
    if nats_per_token.value is None or nats_per_token.value > MOST_NATS:
        return NO_MEASUREMENT
    value = math.exp(nats_per_token.value)
    return Measurement(value, None if nats_per_token.stderr is None else value * nats_per_token.stderr)


def unigram_code_lengths(unigram: pa.Table, vocab_size: int) -> np.ndarray:
    """Return the code length of each token in bits [vocabulary] under its smoothed frequency in what training read."""
    counts = np.full(vocab_size, SMOOTHING, dtype=np.float64)
    counts[unigram.column("token").to_numpy()] += unigram.column("count").to_numpy()
    return -np.log2(counts / counts.sum())


def xz_bits_per_byte(data: bytes) -> float:
    """Return the bits that xz (LZMA, preset 9) needs per byte of `data`, container included."""
    return 8 * len(lzma.compress(data, preset=XZ_PRESET)) / len(data)
