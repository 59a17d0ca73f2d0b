"""How much of each source is read, and in which order."""

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from model.errors import InputError
from tasks.chunk.config import ChunkConfig
from tasks.chunk.mixture import plan_mixture, plan_mixtures
from tasks.chunk.order import SourceReads, inverse_permutation, order_batches, permutation, plan_parts, plan_reads


def reads_of(rows: dict[str, int], weights: dict[str, float], budget: int, max_epochs: float, tokens: int = 10):
    """What is read of sources whose rows all hold as many tokens."""
    available = {source: count * tokens for source, count in rows.items()}
    mixture = plan_mixture(available, weights, budget, max_epochs)
    return plan_reads(mixture, rows, np.full(sum(rows.values()), tokens, dtype=np.uint32), run_seed=1)


def order_of(planned: list[SourceReads]) -> tuple[np.ndarray, np.ndarray]:
    table = pa.Table.from_batches(order_batches([planned]))
    return table.column("row").to_numpy(), table.column("epoch").to_numpy()


def test_tokens_follow_weights_and_epochs_follow_from_sizes():
    mixture = plan_mixture({"web": 1000, "books": 100}, {"web": 3, "books": 1}, budget=400, max_epochs=4)
    assert mixture.targets == {"books": 100, "web": 300}
    assert mixture.weights == {"books": 0.25, "web": 0.75}
    assert mixture.planned == {"books": 0.25, "web": 0.75}


def test_the_cap_stops_repetition_and_the_others_take_the_surplus_by_weight():
    mixture = plan_mixture({"a": 10, "b": 1000, "c": 1000}, {"a": 2, "b": 1, "c": 1}, budget=400, max_epochs=4)
    assert mixture.targets == {"a": 40, "b": 180, "c": 180}
    assert mixture.planned == {"a": 0.1, "b": 0.45, "c": 0.45}


def test_gpt3_weights_keep_their_epochs_under_a_cap_of_four():
    # Brown et al. 2020, table 2.2 in millions of tokens: no source passes four epochs.
    tokens = {"cc": 410_000, "webtext": 19_000, "books1": 12_000, "books2": 55_000, "wikipedia": 3_000}
    weights = {"cc": 60, "webtext": 22, "books1": 8, "books2": 8, "wikipedia": 3}
    mixture = plan_mixture(tokens, weights, budget=300_000, max_epochs=4)
    epochs = {source: round(mixture.targets[source] / tokens[source], 2) for source in tokens}
    assert epochs == {"cc": 0.43, "webtext": 3.44, "books1": 1.98, "books2": 0.43, "wikipedia": 2.97}


def test_when_every_source_is_at_its_cap_less_is_read_than_asked():
    mixture = plan_mixture({"a": 3, "b": 5}, {"a": 1, "b": 1}, budget=100, max_epochs=2)
    assert mixture.targets == {"a": 6, "b": 10}
    assert (mixture.total, mixture.budget) == (16, 100)


def test_without_weights_sizes_decide():
    assert plan_mixture({"a": 30, "b": 10}, {}, budget=20, max_epochs=1).targets == {"a": 15, "b": 5}


def test_a_source_without_a_weight_is_named():
    with pytest.raises(InputError, match=r"`b`, and chunk.weights names only a"):
        plan_mixture({"a": 1, "b": 1}, {"a": 1.0}, budget=1, max_epochs=1)


def test_nothing_to_read_is_an_error():
    with pytest.raises(InputError, match="nothing to read"):
        plan_mixture({}, {"a": 1.0}, budget=1, max_epochs=1)
    with pytest.raises(InputError, match="9 tokens do not allow one whole row"):
        reads_of({"a": 5}, {}, budget=9, max_epochs=4)


def test_rows_without_a_token_of_the_budget_are_no_order() -> None:
    counted = np.zeros(40, dtype=np.uint32)
    counted[0] = 16
    with pytest.raises(InputError, match="4 tokens do not allow one whole row"):
        plan_reads(plan_mixture({"a": 16}, {}, 4, 4.0), {"a": 40}, counted, run_seed=1)


