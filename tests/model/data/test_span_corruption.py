"""T5's spans: the paper's lengths, the exact distribution, and no loss of text."""

from collections import Counter
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.data.row_format import NO_LOSS, RowFormat
from model.data.span_corruption import CorruptedRows, Denoiser
from model.data.span_lengths import corrupted_lengths, raw_length
from model.errors import InputError

EOS, PAD = 1, 0
SENTINELS = tuple(range(199, 99, -1))
FORMAT = RowFormat(
    objective="span_corruption",
    tokenizer_digest="t",
    vocab_size=200,
    eos=EOS,
    pad=PAD,
    sentinels=SENTINELS,
    special=(0, 1, *sorted(SENTINELS)),
)


def test_2048_inputs_would_need_more_than_a_hundred_sentinels() -> None:
    with pytest.raises(InputError, match=r"removes 114 spans.*has\s+only 100 sentinels"):
        Denoiser(FORMAT, 1, raw_length(2048))


def restored(corrupted: CorruptedRows, row: int) -> list[int]:
    """The raw tokens: each sentinel of the inputs replaced by what follows it in the targets."""
    spans: dict[int, list[int]] = {}
    for token in corrupted.targets_BU[row]:
        if token == NO_LOSS:
            break
        if token in SENTINELS:
            spans[token] = []
        elif spans:
            spans[list(spans)[-1]].append(int(token))
    written = list(spans.values())
    if written:
        assert written[-1].pop() == EOS
    text: list[int] = []
    for token in corrupted.inputs_BT[row, : corrupted.input_lengths_B[row] - 1]:
        text += spans.pop(token) if token in SENTINELS else [int(token)]
    assert not spans
    return text


@pytest.mark.parametrize("raw", [568, 40, 11])
def test_ten_thousand_rows_come_back_whole(raw: int) -> None:
    random = np.random.default_rng(3)
    lengths = corrupted_lengths(raw)
    corrupt = Denoiser(FORMAT, 9, raw)
    for begin in range(0, 10_000, 1000):
        tokens = random.integers(2, 100, size=(1000, raw))
        corrupted = corrupt(tokens, np.arange(begin, begin + 1000), np.zeros(1000))
        assert corrupted.inputs_BT.shape == (1000, lengths.inputs)
        assert corrupted.targets_BU.shape == (1000, lengths.targets)
        assert (corrupted.input_lengths_B == lengths.inputs).all()
        assert (corrupted.targets_BU != NO_LOSS).all()
        is_sentinel = np.isin(corrupted.inputs_BT, SENTINELS)
        # Starts with what stays, never two spans in a row, ends in noise.
        assert not is_sentinel[:, 0].any()
        assert not (is_sentinel[:, 1:] & is_sentinel[:, :-1]).any()
        assert is_sentinel[:, -2].all()
        assert (corrupted.inputs_BT[:, -1] == EOS).all()
        found = corrupted.inputs_BT[is_sentinel].reshape(1000, lengths.sentinels)
        assert (found == np.array(SENTINELS[: lengths.sentinels])).all()
        for row in range(0, 1000, 1 if raw < 100 else 20):
            assert restored(corrupted, row) == tokens[row].tolist()


def test_every_way_to_part_a_row_is_equally_likely(p_of_counts) -> None:
    """40 tokens lose 6 in 2 spans: 5 ways to part the noise, 33 to part the rest, 165 in all, over a million tokens."""
    rows = 25_000
    corrupted = Denoiser(FORMAT, 4, 40)(np.full((rows, 40), 50), np.arange(rows), np.zeros(rows))
    first_kept = (corrupted.inputs_BT == SENTINELS[0]).argmax(axis=1)
    first_span = (corrupted.targets_BU == SENTINELS[1]).argmax(axis=1) - 1
    counts = Counter(zip(first_kept.tolist(), first_span.tolist(), strict=True))
    assert set(counts) == {(kept, span) for kept in range(1, 34) for span in range(1, 6)}
    assert 0.01 < p_of_counts(np.array(list(counts.values())), np.full(165, 1 / 165)) < 0.999


