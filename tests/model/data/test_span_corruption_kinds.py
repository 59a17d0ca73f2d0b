"""T5's other objectives: the text can be restored from each, and each has its distribution."""

from collections import Counter
from itertools import pairwise
from math import comb
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.data.philox import philox_key
from model.data.row_format import NO_LOSS, RowFormat
from model.data.span_corruption import CorruptedRows, Denoiser, Rows, independent_spans
from model.data.span_lengths import Denoising, corrupted_lengths, raw_length
from model.errors import InputError

EOS, PAD, MASK = 1, 0, 1999
SENTINELS = tuple(range(1999, 999, -1))
KINDS: tuple[Denoising, ...] = get_args(Denoising)


def format_of(kind: Denoising, density: float = 0.15, mean_span: float = 3.0) -> RowFormat:
    return RowFormat.model_validate(
        {
            "objective": "span_corruption",
            "denoising": kind,
            "noise_density": density,
            "mean_noise_span": mean_span,
            "tokenizer_digest": "t",
            "vocab_size": 2000,
            "eos": EOS,
            "pad": PAD,
            "sentinels": SENTINELS,
            "special": (0, 1, *sorted(SENTINELS)),
        }
    )


def corrupted(kind: Denoising, tokens: np.ndarray, seed: int = 4, density: float = 0.15) -> CorruptedRows:
    return Denoiser(format_of(kind, density), seed, tokens.shape[1])(
        tokens, np.arange(len(tokens)), np.zeros(len(tokens))
    )


def sides(rows: CorruptedRows, row: int) -> tuple[list[int], list[int]]:
    """Input and target of a row, both without the end-of-text token that closes them."""
    inputs = rows.inputs_BT[row, : rows.input_lengths_B[row]].tolist()
    targets = rows.targets_BU[row][rows.targets_BU[row] != NO_LOSS].tolist()
    assert inputs.pop() == targets.pop() == EOS
    return inputs, targets


def filled(inputs: list[int], targets: list[int]) -> list[int]:
    """The text, each sentinel of the input replaced by what follows it in the target."""
    spans: dict[int, list[int]] = {}
    for token in targets:
        if token in SENTINELS:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    text = [token for sign in inputs for token in (spans.pop(sign) if sign in SENTINELS else [sign])]
    assert not spans
    return text


def restored(kind: Denoising, inputs: list[int], targets: list[int]) -> list[int]:
    """The text, whose tokens ascend, so that order too can be read where an objective loses it."""
    if kind in ("random_spans", "iid_spans"):
        return filled(inputs, targets)
    if kind == "iid_drop":
        assert inputs == sorted(inputs)
        assert targets == sorted(targets)
        return sorted(inputs + targets)
    if kind in ("prefix_lm", "language_model"):
        return inputs + targets
    if kind == "deshuffling":
        assert sorted(inputs) == targets
    if kind == "mass_style":
        assert {sign for sign, token in zip(inputs, targets, strict=True) if sign != token} <= {MASK}
    return targets


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("raw", "density"), [(568, 0.15), (40, 0.5), (11, 0.1)])
def test_a_thousand_rows_come_back_from_inputs_and_targets_of_known_length(
    kind: Denoising, raw: int, density: float
) -> None:
    tokens = np.sort(np.random.default_rng(3).integers(2, 999, size=(1000, raw)), axis=1)
    rows = corrupted(kind, tokens, density=density)
    lengths = corrupted_lengths(raw, density, kind=kind)
    assert rows.inputs_BT.shape == (1000, lengths.inputs)
    assert rows.targets_BU.shape == (1000, lengths.targets)
    if kind != "prefix_lm":
        assert (rows.input_lengths_B == lengths.inputs).all()
        assert (rows.targets_BU != NO_LOSS).all()
    for row in range(0, 1000, 10):
        assert restored(kind, *sides(rows, row)) == tokens[row].tolist()


@given(kind=st.sampled_from(KINDS), raw=st.integers(0, 30), padded=st.integers(0, 20), seed=st.integers(0, 2**63))
def test_padding_at_the_end_is_neither_read_nor_written(kind: Denoising, raw: int, padded: int, seed: int) -> None:
    tokens = np.full((1, max(raw + padded, 1)), PAD)
    tokens[0, :raw] = np.arange(2, raw + 2)
    rows = Denoiser(format_of(kind), seed, tokens.shape[1])(tokens, np.array([7]), np.array([0]))
    real = rows.input_lengths_B[0]
    assert (rows.inputs_BT[0, real:] == PAD).all()
    assert PAD not in rows.inputs_BT[0, :real]
    assert PAD not in rows.targets_BU[0]
    inputs, targets = sides(rows, 0)
    assert restored(kind, inputs, targets) == list(range(2, raw + 2))
    lengths = corrupted_lengths(raw, kind=kind)
    if kind != "prefix_lm":
        assert (len(inputs) + 1, len(targets) + 1) == (lengths.inputs, lengths.targets)
    if raw:
        alone = Denoiser(format_of(kind), seed, raw)(tokens[:, :raw], np.array([7]), np.array([0]))
        assert sides(alone, 0) == (inputs, targets)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_corrupted_alike_in_every_batch_and_otherwise_under_another_name(kind: Denoising) -> None:
    tokens = np.tile(np.arange(2, 70), (12, 1))
    corrupt = Denoiser(format_of(kind), 5, 68)
    names, epochs = np.arange(100, 112), np.arange(12) % 3
    whole = corrupt(tokens, names, epochs)
    for begin, end in ((0, 1), (1, 5), (5, 12)):
        part = corrupt(tokens[begin:end], names[begin:end], epochs[begin:end])
        assert (part.inputs_BT == whole.inputs_BT[begin:end]).all()
        assert (part.targets_BU == whole.targets_BU[begin:end]).all()
    drawn = {
        Denoiser(format_of(kind), seed, 68)(tokens[:1], np.array([row]), np.array([epoch])).inputs_BT.tobytes()
        for seed in (5, 6)
        for row in (0, 1)
        for epoch in (0, 1)
    }
    # The draw of a prefix is one of 67 numbers, and a language model draws nothing.
    assert len(drawn) >= {"language_model": 1, "prefix_lm": 7}.get(kind, 8)