def test_rows_of_all_lengths_keep_to_the_tokens_of_the_budget():
    counted = np.array([3, 5, 4, 10, 10], dtype=np.uint32)  # a: 12 tokens in three rows, b: 20 in two
    mixture = plan_mixture({"a": 12, "b": 20}, {"a": 1, "b": 1}, budget=60, max_epochs=4)
    a, b = plan_reads(mixture, {"a": 3, "b": 2}, counted, run_seed=1)
    assert (a.passes, b.passes) == (2, 1)  # 24 and 20 tokens of 30 each; what is left holds one row of either
    assert 24 < a.tokens <= 30
    assert b.tokens == 30
    row, _ = order_of([a, b])
    assert counted[row].sum() == a.tokens + b.tokens


def test_what_is_less_than_a_row_goes_to_the_next_source():
    planned = reads_of({"a": 9, "b": 9, "c": 9}, {"a": 1, "b": 1, "c": 1}, budget=10, max_epochs=4)
    assert [source.reads for source in planned] == [0, 0, 1]  # 3, 3 and 4 tokens, and a row has 10


def test_what_may_not_be_repeated_goes_back_to_an_earlier_source():
    planned = reads_of({"a": 46, "b": 1}, {}, budget=700, max_epochs=1.5)
    assert [source.reads for source in planned] == [69, 1]  # shares of 685 and 15 tokens, of which b repeats none


@settings(deadline=None)
@given(
    rows=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 60), min_size=1),
    budget=st.integers(10, 4000),
    max_epochs=st.sampled_from([1.0, 1.5, 4.0]),
)
def test_order_reads_each_source_in_whole_passes_and_no_row_ahead_of_its_turn(rows, budget, max_epochs):
    planned = reads_of(rows, {}, budget, max_epochs)
    row, epoch = order_of(planned)
    assert len(row) == sum(source.reads for source in planned)
    assert len(row) * 10 <= budget
    assert len(row) * 10 > budget - 10 or len(row) >= sum(int(max_epochs * count) for count in rows.values())
    for source in planned:
        mine = (row >= source.first_row) & (row < source.first_row + source.rows)
        assert mine.sum() == source.reads
        assert all(earlier <= later for earlier, later in pairwise(epoch[mine].tolist()))
        for nth in range(source.passes):
            whole = range(source.first_row, source.first_row + source.rows)
            assert sorted(row[mine][epoch[mine] == nth]) == list(whole)
        times = Counter((row[mine] - source.first_row).tolist())
        assert source.times_read(0, source.rows).tolist() == [times[number] for number in range(source.rows)]


@settings(deadline=None)
@given(shares=st.lists(st.integers(1, 1000), min_size=1, max_size=8), total=st.integers(100, 2000))
def test_every_beginning_of_the_order_holds_the_mixture_to_three_rows(shares, total):
    weights = {f"s{number}": float(share) for number, share in enumerate(shares)}
    rows = {source: total for source, _ in weights.items()}
    planned = reads_of(rows, weights, total * 10, max_epochs=4)
    row, _ = order_of(planned)
    sources = row // total
    for number, source in enumerate(planned):
        counts = np.cumsum(sources == number)
        expected = np.arange(1, len(row) + 1) * source.reads / len(row)
        assert np.abs(counts - expected).max() <= 3


