"""Held-out bits per byte: total nats / ln 2 / UTF-8 bytes of the text.

Every document is scored alone, in windows that predict each token once; the end-of-text token is no text and is not
counted. Byte counts are those of the original text, so models with other vocabularies can be compared. Where a text
has unknown words, which any other text would have given as well, a vocabulary's figures are null: it would look the
better the more it loses.
"""

import lzma
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from model.scoring import text_nats
from model.transformer import GPT
from tasks.artifact import Artifact, read_table
from tasks.evaluate.score_rows import score_row
from tasks.seed import seed64, unit_interval
from tasks.tokenizer import Tokenizer

XZ_PRESET = 9
SMOOTHING = 1
"""Added to the count of every token (Laplace)."""


@dataclass(frozen=True)
class Measured:
    """A number with the documents it rests on; None where there can be none."""

    value: float | None
    stderr: float | None


def heldout_texts(decontaminated: Artifact, max_bytes: int, seed: int) -> dict[str, list[str]]:
    """Source -> held-out texts in a random order by id, until `max_bytes`; the last one is cut at a character."""
    drawn: dict[str, list[tuple[float, bytes, int, str]]] = {}
    draw = seed64(seed, "evaluate", "heldout")
    for path in decontaminated.files("heldout"):
        for row in read_table(path).select(["doc_id", "piece", "source", "text"]).to_pylist():
            place = unit_interval(row["doc_id"], draw)
            drawn.setdefault(row["source"], []).append((place, row["doc_id"], row["piece"], row["text"]))
    return {source: _within(sorted(texts), max_bytes) for source, texts in sorted(drawn.items())}


def _within(drawn: Sequence[tuple[float, bytes, int, str]], max_bytes: int) -> list[str]:
    chosen: list[str] = []
    left = max_bytes
    for *_, text in drawn:
        cut = text.encode()[:left].decode(errors="ignore")
        if not cut:
            continue
        chosen.append(cut)
        left -= len(text.encode())
        if left <= 0:
            break
    return chosen


def heldout_scores(
    network: GPT,
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    unigram: pa.Table,
    *,
    stride: int | None,
    batch_tokens: int,
    rounds: int,
    seed: int,
    advance: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Rows of SCORES: the model, token frequencies of the training text, and xz, by source and as their plain mean.

    `advance` hears how many sources are done.
    """
    code_lengths = unigram_bits(unigram, tokenizer.vocab_size)
    rows: list[dict[str, Any]] = []
    by_metric: dict[str, list[Measured]] = {}
    for done, (source, documents) in enumerate(texts.items(), start=1):
        sizes = np.array([len(text.encode()) for text in documents], dtype=np.int64)
        ids = list(tokenizer.encode_batch(documents))
        nats = text_nats(network, [row.tolist() for row in ids], tokenizer.eos, stride, batch_tokens)
        draw = seed64(seed, "evaluate", "bootstrap", source)
        unknown = sum(int((row == tokenizer.unk).sum()) for row in ids)
        measured = {
            "bits_per_byte": bits_per_byte(np.array(nats) / math.log(2), sizes, rounds, draw),
            "unigram_bits_per_byte": bits_per_byte(
                np.array([code_lengths[row].sum() for row in ids]), sizes, rounds, draw
            ),
            "xz_bits_per_byte": Measured(xz_bits_per_byte("".join(documents).encode()), None),
        }
        for metric, result in measured.items():
            note = f"{int(sizes.sum())} bytes, {sum(map(len, ids))} tokens"
            if unknown and metric != "xz_bits_per_byte":
                result = Measured(None, None)
                note += f", {unknown} of them unknown: no figure, for what they stand for is lost"
            rows.append(_row(f"heldout/{source}", metric, result, len(documents), note))
            by_metric.setdefault(metric, []).append(result)
        advance(done)
    documents_in_all = sum(map(len, texts.values()))
    for metric, results in by_metric.items():
        note = f"plain mean of {len(results)} sources"
        rows.append(_row("heldout/all", metric, plain_mean(results), documents_in_all, note))
    return rows


def unigram_bits(unigram: pa.Table, vocab_size: int) -> np.ndarray:
    """Code length of each token in bits [vocabulary] under its smoothed frequency in what training read."""
    counts = np.full(vocab_size, SMOOTHING, dtype=np.float64)
    counts[unigram.column("token").to_numpy()] += unigram.column("count").to_numpy()
    return -np.log2(counts / counts.sum())


def bits_per_byte(bits: np.ndarray, sizes: np.ndarray, rounds: int, seed: int) -> Measured:
    """Total bits [documents] over total bytes [documents], with the standard error of a document bootstrap.

    Documents are drawn with replacement `rounds` times (Efron, 1979); one document alone has no standard error.
    """
    value = float(bits.sum() / sizes.sum())
    if len(bits) < 2:
        return Measured(value, None)
    # Raw words of a counter-based generator, so that another NumPy draws the same documents.
    drawn = np.random.Philox(key=seed).random_raw(rounds * len(bits)).reshape(rounds, -1) % np.uint64(len(bits))
    index = drawn.astype(np.int64)
    return Measured(value, float((bits[index].sum(axis=1) / sizes[index].sum(axis=1)).std(ddof=1)))


def xz_bits_per_byte(data: bytes) -> float:
    """Bits that xz (LZMA, preset 9) needs for a byte of `data`, container included."""
    return 8 * len(lzma.compress(data, preset=XZ_PRESET)) / len(data)


def plain_mean(results: Sequence[Measured]) -> Measured:
    """Mean over sources, each counting the same (Paloma), with the standard error of independent sources; None where
    one of them has no value."""
    values = [result.value for result in results if result.value is not None]
    if len(values) < len(results):
        return Measured(None, None)
    value = sum(values) / len(values)
    errors = [result.stderr for result in results if result.stderr is not None]
    if len(errors) < len(results):
        return Measured(value, None)
    return Measured(value, math.sqrt(sum(error**2 for error in errors)) / len(results))


def _row(task: str, metric: str, result: Measured, documents: int, note: str) -> dict[str, Any]:
    return score_row(task, metric, n=documents, value=result.value, stderr=result.stderr, note=note)