@pytest.mark.parametrize("nth", [0, 13, 26])
def test_spans_of_t5_rows_are_as_long_as_the_law_of_compositions_says(nth: int, p_of_counts) -> None:
    """85 noise tokens in 28 spans: a span has k tokens with probability C(84 - k, 26) / C(84, 27); 8M tokens."""
    rows = 14_000
    corrupted = Denoiser(FORMAT, 4, 568)(np.full((rows, 568), 50), np.arange(rows), np.zeros(rows))
    begins = [(corrupted.targets_BU == SENTINELS[span]).argmax(axis=1) for span in (nth, nth + 1)]
    lengths = np.minimum(begins[1] - begins[0] - 1, 12)
    law = np.array([comb(84 - k, 26) / comb(84, 27) for k in range(1, 12)])
    law = np.append(law, 1 - law.sum())
    assert 0.01 < p_of_counts(np.bincount(lengths, minlength=13)[1:], law) < 0.999
    stays = (corrupted.inputs_BT == 50).sum(axis=1)
    assert set(stays) == {568 - 85}


def test_decoder_inputs_are_the_targets_one_place_later_behind_padding() -> None:
    corrupted = Denoiser(FORMAT, 4, 12)(np.array([[*range(50, 62)], [*range(50, 56), *[PAD] * 6]]), *[np.arange(2)] * 2)
    targets = np.where(corrupted.targets_BU == NO_LOSS, PAD, corrupted.targets_BU)
    assert (corrupted.decoder_inputs_BU[:, 0] == PAD).all()
    assert (corrupted.decoder_inputs_BU[:, 1:] == targets[:, :-1]).all()


@given(raw=st.integers(1, 60), padded=st.integers(0, 60), seed=st.integers(0, 2**63))
def test_padding_at_the_end_is_neither_kept_nor_predicted(raw: int, padded: int, seed: int) -> None:
    tokens = np.full((1, raw + padded), PAD)
    tokens[0, :raw] = np.arange(2, raw + 2)
    corrupted = Denoiser(FORMAT, seed, raw + padded)(tokens, np.array([7]), np.array([0]))
    real = corrupted.input_lengths_B[0]
    assert (corrupted.inputs_BT[0, real:] == PAD).all()
    assert PAD not in corrupted.inputs_BT[0, :real]
    assert PAD not in corrupted.targets_BU[0]
    assert restored(corrupted, 0) == list(range(2, raw + 2))
    if raw > 1:
        alone = Denoiser(FORMAT, seed, raw)(tokens[:, :raw], np.array([7]), np.array([0]))
        assert corrupted.inputs_BT[0, :real].tolist() == alone.inputs_BT[0].tolist()


def test_a_row_is_corrupted_alike_in_every_batch_and_otherwise_under_another_name() -> None:
    tokens = np.tile(np.arange(2, 42), (12, 1))
    corrupt = Denoiser(FORMAT, 5, 40)
    rows, epochs = np.arange(100, 112), np.arange(12) % 3
    whole = corrupt(tokens, rows, epochs)
    for begin, end in ((0, 1), (1, 5), (5, 12)):
        part = corrupt(tokens[begin:end], rows[begin:end], epochs[begin:end])
        assert (part.inputs_BT == whole.inputs_BT[begin:end]).all()
        assert (part.targets_BU == whole.targets_BU[begin:end]).all()
    long = np.full((1, 568), 50)
    drawn = {
        Denoiser(FORMAT, seed, 568)(long, np.array([row]), np.array([epoch])).inputs_BT.tobytes()
        for seed in (5, 6)
        for row in (0, 1)
        for epoch in (0, 1)
    }
    assert len(drawn) == 8


@pytest.mark.parametrize(("density", "mean_span"), [(0.5, 1.0), (0.3, 10.0), (0.05, 3.0)])
def test_other_densities_and_spans_come_with_the_rows(density: float, mean_span: float) -> None:
    rows = FORMAT.model_copy(update={"noise_density": density, "mean_noise_span": mean_span})
    tokens = np.tile(np.arange(2, 100), (50, 1))
    # Rows of many lengths: shorter ones must fit, too.
    for row in range(50):
        tokens[row, 2 * row + 2 :] = PAD
    corrupted = Denoiser(rows, 1, 98)(tokens, np.arange(50), np.zeros(50))
    for row in range(50):
        real = min(2 * row + 2, 98)
        lengths = corrupted_lengths(real, density, mean_span)
        assert corrupted.input_lengths_B[row] == lengths.inputs
        assert (corrupted.targets_BU[row] != NO_LOSS).sum() == lengths.targets
        assert restored(corrupted, row) == tokens[row, :real].tolist()