def test_shares_are_realised_within_a_tenth_of_a_percent():
    weights = {"a": 0.6, "b": 0.3, "c": 0.1}
    rows = dict.fromkeys("abc", 20_000)
    counted = np.random.default_rng(1).integers(1, 256, 60_000).astype(np.uint32)
    available = {
        source: int(counted[20_000 * place : 20_000 * (place + 1)].sum()) for place, source in enumerate("abc")
    }
    mixture = plan_mixture(available, weights, budget=5_000_000, max_epochs=4)
    planned = plan_reads(mixture, rows, counted, run_seed=1)
    read, _ = order_of(planned)
    total = counted[read].sum()
    assert 5_000_000 - 256 < total <= 5_000_000
    for place, source in enumerate("abc"):
        mine = counted[read[read // 20_000 == place]].sum()
        assert mine == planned[place].tokens
        assert abs(mine / total - weights[source]) < 0.0001


def test_another_seed_reads_the_same_rows_in_another_order():
    mixture = plan_mixture({"a": 50, "b": 50}, {}, budget=100, max_epochs=1)
    one, two, again = (
        order_of(plan_reads(mixture, {"a": 50, "b": 50}, np.ones(100, dtype=np.uint32), seed))[0] for seed in (1, 2, 1)
    )
    assert sorted(one) == sorted(two) == list(range(100))
    assert one.tolist() != two.tolist()
    assert one.tolist() == again.tolist()


def phased(rows: dict[str, int], phases: list[tuple[int, dict[str, float]]], budget: int, max_epochs: float):
    """Reads of each part, and the rows and epochs of the whole order; every row holds ten tokens."""
    config = ChunkConfig(
        row_length=11,
        budget_tokens=budget,
        weights=dict.fromkeys(rows, 1.0),
        max_epochs=max_epochs,
        phases=tuple({"tokens": tokens, "weights": weights} for tokens, weights in phases),  # type: ignore[arg-type]
    )
    mixtures = plan_mixtures({source: 10 * count for source, count in rows.items()}, config)
    parts = plan_parts(mixtures, rows, np.full(sum(rows.values()), 10, dtype=np.uint32), run_seed=1)
    table = pa.Table.from_batches(order_batches(parts))
    return parts, table.column("row").to_numpy(), table.column("epoch").to_numpy()


def test_each_phase_reads_its_mixture_to_the_sequence_and_goes_on_where_the_one_before_ended():
    rows = {"a": 100, "b": 100, "c": 30}
    parts, row, epoch = phased(rows, [(200, {"b": 1, "c": 3}), (100, {"c": 1})], budget=1500, max_epochs=4)
    sources = np.searchsorted([100, 200], row, side="right")
    # 1,200 tokens by equal weights, 200 as one to three, 100 of c alone; ten tokens a row.
    assert [np.bincount(part, minlength=3).tolist() for part in np.split(sources, [120, 140])] == [
        [40, 40, 40],
        [0, 5, 15],
        [0, 0, 10],
    ]
    assert [source.reads for source in parts[-1]] == [40, 45, 65]
    mine = row[sources == 2] - 200
    assert sorted(mine[:30]) == sorted(mine[30:60]) == list(range(30))  # pass after pass, across phases
    assert epoch[sources == 2].tolist() == [0] * 30 + [1] * 30 + [2] * 5
    assert parts[-1][2].times_read(0, 30).tolist() == np.bincount(mine, minlength=30).tolist()


def planned_last(rows: dict[str, int], weights: dict[str, float], read_last: tuple[str, ...], budget: int = 1000):
    """Tokens of each source in the main and the last part of an order; a source has ten tokens a row."""
    config = ChunkConfig(row_length=11, budget_tokens=budget, weights=weights, read_last=read_last)
    mixtures = plan_mixtures({source: 10 * count for source, count in rows.items()}, config)
    return [mixture.targets for mixture in mixtures]


def test_sources_that_may_leave_are_read_in_the_last_tenth_and_as_much_in_all():
    rows = {"letters": 100, "web": 100}
    assert planned_last(rows, {"web": 95, "letters": 5}, ("letters",)) == [
        {"letters": 0, "web": 900},
        {"letters": 50, "web": 50},
    ]
    # Without weights sizes decide, and where a tenth does not hold them the last part is longer.
    assert planned_last(rows, {}, ("letters",)) == [{"letters": 0, "web": 500}, {"letters": 500, "web": 0}]
    assert planned_last({"letters": 0, "web": 100}, {}, ("letters",)) == [
        {"letters": 0, "web": 900},
        {"letters": 0, "web": 100},
    ]
    with pytest.raises(InputError, match="leaves no row of 10 tokens before them"):
        planned_last(rows, {}, ("letters", "web"))
    with pytest.raises(ValidationError, match="leave `may_leave` out"):
        ChunkConfig(read_last=("a",), phases=({"tokens": 10, "weights": {"a": 1}},))  # type: ignore[arg-type]


def test_an_order_without_phases_is_the_same_as_before_its_phases():
    rows = {"a": 100, "b": 50}
    _, plain, _ = phased(rows, [], budget=900, max_epochs=4)
    _, row, _ = phased(rows, [(100, {"b": 1})], budget=1000, max_epochs=4)
    assert row[:90].tolist() == plain.tolist()


def test_what_a_phase_repeats_counts_with_what_was_read_before():
    parts, row, _ = phased({"a": 100, "b": 10}, [(300, {"a": 1, "b": 1})], budget=500, max_epochs=2)
    # b gives 10 rows to the main part of 20, and 10 more are all that two epochs allow.
    assert [source.reads for source in parts[0]] == [10, 10]
    assert [source.reads for source in parts[1]] == [30, 20]
    assert len(row) == 50
    with pytest.raises(InputError, match="in a phase whose sources were read so often before it"):
        phased({"a": 100, "b": 10}, [(100, {"b": 1})], budget=500, max_epochs=1)


@settings(deadline=None, max_examples=50)
@given(
    rows=st.dictionaries(st.sampled_from("abcd"), st.integers(20, 60), min_size=2),
    lengths=st.lists(st.integers(10, 300), min_size=1, max_size=3),
    shares=st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any),
)
def test_no_part_reads_more_than_its_tokens_and_each_source_is_within_a_row_of_its_share(rows, lengths, shares):
    weights = {source: float(share) for source, share in zip("abcd", shares, strict=True) if source in rows}
    if not any(weights.values()):
        return
    parts, row, _ = phased(rows, [(length, weights) for length in lengths], sum(lengths) + 500, max_epochs=16)
    done = np.zeros(len(rows), dtype=np.int64)
    begin = 0
    for planned, length in zip(parts, [500, *lengths], strict=True):
        reads = np.array([source.reads for source in planned]) - done
        assert length - 10 < 10 * reads.sum() <= length
        share = np.array([weights.get(source.source, 0) if begin else 1.0 for source in planned])
        assert (np.abs(10 * reads - length * share / share.sum()) <= 10 * len(rows)).all()
        mine = row[begin : begin + reads.sum()]
        counts = [((mine >= source.first_row) & (mine < source.first_row + source.rows)).sum() for source in planned]
        assert counts == reads.tolist()
        done, begin = done + reads, begin + reads.sum()
    assert begin == len(row)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 255, 256, 257, 1000, 4097])
