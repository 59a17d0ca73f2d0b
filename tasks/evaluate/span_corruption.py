"""Held-out loss of a T5: text corrupted as in training, and how well the decoder predicts the targets.

Each document is corrupted alone, once, in as few sequences of training's length as it needs. The loss per target is
what training minimises, sentinels and end of text included; bits per byte are those of the text in the targets, with
the code length of the same tokens by their frequency in training for comparison. They are not bits per byte of the text
as a whole, since the encoder has read what surrounds the targets.
"""

import math
from collections.abc import Sequence

import numpy as np

from model.data.loader import span_batch
from model.data.row_format import NO_LOSS, RowFormat
from model.data.span_corruption import Denoiser
from model.inference.scoring import target_nats
from model.nn.t5 import T5
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.heldout import EncodedSource
from tasks.evaluate.scores import NO_MEASUREMENT, HeldoutRows, Scores, split_evenly
from tasks.tokenizer.base import Tokenizer

LOSS, BITS, UNIGRAM_BITS = "target_nats_per_token", "target_bits_per_byte", "unigram_target_bits_per_byte"

TEXT_LOSS, UNIGRAM_TEXT_LOSS = "text_target_nats_per_token", "unigram_text_target_nats_per_token"
"""Loss of targets that are text, for which token frequencies give a baseline; sentinels follow from their positions."""


def span_scores(
    network: T5,
    tokenizer: Tokenizer,
    sources: Sequence[EncodedSource],
    code_lengths: np.ndarray,
    row_format: RowFormat,
    row_length: int,
    config: EvaluateConfig,
) -> Scores:
    """Return scores by source and as their plain mean, and the bits of each document's targets.

    `code_lengths` [vocabulary] are bits of each token by its frequency, `row_length` the tokens of a training sequence.
    """
    corrupt = Denoiser(row_format, config.seed, row_length)
    batch_rows = max(1, config.batch_tokens // row_length)
    found = HeldoutRows(config.bootstrap_rounds, config.seed)
    first_row = 0
    for source in sources:
        name, documents = source.name, source.documents
        document_of, rows = document_rows(source.ids, row_length, row_format.pad)
        sums = np.zeros((6, len(documents)))
        for begin in range(0, len(rows), batch_rows):
            some = rows[begin : begin + batch_rows]
            numbers = np.arange(first_row + begin, first_row + begin + len(some))
            batch = span_batch(corrupt(some, numbers, np.zeros(len(some), dtype=np.int64)))
            nats, targets = target_nats(network, batch).numpy(), batch.targets_BU.numpy()
            of_batch = _sums(nats, targets, code_lengths, tokenizer.piece_lengths)
            np.add.at(sums.T, document_of[begin : begin + batch_rows], of_batch)
        first_row += len(rows)
        nats, targets, bits, size, code, text = sums
        note = (
            f"{row_format.denoising} of {len(rows)} rows of at most {row_length} tokens; {int(targets.sum())} targets,"
            f" their text {int(size.sum())} bytes"
        )
        lost = _missing_figure_note(tokenizer, source.unknown)
        found.add(name, LOSS, found.ratio(name, nats, targets), len(documents), note)
        for metric, above in ((TEXT_LOSS, bits), (UNIGRAM_TEXT_LOSS, code)):
            found.add(name, metric, found.ratio(name, above * math.log(2), text), len(documents), note)
        for metric, above in ((BITS, bits), (UNIGRAM_BITS, code)):
            measured = NO_MEASUREMENT if lost else found.ratio(name, above, size)
            found.add(name, metric, measured, len(documents), f"{note}{lost}")
        if not lost:
            found.add_documents(name, BITS, documents, bits, size)
            found.add_languages(UNIGRAM_BITS, [one.language for one in documents], code, size)
    return found.scores()


def document_rows(ids: Sequence[np.ndarray], row_length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the document of each row, i64[R], and the rows, i64[R, L]: each document alone, split evenly and
    padded."""
    cuts = [(number, *cut) for number, row in enumerate(ids) for cut in split_evenly(len(row), row_length)]
    rows = np.full((len(cuts), row_length), pad, dtype=np.int64)
    for place, (number, begin, end) in enumerate(cuts):
        rows[place, : end - begin] = ids[number][begin:end]
    return np.array([number for number, *_ in cuts], dtype=np.int64), rows


def _sums(nats: np.ndarray, targets: np.ndarray, code_lengths: np.ndarray, piece_lengths: np.ndarray) -> np.ndarray:
    """Return sums of each row [R, 6]: nats of all targets and their number; of text targets bits, bytes, bits by
    frequency, and tokens."""
    counted = targets != NO_LOSS
    token = np.where(counted, targets, 0)
    size = np.where(counted, piece_lengths[token], 0)
    is_text = size > 0
    return np.stack(
        [
            nats.sum(axis=1),
            counted.sum(axis=1),
            (nats * is_text).sum(axis=1) / math.log(2),
            size.sum(axis=1),
            (code_lengths[token] * is_text).sum(axis=1),
            is_text.sum(axis=1),
        ],
        axis=1,
    )


def _missing_figure_note(tokenizer: Tokenizer, unknown: int) -> str:
    """Return why bits per byte cannot be computed, empty where they can."""
    if unknown:
        return f"; {unknown} tokens unknown: no value, since their text is lost"
    return "" if tokenizer.exact else "; no value, since tokens of this vocabulary do not determine their bytes"
