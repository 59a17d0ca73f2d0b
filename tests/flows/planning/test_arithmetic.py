"""Numbers of two published trainings, and the equation solved for each of its unknowns."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.planning.calculator import PlanOptions, calculate
from flows.planning.cost_model import (
    DEFAULT_MFU,
    IMPLIED,
    UNKNOWNS,
    Shape,
    Training,
    effective_tokens,
    find_accelerator,
    flops_of_token,
    optimal_parameters_for_flops,
    solve,
)
from flows.recipe.counts import parse_count
from model.errors import RecipeError

A100 = find_accelerator("a100").peak_flops
YALM = Training(A100, tokens=300e9, parameters=100e9, devices=800, days=65)


def test_yalm_100b_sustained_an_eighth_of_its_devices():
    solved, origins = solve(YALM)
    assert solved.flops == 6 * 100e9 * 300e9 == 1.8e23
    # 800 x 312e12 x 65 x 86,400 = 1.40e24 at peak
    assert solved.paid_flops == pytest.approx(1.40e24, rel=0.01)
    assert solved.mfu == pytest.approx(0.128, abs=0.0005)
    assert solved.sustained_flops == pytest.approx(40e12, rel=0.01)
    assert origins == {"mfu": IMPLIED}


def test_attention_raises_the_mfu_of_yalm_to_13_percent():
    shape = Shape(layers=80, width=10_240, context=1024)
    assert shape.attention_flops == pytest.approx(1.007e10, rel=0.001)
    solved, _ = solve(replace(YALM, shape=shape))
    assert solved.mfu == pytest.approx(0.1306, abs=0.0002)


def test_opt_175b_took_twice_the_days_that_its_speed_implies():
    """180B tokens on 992 A100: 147 TFLOP/s while it ran (47%), and about 33 days on the calendar."""
    opt = Training(A100, tokens=180e9, parameters=175e9, devices=992)
    calendar, _ = solve(replace(opt, days=33.0))
    assert calendar.mfu == pytest.approx(0.214, abs=0.001)
    running, _ = solve(replace(opt, mfu=147 / 312))
    assert running.days == pytest.approx(15.0, abs=0.05)


@given(st.sampled_from(UNKNOWNS))
def test_any_one_number_follows_from_the_others(unknown: str):
    whole, _ = solve(YALM)
    solved, _ = solve(replace(whole, **{unknown: None}))
    assert getattr(solved, unknown) == pytest.approx(getattr(whole, unknown))


def test_mfu_is_assumed_where_something_else_is_asked_for():
    solved, origins = solve(replace(YALM, days=None))
    assert solved.mfu == DEFAULT_MFU
    assert solved.days == pytest.approx(65 * 0.1284 / 0.40, rel=0.001)
    assert "PaLM" in origins["mfu"]


def test_without_tokens_and_parameters_both_are_balanced():
    solved, _ = solve(Training(A100, devices=8, days=1, mfu=0.5))
    assert solved.tokens == pytest.approx(20 * (solved.parameters or 0))
    assert solved.flops == pytest.approx(solved.paid_flops * 0.5)


@given(st.floats(1e12, 1e26), st.integers(1, 100), st.integers(64, 16_384), st.integers(64, 8192))
def test_balanced_parameters_spend_all_flops(flops: float, layers: int, width: int, context: int):
    shape = Shape(layers, width, context)
    parameters = optimal_parameters_for_flops(flops, shape)
    assert 20 * parameters * flops_of_token(parameters, shape) == pytest.approx(flops, rel=1e-3)


@pytest.mark.parametrize("name", ["days", "devices", "mfu"])
def test_nothing_is_computed_in_no_days_by_no_devices_or_at_no_speed(name: str):
    with pytest.raises(RecipeError, match=f"--{name} is 0"):
        solve(replace(YALM, tokens=None, parameters=None, **{"mfu": 0.4, name: 0.0}))


def test_a_training_of_seconds_takes_one_device():
    solved, _ = solve(Training(A100, tokens=1e6, parameters=1e6, days=2))
    assert solved.devices == 1
    assert solved.sustained_flops == pytest.approx(6e12 / (2 * 86_400))


@pytest.mark.parametrize("devices", [800.0, 1.0])
def test_numbers_that_follow_from_each_other_are_not_all_taken(devices: float):
    with pytest.raises(RecipeError, match=rf"devices \({devices:g}\), days and MFU are all given"):
        solve(replace(YALM, devices=devices, mfu=0.4))


def test_too_little_to_go_on_is_a_recipe_error():
    with pytest.raises(RecipeError, match=r"--tokens, --devices, --days"):
        solve(Training(A100, parameters=1e9))


@pytest.mark.parametrize(
    "known",
    [Training(A100, tokens=1e9), Training(A100, tokens=1e9, devices=1), Training(A100, mfu=0.3), Training(A100)],
)
def test_each_addition_that_is_proposed_is_enough(known: Training):
    with pytest.raises(RecipeError) as error:
        solve(known)
    proposed = [line for line in str(error.value).splitlines() if line.startswith("  for")]
    assert proposed
    for line in proposed:
        words = line.partition(", add ")[2].split()
        added = {
            name.removeprefix("--"): parse_count(value, name)
            for name, value in zip(words[::2], words[1::2], strict=True)
        }
        solved, _ = solve(replace(known, **added))
        assert solved.missing() == ()


def test_too_little_is_reported_before_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PlanOptions, "device", lambda self: pytest.fail("the processor was measured"))
    with pytest.raises(RecipeError, match=r"--parameters, --days are all unknown\.\n  for the parameters, add"):
        calculate(PlanOptions(tokens=1e9))


def test_attention_that_eats_everything_is_reported():
    tiny = Training(A100, tokens=1e15, devices=1, days=1, mfu=0.4, shape=Shape(80, 10_240, 1024))
    with pytest.raises(RecipeError, match="attention alone"):
        solve(tiny)


def test_unknown_hardware_names_what_is_known():
    with pytest.raises(RecipeError, match="did you mean `h100`"):
        find_accelerator("h10")
    with pytest.raises(RecipeError, match=r"--hardware foo: unknown\. Known: v100, "):
        find_accelerator("foo")


def test_four_epochs_are_worth_nearly_four_and_forty_are_not():
    """Muennighoff et al. 2023: up to 4 epochs almost as good as new data; beyond 16 returns vanish."""
    assert effective_tokens(1.0, 0.5) == 0.5
    assert effective_tokens(1.0, 1) == 1.0
    assert effective_tokens(1.0, 4) == pytest.approx(3.726, abs=0.001)
    assert effective_tokens(1.0, math.inf) == pytest.approx(16.39, abs=0.01)


@given(st.floats(0.01, 100), st.floats(0.01, 10))
def test_more_epochs_never_hurt_and_never_beat_fresh_text(epochs: float, more: float):
    assert effective_tokens(1.0, epochs) <= effective_tokens(1.0, epochs + more)
    assert effective_tokens(1.0, epochs) <= epochs + 1e-9
