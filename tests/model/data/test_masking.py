"""BERT's masking: its statistics over a million tokens, its limits, and that it is a function of (seed, row, epoch)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.data.masking import MaskedRows, Masking
from model.data.philox import philox_key
from model.data.row_format import NO_LOSS, RowFormat, WordBorders
from model.errors import InputError

MASK, TEXT = 4, 50
SPECIAL = (0, 1, 2, 3, 4, 109)
FORMAT = RowFormat(
    objective="masked_lm", tokenizer_digest="t", vocab_size=110, eos=1, pad=0, cls=2, sep=3, mask=4, special=SPECIAL
)
ORDINARY = [token for token in range(110) if token not in SPECIAL]
ROWS, LENGTH, CANDIDATES, MASKED = 7_813, 128, 125, 19
"""A million tokens as BERT reads them: [CLS], text, [SEP], text, [SEP]."""


def one_word_rows(rows: int) -> np.ndarray:
    tokens = np.full((rows, LENGTH), TEXT)
    tokens[:, 0], tokens[:, [60, 127]] = 2, 3
    return tokens


@pytest.fixture(scope="module")
def million() -> tuple[np.ndarray, MaskedRows]:
    tokens = one_word_rows(ROWS)
    return tokens, Masking(FORMAT, seed=5, max_predictions=20)(tokens, np.arange(ROWS), np.zeros(ROWS))


def test_fifteen_per_cent_are_masked_and_none_of_them_is_special(million: tuple[np.ndarray, MaskedRows]) -> None:
    _, masked = million
    counts = (masked.targets_BM != NO_LOSS).sum(axis=1)
    assert set(counts) == {MASKED} == {round(0.15 * CANDIDATES)}
    assert set(masked.targets_BM[:, :MASKED].ravel()) == {TEXT}


def test_of_the_masked_80_are_the_mask_10_another_token_10_themselves(
    million: tuple[np.ndarray, MaskedRows], p_of_counts
) -> None:
    _, masked = million
    became = np.take_along_axis(masked.inputs_BT, masked.positions_BM[:, :MASKED], axis=1)
    counts = np.array([(became == MASK).sum(), (became == TEXT).sum(), ((became != MASK) & (became != TEXT)).sum()])
    by_chance = 0.1 / len(ORDINARY)
    assert 0.01 < p_of_counts(counts, np.array([0.8, 0.1 + by_chance, 0.1 - by_chance])) < 0.999


def test_another_token_is_any_that_has_text_equally_often(million: tuple[np.ndarray, MaskedRows], p_of_counts) -> None:
    _, masked = million
    became = np.take_along_axis(masked.inputs_BT, masked.positions_BM[:, :MASKED], axis=1)
    counts = np.bincount(became.ravel(), minlength=110)
    others = [token for token in ORDINARY if token != TEXT]
    assert counts[list(set(SPECIAL) - {MASK})].sum() == 0
    assert 0.01 < p_of_counts(counts[others], np.full(len(others), 1 / len(others))) < 0.999


def test_every_place_of_text_is_masked_equally_often(million, p_value) -> None:
    _, masked = million
    counts = np.bincount(masked.positions_BM[:, :MASKED].ravel(), minlength=LENGTH)
    assert counts[[0, 60, 127]].sum() == 0
    counts = np.delete(counts, [0, 60, 127])
    share = MASKED / CANDIDATES
    # Drawn without replacement, places of a row keep each other away, which makes the counts more even.
    variance = ROWS * share * (1 - share) * CANDIDATES / (CANDIDATES - 1)
    statistic = float(((counts - ROWS * share) ** 2 / variance).sum())
    assert 0.01 < p_value(statistic, CANDIDATES - 1) < 0.999


def test_each_epoch_masks_anew_and_independently() -> None:
    tokens = one_word_rows(2000)
    masking = Masking(FORMAT, seed=5, max_predictions=20)
    hidden = np.zeros((2, *tokens.shape), dtype=bool)
    for epoch in (0, 1):
        positions = masking(tokens, np.arange(2000), np.full(2000, epoch)).positions_BM[:, :MASKED]
        np.put_along_axis(hidden[epoch], positions, True, axis=1)
    both = (hidden[0] & hidden[1]).sum(axis=1)
    # Hypergeometric: 19 of 125 and 19 of 125 meet 2.888 times.
    assert both.mean() == pytest.approx(MASKED * MASKED / CANDIDATES, abs=4 * both.std() / 2000**0.5)


@given(
    rows=st.integers(1, 9),
    length=st.integers(1, 40),
    most=st.integers(1, 8),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
def test_what_was_hidden_put_back_gives_the_row(rows: int, length: int, most: int, seed: int, data) -> None:
    tokens = np.array(data.draw(st.lists(st.integers(0, 109), min_size=rows * length, max_size=rows * length)))
    tokens = tokens.reshape(rows, length)
    before = tokens.copy()
    masked = Masking(FORMAT, seed, most)(tokens, np.arange(rows), np.zeros(rows))
    assert (tokens == before).all()
    restored = masked.inputs_BT.copy()
    for row in range(rows):
        counted = masked.targets_BM[row] != NO_LOSS
        places = masked.positions_BM[row][counted]
        candidates = int((~np.isin(tokens[row], SPECIAL)).sum())
        assert len(places) == min(candidates, most, max(1, round(0.15 * candidates)))
        assert (np.diff(places) > 0).all()
        assert counted[: len(places)].all()
        restored[row, places] = masked.targets_BM[row][counted]
    assert (restored == tokens).all()


def test_a_row_is_masked_alike_in_every_batch_and_otherwise_under_another_name() -> None:
    tokens = one_word_rows(12)
    masking = Masking(FORMAT, 5, 20)
    rows, epochs = np.arange(100, 112), np.arange(12) % 3
    whole = masking(tokens, rows, epochs)
    for begin, end in ((0, 1), (1, 5), (5, 12)):
        part = masking(tokens[begin:end], rows[begin:end], epochs[begin:end])
        assert (part.inputs_BT == whole.inputs_BT[begin:end]).all()
        assert (part.positions_BM == whole.positions_BM[begin:end]).all()
    drawn = {
        masking(tokens[:1], np.array([row]), np.array([epoch])).positions_BM.tobytes()
        for row in (0, 1, 2)
        for epoch in (0, 1, 2)
    }
    drawn.add(Masking(FORMAT, 6, 20)(tokens[:1], np.array([0]), np.array([0])).positions_BM.tobytes())
    assert len(drawn) == 10


def test_long_rows_stop_at_the_most_predictions_and_rows_without_text_give_none() -> None:
    tokens = np.array([[TEXT] * 128, [0] * 128])
    masked = Masking(FORMAT, 5, max_predictions=7)(tokens, np.arange(2), np.zeros(2))
    assert (masked.targets_BM != NO_LOSS).sum(axis=1).tolist() == [7, 0]
    assert (masked.inputs_BT[1] == 0).all()


# Ids 5 to 49 begin a word, 50 to 108 go on with one; [SEP] and [CLS] end one.
GOES_ON = np.isin(np.arange(110), np.arange(50, 109))
WORDS = FORMAT.model_copy(
    update={"word_borders": WordBorders(GOES_ON, ~np.isin(np.arange(110), SPECIAL)).packed(), "vocab_size": 110}
)


def words_in(row: np.ndarray) -> list[list[int]]:
    """Places of the tokens of each word."""
    words: list[list[int]] = []
    for place, token in enumerate(row.tolist()):
        if token in SPECIAL:
            continue
        if token >= 50 and place and row[place - 1] not in SPECIAL:
            words[-1].append(place)
        else:
            words.append([place])
    return words


@settings(deadline=None)  # The first call compiles.
@given(
    rows=st.integers(1, 6),
    length=st.integers(1, 40),
    most=st.integers(1, 8),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
def test_words_are_hidden_whole_and_no_more_than_their_share(rows, length, most, seed, data) -> None:
    tokens = np.array(data.draw(st.lists(st.integers(0, 109), min_size=rows * length, max_size=rows * length)))
    tokens = tokens.reshape(rows, length)
    masked = Masking(WORDS, seed, most)(tokens, np.arange(rows), np.zeros(rows))
    for row in range(rows):
        counted = masked.targets_BM[row] != NO_LOSS
        places = masked.positions_BM[row][counted].tolist()
        assert (tokens[row, places] == masked.targets_BM[row][counted]).all()
        words = words_in(tokens[row])
        candidates = sum(map(len, words))
        hidden = [word for word in words if set(word) & set(places)]
        assert sorted(place for word in hidden for place in word) == places
        left = min(candidates, most, max(1, round(0.15 * candidates))) - len(places)
        # What is left is too little for another word.
        assert left >= 0
        assert all(len(word) > left for word in words if word not in hidden) or left == 0
        unhidden = np.delete(np.arange(length), places)
        assert (masked.inputs_BT[row, unhidden] == tokens[row, unhidden]).all()


def test_every_word_is_hidden_equally_often_and_its_tokens_as_others(p_of_counts, p_value) -> None:
    """120 tokens in 60 words of two: 18 tokens are 9 words; 960 thousand tokens."""
    tokens = np.tile([7, TEXT], (8000, 60))
    masked = Masking(WORDS, 5, 20)(tokens, np.arange(8000), np.zeros(8000))
    assert set((masked.targets_BM != NO_LOSS).sum(axis=1)) == {18}
    counts = np.bincount(masked.positions_BM[:, :18].ravel(), minlength=120)
    assert (counts[::2] == counts[1::2]).all()
    share = 9 / 60
    variance = 8000 * share * (1 - share) * 60 / 59
    assert 0.01 < p_value(float(((counts[::2] - 8000 * share) ** 2 / variance).sum()), 59) < 0.999
    became = np.take_along_axis(masked.inputs_BT, masked.positions_BM[:, :18], axis=1)
    stayed = (became == masked.targets_BM[:, :18]).sum()
    by_chance = 0.1 / len(ORDINARY)
    kinds = np.array([(became == MASK).sum(), stayed, became.size - (became == MASK).sum() - stayed])
    assert 0.01 < p_of_counts(kinds, np.array([0.8, 0.1 + by_chance, 0.1 - by_chance])) < 0.999


def test_words_are_drawn_by_seed_row_and_epoch_alone() -> None:
    tokens = np.tile([7, TEXT, TEXT, 8], (12, 20))
    masking = Masking(WORDS, 5, 20)
    names, epochs = np.arange(100, 112), np.arange(12) % 3
    whole = masking(tokens, names, epochs)
    for begin, end in ((0, 1), (1, 5), (5, 12)):
        part = masking(tokens[begin:end], names[begin:end], epochs[begin:end])
        assert (part.inputs_BT == whole.inputs_BT[begin:end]).all()
    assert len({row.tobytes() for row in whole.positions_BM}) == 12


def test_masks_are_those_of_a_plain_shuffle_over_the_stream_of_row_and_epoch() -> None:
    """The rule written out: Fisher and Yates over the places of text, then 80% [MASK], 10% as it is, 10% another."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 110, (40, 60))
    names, epochs = rng.integers(0, 10_000, 40), rng.integers(0, 5, 40)
    found = Masking(FORMAT, seed=5, max_predictions=7)(tokens, names, epochs)
    key = philox_key(5, "masking")
    kinds = set()
    for b in range(40):
        places = [t for t in range(60) if tokens[b, t] not in SPECIAL]
        masked = min(7, max(1, round(0.15 * len(places))))
        # NumPy counts up before it draws; our first block is number 0.
        before = ((int(names[b]) << 64) + (int(epochs[b]) << 128) - 1) % 2**256
        numbers = [int(n) for n in np.random.Philox(key=key, counter=before).random_raw(3 * masked)]
        for m in range(masked):
            other = m + (numbers[m] * (len(places) - m) >> 64)
            places[m], places[other] = places[other], places[m]
        expected = tokens[b].copy()
        hidden = sorted(places[:masked])
        for m, place in enumerate(hidden):
            tenth = numbers[masked + m] * 10 >> 64
            kinds.add(tenth)
            if tenth < 8:
                expected[place] = MASK
            elif tenth == 9:
                expected[place] = ORDINARY[numbers[2 * masked + m] * len(ORDINARY) >> 64]
        assert found.inputs_BT[b].tolist() == expected.tolist()
        assert found.positions_BM[b, :masked].tolist() == hidden
        assert found.targets_BM[b, :masked].tolist() == tokens[b, hidden].tolist()
        assert set(found.targets_BM[b, masked:]) <= {NO_LOSS}
    assert kinds == set(range(10))


def test_without_a_mask_token_nothing_can_be_hidden() -> None:
    with pytest.raises(InputError, match="no mask token"):
        Masking(FORMAT.model_copy(update={"mask": -1}), 5, 20)
    with pytest.raises(InputError, match="all 110 ids of the vocabulary are special"):
        Masking(FORMAT.model_copy(update={"special": tuple(range(110))}), 5, 20)
