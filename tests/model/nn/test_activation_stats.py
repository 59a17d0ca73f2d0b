"""Activation ranges: their values, whichever rank computes which part, NaN, and sampled attention scores."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.config.train import TrainerRun
from model.data.loader import CausalBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines.base import StepResult, Totals
from model.engines.native import NativeEngine
from model.engines.runtime import wrap_blocks
from model.nn.activation_stats import ScoreRange, activation_range, empty_range, sampled_queries, split_ranges
from model.nn.factory import activation_range_names, make_network
from model.nn.gpt import GPT
from model.objectives.base import Sums
from model.objectives.synthetic import random_batch
from model.optim.schedules import StepSchedule

numbers = st.floats(-100, 100, width=32)
SIZES: dict[str, Any] = {"vocab_size": 60, "context": 18, "layers": 2, "heads": 2, "width": 16}
CONFIGS: dict[str, NetworkConfig] = {
    "gpt": GPTConfig(**SIZES),
    "gpt with grouped queries": GPTConfig(**SIZES, kv_heads=1),
    "gpt with normed queries, in parallel": GPTConfig(**SIZES, qk_norm="head", parallel_residual=True),
    "gpt with distances": GPTConfig(**SIZES, positions="relative"),
    "gpt of a prefix": GPTConfig(**SIZES, attention="prefix"),
    "gpt within documents": GPTConfig(**SIZES, attend_within_documents=True),
    "bert": BERTConfig(**SIZES),
    "bert with norms behind": BERTConfig(**SIZES, norm_position="post"),
    "t5": T5Config(**SIZES),
}


def test_smallest_and_largest_are_read() -> None:
    read = activation_range(torch.tensor([[1.0, -3.0], [2.0, 0.5]]))
    assert read.tolist() == [3.0, 2.0]
    assert split_ranges(read[None]) == ([-3.0], [2.0])


@given(values=st.lists(numbers, min_size=1, max_size=12), cut=st.integers(0, 12))
def test_parts_join_to_the_whole_by_their_maximum(values: list[float], cut: int) -> None:
    whole = torch.tensor(values)
    read = empty_range(whole)
    for part in (whole[:cut], whole[cut:]):
        if len(part):
            read = torch.maximum(read, activation_range(part))
    assert split_ranges(read[None]) == ([min(values)], [max(values)])


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([1.0, -math.inf], -math.inf, 1.0),
        ([1.0, math.inf], 1.0, math.inf),
        ([1.0, math.nan], -math.inf, math.inf),
    ],
)
def test_what_is_no_number_reads_as_infinite(values: list[float], low: float, high: float) -> None:
    totals = Totals()
    for part in ([0.5, 2.0], values):
        totals.add(Sums((torch.ones(()),), (), activation_range(torch.tensor(part))[None]))
    lows, highs = split_ranges(totals.reduce_over_ranks(SINGLE_PROCESS, (1,)).ranges)
    assert (lows, highs) == ([min(low, 0.5)], [max(high, 2.0)])
    assert StepResult(1.0, [1.0], [], 1.0, lows, highs, applied=False).largest_activations == [math.inf]


def test_the_largest_magnitude_is_that_of_either_sign() -> None:
    assert StepResult(1.0, [1.0], [], 1.0, [-3.0, 1.0], [2.0, 4.0], applied=True).largest_activations == [3.0, 4.0]


def test_a_segment_behind_a_number_that_is_none_reads_as_infinite_and_those_before_it_do_not(
    make_run: Callable[..., TrainerRun],
) -> None:
    run = make_run()
    engine = NativeEngine(run, GPT(run.model).initialise(1), SINGLE_PROCESS)
    with torch.no_grad():
        engine.network.final_norm.weight[0] = math.nan
    done = engine.step(CausalBatch(torch.arange(4, 21)[None], torch.zeros(1, dtype=torch.int64)), StepSchedule(0.01))
    assert all(map(math.isfinite, done.largest_activations[:-1]))
    assert (done.lows[-1], done.highs[-1]) == (-math.inf, math.inf)


@given(queries=st.integers(1, 3000))
def test_four_queries_or_all_are_read_evenly_apart_up_to_the_last(queries: int) -> None:
    places = range(queries)[sampled_queries(queries)]
    assert len(places) == min(queries, 4)
    assert places[-1] == queries - 1
    assert places.step == max(1, queries // 4)


def test_scores_of_seen_keys_are_read() -> None:
    """Eight tokens and heads of one number: queries 1, 3, 5 and 7 are read, each of which is its place."""
    place = torch.arange(8.0).view(1, 1, 8, 1)
    keys = torch.tensor([-1.0, 2, 0, 3, 0, 0, 0, 9]).view(1, 1, 8, 1)

    def read(mask: torch.Tensor | None, *, causal: bool = False) -> tuple[float, float]:
        low, high = ScoreRange()(place, keys, mask, causal=causal, scale=0.5).tolist()
        return -low, high

    # The last query sees all: 7 x 9 / 2 is the largest score, and 7 x -1 / 2 the smallest.
    assert read(None) == read(None, causal=True) == (-3.5, 31.5)
    assert read(torch.arange(8).view(1, 1, 1, 8) < 7) == (-3.5, 10.5)
    # Each query sees itself alone, which leaves 1 x 2, 3 x 3, 5 x 0 and 7 x 9.
    assert read(torch.eye(8, dtype=torch.bool)[None, None]) == (0.0, 31.5)
    # As each sees what is up to it; what a mask adds counts.
    added = torch.full((8, 8), -100.0).masked_fill(~torch.ones(8, 8, dtype=torch.bool).tril(), -torch.inf)
    added[7, 7] = 1.0
    assert read(added[None, None]) == (-103.5, 32.5)


def test_nan_scores_are_reported_and_those_of_masked_keys_are_not() -> None:
    query, key = torch.ones(2, 1, 1, 8, 1)
    key[0, 0, 5] = math.nan
    score_range = ScoreRange()
    assert score_range(query, key, None, causal=True, scale=1.0).isnan().all()
    unseen = torch.arange(8).view(1, 1, 1, 8) != 5
    assert score_range(query, key, unseen, causal=False, scale=1.0).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("name", CONFIGS)
def test_each_network_reports_its_attention_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(CONFIGS[name]).initialise(1)
    batch = random_batch(CONFIGS[name], 3)
    expected: list[list[float]] = []
    attend = F.scaled_dot_product_attention

    def recorded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **settings: Any) -> torch.Tensor:
        expected.append(scores_of(query.detach(), key.detach(), **settings))
        return attend(query, key, value, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    sums = batch.objective.sums(network, batch.rows)
    names = activation_range_names(CONFIGS[name])
    assert sums.activation_ranges.shape == (len(names), 2)
    assert not sums.activation_ranges.requires_grad
    reported = [row.tolist() for row, of in zip(sums.activation_ranges, names, strict=True) if "attention" in of]
    assert len(reported) == len(expected) == (6 if name == "t5" else 2)
    for ours, reference in zip(reported, expected, strict=True):
        assert ours == pytest.approx(reference, rel=1e-4, abs=1e-6)


def scores_of(
    query: torch.Tensor,
    key: torch.Tensor,
    *,
    attn_mask: Any,
    is_causal: bool,
    scale: float | None,
    dropout_p: float,
    enable_gqa: bool,
) -> list[float]:
    """Extremes of the scores of the sampled queries, a number at a time."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    del dropout_p
    found = []
    _, _, queries, size = query.shape
    for row, of_row in enumerate(query):
        for head, of_head in enumerate(of_row):
            for place in range(queries)[sampled_queries(queries)]:
                scores = (key[row, head] @ of_head[place]) * (size**-0.5 if scale is None else scale)
                seen = torch.arange(len(scores)) <= place if is_causal else torch.ones(len(scores), dtype=torch.bool)
                if attn_mask is not None:
                    mask = attn_mask.detach().expand(len(query), len(of_row), queries, -1)[row, head, place]
                    seen = mask if mask.dtype == torch.bool else mask > -torch.inf
                    scores = scores if mask.dtype == torch.bool else scores + mask
                found += scores[seen].tolist()
    return [-min(found), max(found)]


