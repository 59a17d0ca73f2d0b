"""The mixture's arithmetic, held against the published table of GPT-3 and against numbers made by hand."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.sample.config import SampleConfig, Source
from tasks.sample.mixture import mixture_remarks, plan_from_sizes

B = 10**9
GPT3_TOKENS = {"common_crawl": 410 * B, "webtext2": 19 * B, "books1": 12 * B, "books2": 55 * B, "wikipedia": 3 * B}
GPT3_WEIGHTS = {"common_crawl": 0.60, "webtext2": 0.22, "books1": 0.08, "books2": 0.08, "wikipedia": 0.03}


def gpt3(budget=300 * B, **fields):
    sources = tuple(
        Source(name=name, paths="x", tokens=tokens, weight=GPT3_WEIGHTS[name]) for name, tokens in GPT3_TOKENS.items()
    )
    config = SampleConfig(sources=sources, budget_tokens=budget, normalise_weights=True, **fields)
    return plan_from_sizes(config, {}, {})


def test_epochs_of_gpt3_follow_from_its_weights_and_sizes():
    # 101% of 300B, since the published weights sum to that: 300 x weight / size, to two digits.
    epochs = {name: round(plan["epochs"], 2) for name, plan in gpt3(303 * B).items()}
    assert epochs == {"common_crawl": 0.44, "webtext2": 3.47, "books1": 2.00, "books2": 0.44, "wikipedia": 3.00}


def test_published_epochs_of_gpt3_follow_from_shares_that_round_to_its_weights_but_one():
    """Shares within half a percent, sizes within half of their last digit; WebText2's 22% of 300B are 3.3 epochs of
    19.5B tokens at least, and the table says 2.9."""
    published = {"common_crawl": 0.44, "webtext2": 2.9, "books1": 1.9, "books2": 0.43, "wikipedia": 3.4}

    def possible(name: str, share: float, size: float) -> float:
        return 300 * B * (GPT3_WEIGHTS[name] + share) / (GPT3_TOKENS[name] + size * B)

    outside = [
        name
        for name, epochs in published.items()
        if not possible(name, -0.005, 0.5) < epochs < possible(name, 0.005, -0.5)
    ]
    assert outside == ["webtext2"]


def test_rounded_weights_are_reported_with_their_effect_on_the_epochs():
    config = SampleConfig(
        sources=tuple(
            Source(name=name, paths="x", tokens=tokens, weight=GPT3_WEIGHTS[name])
            for name, tokens in GPT3_TOKENS.items()
        ),
        budget_tokens=300 * B,
        normalise_weights=True,
    )
    (reported,) = mixture_remarks(config, plan_from_sizes(config, {}, {}))
    assert reported.startswith("the weights add up to 1.01, as rounded shares do.")
    assert "epochs are 1.0% lower than weight x budget / tokens" in reported
    # 2.5% and 3.5% of 300B by 3B tokens, each by 1.01; the paper's 3.4 lies between them.
    assert reported.endswith("wikipedia 2.48 to 3.47 epochs")


def test_the_last_digit_of_a_very_small_weight_is_the_one_it_is_written_with():
    weights = {"a": 0.5, "b": 0.49, "c": 0.00002}
    sources = tuple(Source(name=name, paths="x", tokens=10**6, weight=weight) for name, weight in weights.items())
    config = SampleConfig(sources=sources, budget_tokens=10**6, normalise_weights=True)
    (reported,) = mixture_remarks(config, plan_from_sizes(config, {}, {}))
    assert "half a unit of their last digit is up to 25% of a share: c 0.00 to 0.00 epochs" in reported


@pytest.mark.parametrize("weights", [(0.75, 0.25), (3.0, 1.0)])
def test_exact_and_relative_weights_have_no_rounding_to_report(weights):
    sources = tuple(Source(name=f"s{w:g}", paths="x", tokens=10**6, weight=w) for w in weights)
    config = SampleConfig(sources=sources, budget_tokens=1000, normalise_weights=True)
    assert mixture_remarks(config, plan_from_sizes(config, {}, {})) == []


@pytest.mark.parametrize(
    ("cap", "shares"),
    [
        (4, {"common_crawl": 0.594, "webtext2": 0.218, "books1": 0.079, "books2": 0.079, "wikipedia": 0.030}),
        (2, {"common_crawl": 0.682, "webtext2": 0.127, "books1": 0.080, "books2": 0.091, "wikipedia": 0.020}),
    ],
)
def test_a_cap_keeps_the_proportions_of_the_other_sources(cap, shares):
    plans = gpt3(max_epochs=cap)
    assert {name: round(plan["target_tokens"] / (300 * B), 3) for name, plan in plans.items()} == shares
    assert max(plan["epochs"] for plan in plans.values()) <= cap


def test_a_capped_source_is_remarked_with_what_it_was_asked_for():
    sources = (
        Source(name="small", paths="x", tokens=10, weight=0.5),
        Source(name="large", paths="x", tokens=1000, weight=0.5),
    )
    config = SampleConfig(sources=sources, budget_tokens=200)
    plans = plan_from_sizes(config, {}, {})
    assert (plans["small"]["target_tokens"], plans["large"]["target_tokens"]) == (40, 160)
    assert (plans["small"]["epochs"], plans["small"]["asked_epochs"]) == (4, 10)
    assert mixture_remarks(config, plans) == [
        "small: its weight asks for 10.00 epochs, limited by max_epochs = 4; the missing tokens go to the others by"
        " weight"
    ]


def test_a_budget_that_no_source_can_meet_is_remarked():
    config = SampleConfig(sources=(Source(name="s", paths="x", tokens=10, weight=1),), budget_tokens=100)
    remarks = mixture_remarks(config, plan_from_sizes(config, {}, {}))
    assert remarks[-1] == "all sources together give 40 of the 100 tokens of the budget within max_epochs = 4"


@pytest.mark.parametrize(("temperature", "share"), [(1, 0.8), (2, 2 / 3), (100, 0.5035)])
def test_temperature_flattens_shares_of_size(temperature, share):
    sources = (Source(name="a", paths="x", tokens=800), Source(name="b", paths="x", tokens=200))
    config = SampleConfig(sources=sources, budget_tokens=100, temperature=temperature)
    assert plan_from_sizes(config, {}, {})["a"]["weight"] == pytest.approx(share, abs=1e-4)


def test_wikipedia_at_temperature_two_is_stopped_by_the_cap():
    # At size ^ 0.5 GPT-3's Wikipedia would be read 4.65 times.
    sources = tuple(Source(name=name, paths="x", tokens=tokens) for name, tokens in GPT3_TOKENS.items())
    plans = plan_from_sizes(SampleConfig(sources=sources, budget_tokens=300 * B, temperature=2), {}, {})
    assert round(plans["wikipedia"]["asked_epochs"], 2) == 4.65
    assert plans["wikipedia"]["epochs"] == 4


def test_tokens_come_from_a_pilot_where_there_was_one():
    sources = tuple(Source(name=name, paths="x", weight=0.5) for name in ("measured", "guessed"))
    config = SampleConfig(
        sources=sources, budget_tokens=200, tokens_per_byte={"measured": 0.1}, bytes_per_token=4, slack=1.5
    )
    plans = plan_from_sizes(config, {"measured": 10_000, "guessed": 10_000}, {})
    assert plans["measured"]["available_tokens"] == 1000
    assert plans["guessed"]["available_tokens"] == 2500
    assert (plans["measured"]["rate"], plans["measured"]["slack"]) == (0.15, 1.5)
    assert plans["guessed"]["rate"] == 0.06


def test_slack_is_what_is_really_kept():
    config = SampleConfig(sources=(Source(name="s", paths="x", tokens=100, weight=1),), budget_tokens=80, slack=2)
    assert plan_from_sizes(config, {}, {})["s"]["slack"] == 1.25


@given(
    st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 1000)), min_size=1, max_size=8),
    st.integers(1, 10**13),
    st.sampled_from([0.5, 1, 4, 16]),
)
def test_budget_cap_and_proportions_hold_for_any_sources(sizes, budget, cap):
    sources = tuple(
        Source(name=f"s{number}", paths="x", tokens=tokens, weight=weight)
        for number, (tokens, weight) in enumerate(sizes)
    )
    config = SampleConfig(sources=sources, budget_tokens=budget, max_epochs=cap, normalise_weights=True)
    plans = plan_from_sizes(config, {}, {}).values()
    capacity = sum(int(cap * tokens) for tokens, _ in sizes)
    assert sum(plan["target_tokens"] for plan in plans) == min(budget, capacity)
    assert all(plan["target_tokens"] <= cap * plan["available_tokens"] for plan in plans)
    assert all(0 <= plan["rate"] <= 1 for plan in plans)
    free = [plan for plan in plans if plan["target_tokens"] < int(cap * plan["available_tokens"])]
    for one, other in itertools.pairwise(free):
        assert abs(one["target_tokens"] * other["weight"] - other["target_tokens"] * one["weight"]) <= 1 + 1e-6 * budget


def test_selection_gives_the_rate_that_was_planned():
    from tasks.common.numeric import seed64, unit_interval
    from tasks.sample.document_columns import document_id

    seed = seed64(1, "sample", "select", "s")
    kept = sum(unit_interval(document_id("s", "a", number, None), seed) < 0.3 for number in range(20_000))
    assert abs(kept / 20_000 - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 20_000)
    assert random.Random(0).random() != unit_interval(document_id("s", "a", 0, None), seed)


def test_temperature_and_cap_are_part_of_the_identity():
    def params(**fields):
        return SampleConfig(
            sources=(Source(name="s", paths="x", tokens=5),), budget_tokens=9, temperature=2, **fields
        ).identity_params()

    assert params()["temperature"] == 2
    assert params()["max_epochs"] != params(max_epochs=3)["max_epochs"]