def test_permutations_are_bijections_that_can_be_turned_around(count: int):
    for seed in (0, 1, 2**64 - 1):
        order = permutation(0, count, count, seed)
        assert sorted(order.tolist()) == list(range(count))
        assert inverse_permutation(order, count, seed).tolist() == list(range(count))
        middle = count // 2
        assert permutation(middle, count, count, seed).tolist() == order[middle:].tolist()


def test_all_orders_of_five_things_are_equally_likely():
    times = 100
    found = Counter(tuple(permutation(0, 5, 5, seed * 7919).tolist()) for seed in range(120 * times))
    square = sum((found[order] - times) ** 2 / times for order in permutations(range(5)))
    assert square < 173.6  # the 99.9% point at 119 degrees of freedom


def test_a_row_comes_anywhere_and_neighbours_part():
    count, seeds = 1000, 2000
    where = np.array([permutation(0, count, count, seed) for seed in range(seeds)])
    firsts = np.bincount(where[:, 0] // 50, minlength=20)
    assert ((firsts - seeds / 20) ** 2 / (seeds / 20)).sum() < 43.8  # the 99.9% point at 19 degrees of freedom
    steps = np.bincount((where[:, 1] - where[:, 0]) % count // 50, minlength=20)
    assert ((steps - seeds / 20) ** 2 / (seeds / 20)).sum() < 43.8  # the 99.9% point at 19 degrees of freedom


def test_permutation_is_pinned():
    # A golden value: another order here would silently change every run.
    assert permutation(0, 8, 8, 42).tolist() == [5, 4, 0, 7, 6, 3, 2, 1]


def test_temperature_decides_where_no_weights_do():
    sizes = {"a": 400, "b": 100}
    assert plan_mixture(sizes, {}, budget=300, max_epochs=4, temperature=2).targets == {"a": 200, "b": 100}
    assert plan_mixture(sizes, {}, budget=300, max_epochs=4, temperature=1).targets == {"a": 240, "b": 60}


def test_many_epochs_need_a_word():
    assert ChunkConfig(max_epochs=16)
    with pytest.raises(ValidationError, match=r"max_epochs = 20 .*allow_many_epochs = true"):
        ChunkConfig(max_epochs=20)
    assert ChunkConfig(max_epochs=20, allow_many_epochs=True)