def test_independent_tokens_fall_into_spans_every_way_equally_often(p_of_counts) -> None:
    """8 tokens lose 3 in 2 runs (3 x 6 / 8 = 2.25): 2 ways to part them, C(6, 2) places for the runs; 1M tokens."""
    rows = 125_000
    result = corrupted("iid_spans", np.tile(np.arange(2, 10), (rows, 1)), density=0.4)
    counts = Counter(map(bytes, result.targets_BU[:, :6].astype(np.uint16)))
    assert len(counts) == comb(6, 2) * 2 == 30
    assert 0.01 < p_of_counts(np.array(list(counts.values())), np.full(30, 1 / 30)) < 0.999


def test_spans_of_independent_tokens_are_those_of_a_coin_for_each_token(p_of_counts) -> None:
    """The lengths of runs, against tokens drawn by a coin: a million of each, 15% noise."""
    random = np.random.default_rng(8)
    coin = random.random((2000, 500)) < 0.15
    coin[:, [0, -1]] = False
    edges = np.flatnonzero(np.diff(coin.ravel().astype(np.int8)))
    by_coin = np.bincount(np.minimum(edges[1::2] - edges[::2], 5), minlength=6)[1:]
    lengths = corrupted_lengths(500, kind="iid_spans")
    assert (lengths.noise, lengths.sentinels) == (75, 64)
    result = corrupted("iid_spans", np.full((2000, 500), 50))
    found: Counter[int] = Counter()
    for row in range(2000):
        _, targets = sides(result, row)
        begins = [place for place, token in enumerate(targets) if token in SENTINELS]
        found.update(min(end - begin - 1, 5) for begin, end in pairwise([*begins, len(targets)]))
    assert sum(found.values()) == 2000 * 64
    counts = np.array([found[length] for length in range(1, 6)])
    # A coin gives runs of k with .85 x .15^(k - 1); 75 tokens in 64 runs are 1.172 a run, where the coin has 1.176.
    assert counts / counts.sum() == pytest.approx(by_coin / by_coin.sum(), abs=0.005)
    law = np.array([comb(74 - k, 62) / comb(74, 63) for k in range(1, 5)])
    # Runs of one row share 75 tokens, which makes the counts more even than independent ones: only the lower bound.
    assert p_of_counts(counts, np.append(law, 1 - law.sum())) > 0.01


def test_spans_of_one_token_are_another_law_than_independent_tokens() -> None:
    """A mean span of 1 leaves no two noise tokens side by side; independent ones often are."""
    tokens = np.tile(np.arange(2, 202), (500, 1))
    ones = Denoiser(format_of("random_spans", 0.15, 1.0), 4, 200)(tokens, np.arange(500), np.zeros(500))
    assert set(ones.targets_BU[:, 0:60:2].ravel()) <= set(SENTINELS)
    assert corrupted_lengths(200, mean_span=1.0).sentinels == 30
    # 30 x 171 / 200 = 25.65
    assert corrupted_lengths(200, kind="iid_spans").sentinels == 26


@pytest.mark.parametrize("kind", ["iid_drop", "bert_style", "mass_style"])
def test_every_token_is_noise_equally_often(kind: Denoising, p_value) -> None:
    rows, length, noise = 10_000, 100, 15
    tokens = np.tile(np.arange(2, 102), (rows, 1))
    result = corrupted(kind, tokens)
    if kind == "iid_drop":
        counts = np.bincount(result.targets_BU[:, :noise].ravel(), minlength=102)[2:]
    else:
        changed = result.inputs_BT[:, :length] != tokens
        # One in ten of BERT-style noise is drawn from 998 tokens, and once in 998 as it was.
        assert changed.sum(axis=1).min() >= noise - 2
        counts = changed.sum(axis=0)
    share = noise / length
    variance = rows * share * (1 - share) * length / (length - 1)
    mean = counts.mean()
    assert mean == pytest.approx(rows * share, rel=2e-3)
    assert 0.01 < p_value(float(((counts - mean) ** 2 / variance).sum()), length - 1) < 0.999


