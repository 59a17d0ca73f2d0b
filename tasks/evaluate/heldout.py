"""Held-out bits per byte: total nats / ln 2 / UTF-8 bytes of the text.

Every document is scored alone, in windows that predict each token once; the end-of-text token is no text and is not
counted. Byte counts are those of the original text, so models with other vocabularies can be compared. Where a text
has unknown words, which any other text would have given as well, a vocabulary's figures are null: it would look the
better the more it loses.
"""

import lzma
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from model.scoring import text_nats
from model.transformer import GPT
from tasks.artifact import Artifact, read_table
from tasks.evaluate.measured import NOTHING, HeldoutRows, Measured, ratio
from tasks.seed import seed64, unit_interval
from tasks.tokenizer import Tokenizer

XZ_PRESET = 9
MOST_NATS = 700.0
"""Above this many nats a token perplexity is no number that a double holds."""
SMOOTHING = 1
"""Added to the count of every token (Laplace)."""


def heldout_texts(
    decontaminated: Artifact, max_bytes: int, seed: int
) -> tuple[dict[str, list[str]], dict[str, list[str | None]]]:
    """Source -> held-out texts in a random order by id, until `max_bytes`, and the language of each.

    The last text of a source is cut at a character.
    """
    drawn: dict[str, list[tuple[float, bytes, int, str, str | None]]] = {}
    draw = seed64(seed, "evaluate", "heldout")
    for path in decontaminated.files("heldout"):
        for row in read_table(path).select(["doc_id", "piece", "source", "text", "lang"]).to_pylist():
            place = unit_interval(row["doc_id"], draw)
            drawn.setdefault(row["source"], []).append((place, row["doc_id"], row["piece"], row["text"], row["lang"]))
    chosen = {
        source: _within(sorted(texts, key=lambda text: text[:3]), max_bytes) for source, texts in sorted(drawn.items())
    }
    texts = {source: [text for text, _ in mine] for source, mine in chosen.items()}
    return texts, {source: [language for _, language in mine] for source, mine in chosen.items()}


def _within(drawn: Sequence[tuple[float, bytes, int, str, str | None]], max_bytes: int) -> list[tuple[str, str | None]]:
    chosen: list[tuple[str, str | None]] = []
    left = max_bytes
    for *_, text, language in drawn:
        cut = text.encode()[:left].decode(errors="ignore")
        if not cut:
            continue
        chosen.append((cut, language))
        left -= len(text.encode())
        if left <= 0:
            break
    return chosen


def heldout_scores(
    network: GPT | None,
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    languages: dict[str, list[str | None]],
    code_lengths: np.ndarray,
    *,
    stride: int | None,
    batch_tokens: int,
    rounds: int,
    seed: int,
    advance: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Rows of SCORES: the model, token frequencies of the training text, and xz, by source and as their plain mean.

    Without a network that predicts next tokens, the other two alone. Perplexity stands beside the model's bits: of
    tokens, so that it can be laid beside that of models with the same vocabulary only. `code_lengths` [vocabulary] are
    `unigram_bits`, `advance` hears how many sources are done.
    """
    found = HeldoutRows()
    for done, (source, documents) in enumerate(texts.items(), start=1):
        sizes = np.array([len(text.encode()) for text in documents], dtype=np.int64)
        ids = list(tokenizer.encode_batch(documents))
        draw = seed64(seed, "evaluate", "bootstrap", source)
        unknown = sum(int((row == tokenizer.unk).sum()) for row in ids)
        code = np.array([code_lengths[row].sum() for row in ids])
        measured: dict[str, Measured] = {}
        bits = {"unigram_bits_per_byte": code}
        if network is not None:
            nats = np.array(text_nats(network, [row.tolist() for row in ids], tokenizer.eos, stride, batch_tokens))
            bits = {"bits_per_byte": nats / math.log(2)} | bits
            tokens = np.array([len(row) for row in ids], dtype=np.int64)
            measured["perplexity"] = perplexity(ratio(nats, tokens, rounds, draw))
        measured = {metric: ratio(above, sizes, rounds, draw) for metric, above in bits.items()} | measured
        measured["xz_bits_per_byte"] = Measured(xz_bits_per_byte("".join(documents).encode()), None)
        if not unknown:
            for metric, above in bits.items():
                found.add_languages(metric, languages[source], above, sizes)
        for metric, result in measured.items():
            note = f"{int(sizes.sum())} bytes, {sum(map(len, ids))} tokens"
            if unknown and metric != "xz_bits_per_byte":
                result = NOTHING
                note += f", {unknown} of them unknown: no figure, for what they stand for is lost"
            found.add(source, metric, result, len(documents), note)
        advance(done)
    return found.rows(rounds, seed)


def perplexity(nats_per_token: Measured) -> Measured:
    """exp(nats per token), its standard error by the delta method."""
    if nats_per_token.value is None or nats_per_token.value > MOST_NATS:
        return NOTHING
    value = math.exp(nats_per_token.value)
    return Measured(value, None if nats_per_token.stderr is None else value * nats_per_token.stderr)


def unigram_bits(unigram: pa.Table, vocab_size: int) -> np.ndarray:
    """Code length of each token in bits [vocabulary] under its smoothed frequency in what training read."""
    counts = np.full(vocab_size, SMOOTHING, dtype=np.float64)
    counts[unigram.column("token").to_numpy()] += unigram.column("count").to_numpy()
    return -np.log2(counts / counts.sum())


def xz_bits_per_byte(data: bytes) -> float:
    """Bits that xz (LZMA, preset 9) needs for a byte of `data`, container included."""
    return 8 * len(lzma.compress(data, preset=XZ_PRESET)) / len(data)