def test_names_are_in_the_order_of_computation() -> None:
    sizes = SIZES | {"layers": 1}
    assert activation_range_names(GPTConfig(**sizes)) == ["embedding", "block 0 attention logits", "block 0", "logits"]
    assert activation_range_names(BERTConfig(**sizes))[2:] == ["block 0", "masked logits", "next logits"]
    assert activation_range_names(T5Config(**sizes)) == [
        "encoder embedding",
        "encoder block 0 attention logits",
        "encoder block 0",
        "decoder embedding",
        "decoder block 0 attention logits",
        "decoder block 0 cross attention logits",
        "decoder block 0",
        "logits",
    ]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.prove)])
@pytest.mark.parametrize("name", ["gpt", "bert", "t5"])
def test_blocks_computed_in_other_ways_read_the_same(name: str, compiled: bool) -> None:
    batch = random_batch(CONFIGS[name], 3)
    plain, other = (make_network(CONFIGS[name]).initialise(1) for _ in range(2))
    wrap_blocks(other, compiled=compiled, recomputed=True)
    read, again = (batch.objective.sums(network, batch.rows) for network in (plain, other))
    if not compiled:
        assert torch.equal(read.activation_ranges, again.activation_ranges)
    torch.testing.assert_close(read.activation_ranges, again.activation_ranges, rtol=1e-4, atol=1e-5)


def test_readings_leave_the_gradients_as_they_are_bit_for_bit() -> None:
    network = GPT(GPTConfig(**SIZES)).initialise(1)
    tokens = torch.randint(60, (3, 18), generator=torch.Generator().manual_seed(1))
    found = []
    for ranges in (None, []):
        network.zero_grad()
        network(tokens, ranges=ranges).square().sum().backward()
        found.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    assert len(found[0]) == len(list(network.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