def test_of_bert_style_noise_90_per_cent_are_masks_and_10_any_token(p_of_counts) -> None:
    """A million tokens, 150 thousand of them noise."""
    result = corrupted("bert_style", np.full((10_000, 100), 50))
    became = np.bincount(result.inputs_BT[:, :100].ravel(), minlength=2000)
    masks, others = became[MASK], np.delete(became[2:1000], 48)
    by_chance = 0.1 / 998
    stayed = 150_000 - masks - others.sum()
    assert 0.01 < p_of_counts(np.array([masks, others.sum()]), np.array([0.9, 0.1 - by_chance])) < 0.999
    assert stayed < 60
    assert others.min() > 0
    assert 0.01 < p_of_counts(others, np.full(997, 1 / 997)) < 0.999
    assert became[list(SENTINELS[1:])].sum() == 0


def test_every_order_of_a_shuffled_text_is_equally_likely(p_of_counts) -> None:
    """5 tokens in 120 orders, a million tokens."""
    result = corrupted("deshuffling", np.tile(np.arange(2, 7), (200_000, 1)))
    counts = Counter(map(bytes, result.inputs_BT.astype(np.uint16)))
    assert len(counts) == 120
    assert 0.01 < p_of_counts(np.array(list(counts.values())), np.full(120, 1 / 120)) < 0.999


def test_a_prefix_is_of_any_length_equally_often(p_of_counts) -> None:
    result = corrupted("prefix_lm", np.tile(np.arange(2, 102), (10_000, 1)))
    assert set(result.input_lengths_B) == set(range(2, 101))
    counts = np.bincount(result.input_lengths_B)[2:]
    assert 0.01 < p_of_counts(counts, np.full(99, 1 / 99)) < 0.999


@given(
    inputs=st.integers(8, 1200),
    density=st.sampled_from([0.1, 0.15, 0.25, 0.5]),
    mean_span=st.sampled_from([2.0, 3.0, 5.0, 10.0]),
    kind=st.sampled_from(KINDS),
)
def test_rows_are_as_long_as_the_input_has_space_for(
    inputs: int, density: float, mean_span: float, kind: Denoising
) -> None:
    raw = raw_length(inputs, density, mean_span, kind)
    lengths, longer = (corrupted_lengths(length, density, mean_span, kind) for length in (raw, raw + 1))
    if kind == "language_model":
        assert (lengths.inputs, lengths.targets) == (1, inputs)
    else:
        assert lengths.inputs <= inputs < longer.inputs
    assert lengths.sentinels <= max(lengths.noise, 1)


@pytest.mark.parametrize(
    ("kind", "raw", "targets", "sentinels"),
    [
        ("random_spans", 568, 114, 28),
        ("iid_spans", 522, 145, 66),
        ("iid_drop", 601, 91, 0),
        ("bert_style", 511, 512, 1),
        ("mass_style", 511, 512, 1),
        ("deshuffling", 511, 512, 0),
        ("prefix_lm", 512, 512, 0),
        ("language_model", 511, 512, 0),
    ],
)
def test_what_512_inputs_become(kind: Denoising, raw: int, targets: int, sentinels: int) -> None:
    assert raw_length(512, kind=kind) == raw
    lengths = corrupted_lengths(raw, kind=kind)
    assert (lengths.targets, lengths.sentinels) == (targets, sentinels)


def test_masks_need_one_sentinel_and_random_tokens_some_text() -> None:
    bare = {"sentinels": (), "special": (0, 1)}
    with pytest.raises(InputError, match=r"mass_style.*vocab\.sentinels = 1 or more"):
        Denoiser(format_of("mass_style").model_copy(update=bare), 1, 20)
    Denoiser(format_of("deshuffling").model_copy(update=bare), 1, 20)
    with pytest.raises(InputError, match="all 2000 ids of the vocabulary are special"):
        Denoiser(format_of("bert_style").model_copy(update={"special": tuple(range(2000))}), 1, 20)


@given(count=st.integers(1, 12), kept=st.integers(1, 12), seed=st.integers(0, 2**63), data=st.data())
def test_runs_are_as_many_as_requested_wherever_they_are(count: int, kept: int, seed: int, data) -> None:
    spans, length = data.draw(st.integers(1, min(count, kept + 1))), count + kept
    noise = np.zeros((1, length), dtype=np.bool_)
    unused, zero = np.zeros((1, length), np.int64), np.zeros(1, np.uint64)
    independent_spans(
        Rows(
            tokens=unused,
            length=np.array([length]),
            noise=noise,
            count_of=np.full(length + 1, count),
            spans_of=np.full(length + 1, spans),
            inputs=unused,
            targets=unused,
            ends=unused,
            sentinels=unused[0],
            ordinary=unused[0],
            key=philox_key(seed, "runs"),
            row=zero,
            epoch=zero,
        )
    )
    assert noise.sum() == count
    assert (np.diff(noise[0].astype(int), prepend=0) == 1).sum() == spans
