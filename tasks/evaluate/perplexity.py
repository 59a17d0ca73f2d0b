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

import numpy as np
import pyarrow as pa

from model.inference.scoring import token_nats
from model.nn.gpt import GPT
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.heldout import EncodedSource
from tasks.evaluate.repeated_passages import add_parts
from tasks.evaluate.scores import NO_MEASUREMENT, HeldoutRows, Measurement, Scores

XZ_PRESET = 9
MOST_NATS = 700.0
"""With more nats per token than this, perplexity overflows a float64."""
SMOOTHING = 1
"""Added to the count of every token (Laplace)."""


def heldout_scores(
    network: GPT | None,
    opening: int,
    sources: Sequence[EncodedSource],
    code_lengths: np.ndarray,
    config: EvaluateConfig,
    *,
    advance: Callable[[int], None],
    repeated: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> Scores:
    """Return the scores of the model, token frequencies of the training text, and xz, by source and as their plain
    mean, and the model's bits of each document.

    Without a network that predicts next tokens, those of the other two alone. Perplexity is per token, so that it
    compares with that of models with the same vocabulary only. Texts follow the token `opening`. `code_lengths`
    [vocabulary] are those of `unigram_code_lengths`; `advance` is called with the number of sources done. `repeated`
    are the tokens of each source's documents that training read too (`repeated_tokens`): with it the model's figures of
    new and of repeated text are given apart.
    """
    found = HeldoutRows(config.bootstrap_rounds, config.seed)
    for done, source in enumerate(sources, start=1):
        documents, sizes = source.documents, source.sizes
        code = np.array([code_lengths[row].sum() for row in source.ids])
        measured: dict[str, Measurement] = {}
        bits = {"unigram_bits_per_byte": code}
        if network is not None:
            of_tokens = token_nats(
                network, [row.tolist() for row in source.ids], opening, batch_tokens=config.batch_tokens
            )
            nats = np.array([float(one.sum()) for one in of_tokens])
            bits = {"bits_per_byte": nats / math.log(2)} | bits
            tokens = np.array([len(row) for row in source.ids], dtype=np.int64)
            measured["perplexity"] = perplexity(found.ratio(source.name, nats, tokens))
            if repeated is not None and not source.unknown:
                token_bits = [one.numpy() / math.log(2) for one in of_tokens]
                add_parts(found, source.name, "", token_bits, source.lengths, repeated[source.name])
        measured = {metric: found.ratio(source.name, above, sizes) for metric, above in bits.items()} | measured
        xz = xz_bits_per_byte("".join(one.text for one in documents).encode())
        measured["xz_bits_per_byte"] = Measurement(xz)
        if not source.unknown:
            found.add_languages("unigram_bits_per_byte", [one.language for one in documents], code, sizes)
            if network is not None:
                found.add_documents(source.name, "bits_per_byte", documents, bits["bits_per_byte"], sizes)
        for metric, result in measured.items():
            note = source.describe()
            if source.unknown and metric != "xz_bits_per_byte":
                result = NO_MEASUREMENT
                note += f", {source.unknown} of them unknown: no value, since their text is lost"
            found.add(source.name, metric, result, len(documents), note)
        advance(done)
    return found.scores()


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
