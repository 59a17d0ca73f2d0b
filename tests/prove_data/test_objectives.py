"""What BERT and T5 are trained on, of real text: nothing is lost, nothing is empty, and words are hidden whole."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from model.data.masking import Masking
from model.data.row_format import NO_LOSS, RowFormat
from model.data.span_corruption import CorruptedRows, Denoiser
from model.data.span_lengths import Denoising, raw_length
from tasks.chunk.row_formats import word_borders
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import tokenizer_of

pytestmark = pytest.mark.prove_data

Measured = Callable[..., None]
CORPORA = ("en_books", "ru_novels", "zh_classic_prose", "social_emoji")
INPUTS, PAIR = 512, 128
ORDER_IS_LOST = ("iid_drop", "deshuffling")


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> Tokenizer:
    return tokenizer_of((data / "tokenizers" / "mistral_v1_32k.model").read_bytes())


@pytest.fixture(scope="module")
def streams(corpora: Any, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """The tokens of each corpus, documents closed, as rows of T5 are cut from them."""
    return {
        name: np.concatenate([np.append(ids, tokenizer.eos) for ids in tokenizer.encode_batch(corpora.documents(name))])
        for name in CORPORA
    }


def rows_of(stream: np.ndarray, length: int) -> np.ndarray:
    return stream[: len(stream) // length * length].reshape(-1, length).astype(np.int64)


def brought_back(made: CorruptedRows, row: int, kind: Denoising, sentinels: set[int]) -> list[int]:
    """The text of a row from its input and target, or its tokens where their order is lost."""
    inputs = made.inputs_BT[row, : made.input_lengths_B[row] - 1].tolist()
    targets = made.targets_BU[row][made.targets_BU[row] != NO_LOSS].tolist()[:-1]
    if kind in ("bert_style", "mass_style", "deshuffling"):
        return targets
    if kind not in ("random_spans", "iid_spans"):
        return inputs + targets
    begins = [place for place, token in enumerate(targets) if token in sentinels]
    spans = {targets[a]: targets[a + 1 : b] for a, b in zip(begins, [*begins[1:], len(targets)], strict=True)}
    return [token for sign in inputs for token in spans.get(sign, [sign])]


@pytest.mark.parametrize("kind", get_args(Denoising))
def test_rows_of_t5_come_back_and_leave_nothing_empty(
    streams: dict[str, np.ndarray], tokenizer: Tokenizer, measured: Measured, kind: Denoising
) -> None:
    pieces = tokenizer.vocab_size
    sentinels = tuple(range(pieces + 99, pieces - 1, -1))
    rows_say = RowFormat(
        objective="span_corruption",
        denoising=kind,
        tokenizer_digest=tokenizer.digest,
        vocab_size=pieces + 100,
        eos=tokenizer.eos,
        pad=tokenizer.pad,
        sentinels=sentinels,
        special=(*tokenizer.special, *sorted(sentinels)),
    )
    raw = raw_length(INPUTS, kind=kind)
    corrupt = Denoiser(rows_say, 1, raw)
    wrong = empty = places = 0
    for stream in streams.values():
        rows = rows_of(stream, raw)
        made = corrupt(rows, np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))
        empty += int((made.targets_BU == NO_LOSS).sum() + (made.inputs_BT.shape[1] - made.input_lengths_B).sum())
        places += made.targets_BU.size + made.inputs_BT.size
        for row in range(len(rows)):
            text = brought_back(made, row, kind, set(sentinels))
            same = Counter(text) == Counter(rows[row].tolist()) if kind in ORDER_IS_LOST else text == rows[row].tolist()
            wrong += not same
    measured("chunk", f"rows of {kind} that do not come back", wrong, at_most=0)
    # A prefix of any length and what follows it fill one row of two.
    measured("chunk", f"empty places of {kind}", empty / places, at_most=0.51 if kind == "prefix_lm" else 0.0)


@pytest.mark.parametrize("corpus", CORPORA)
def test_words_are_hidden_whole_in_their_share(
    streams: dict[str, np.ndarray], tokenizer: Tokenizer, measured: Measured, corpus: str
) -> None:
    borders = word_borders(tokenizer)
    rows_say = RowFormat(
        objective="masked_lm",
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size + 1,
        eos=tokenizer.eos,
        pad=tokenizer.pad,
        mask=tokenizer.vocab_size,
        special=(*tokenizer.special, tokenizer.vocab_size),
        word_borders=type(borders)(
            np.append(borders.continues_word_V, False), np.append(borders.leaves_word_open_V, False)
        ).packed(),
    )
    rows = rows_of(streams[corpus], PAIR)
    masked = Masking(rows_say, 1, 20)(rows, np.arange(len(rows)), np.zeros(len(rows)))
    hidden = np.zeros(rows.shape, dtype=np.bool_)
    counted = masked.targets_BM != NO_LOSS
    hidden[np.repeat(np.arange(len(rows)), counted.sum(axis=1)), masked.positions_BM[counted]] = True
    within = borders.continues_word_V[rows[:, 1:]] & borders.leaves_word_open_V[rows[:, :-1]]
    cut = int((within & (hidden[:, 1:] != hidden[:, :-1])).sum())
    text = ~np.isin(rows, tokenizer.special)
    tokens_a_word = text.sum() / (text.sum() - within.sum())
    measured("chunk", f"words hidden in part, {corpus}", cut, at_most=0, note=f"{tokens_a_word:.2f} tokens a word")
    # What is hidden of each row where tokens are hidden one by one.
    share = np.rint(0.15 * text.sum(axis=1)).sum()
    measured("chunk", f"hidden in whole words, short of 15%, {corpus}", 1 - hidden.sum() / share, at_most=0.001)
