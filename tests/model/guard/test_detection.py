"""Which steps the guard calls spikes, and what it calls divergence, on losses around 3, .05 or .1 off."""

import itertools
import json
import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from model.config.options import GuardConfig
from model.guard.detection import Detector, Divergence, Level

STEADY = 3.0
CONFIG = GuardConfig()


def noisy(step: int) -> float:
    """A median of 3, and a median distance from it of .075."""
    return STEADY + (-0.1, 0.05, 0.1, -0.05)[step % 4]


def level_of(detector: Detector, loss: float, norm: float) -> Level:
    if not (math.isfinite(loss) and math.isfinite(norm)):
        return "nonfinite"
    return "clean" if admitted(detector, loss, norm) else "spike"


def admitted(detector: Detector, loss: float, norm: float) -> bool:
    return bool(detector.limits().admit(*torch.tensor([loss, norm], dtype=torch.float64)))


def reported(detector: Detector, step: int, loss: float, norm: float = 1.0, heat: float = 1.0) -> Divergence | None:
    return detector.update(step, level_of(detector, loss, norm), loss, norm, [heat], halved=False)


def after(steps: int, config: GuardConfig = CONFIG) -> Detector:
    detector = Detector(config)
    for step in range(steps):
        assert reported(detector, step, noisy(step)) is None
    return detector


def steps_until(detector: Detector, losses: Iterable[float], begin: int = 128) -> Divergence | None:
    return next((found for step, loss in enumerate(losses, begin) if (found := reported(detector, step, loss))), None)


@pytest.mark.parametrize(
    ("loss", "norm", "level"),
    [
        (3.0, 1.0, "clean"),
        (3.4, 1.0, "clean"),
        (3.9, 1.0, "spike"),
        (0.5, 1.0, "clean"),
        (3.0, 10.0, "clean"),
        (3.0, 12.0, "spike"),
        (3.0, 0.0, "clean"),
        (math.nan, 1.0, "nonfinite"),
        (3.0, math.inf, "nonfinite"),
    ],
)
def test_levels_beside_a_steady_window(loss: float, norm: float, level: Level) -> None:
    """Six deviations: losses above 3 + 6 x 1.4826 x .075, norms above e to the 6 x .4, which is eleven."""
    assert level_of(after(128), loss, norm) == level


@settings(max_examples=300, deadline=None)
@given(
    losses=st.lists(st.floats(0, 20), min_size=8, max_size=24),
    norms=st.lists(st.floats(0, 1e6, width=32), min_size=24, max_size=24),
    more=st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e38)), max_size=8),
    least=st.sampled_from([1e-3, 0.05, 1.0]),
)
def test_a_step_is_a_spike_that_is_six_deviations_above_the_median(
    losses: list[float], norms: list[float], more: list[tuple[float, float]], least: float
) -> None:
    """The limits say what the deviations do, up to the neighbours of the limits."""
    config = GuardConfig(window=16, least_steps=8, unclean_window=16, most_unclean=8, least_loss_deviation=least)
    detector = Detector(config)
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=False)):
        detector.update(step, "clean", loss, norm, [1.0], halved=False)
    state, limits = detector.state, detector.limits()

    def is_spike(value: float, window: list[float], least: float) -> bool:
        median = float(np.median(window))
        deviation = 1.4826 * float(np.median(np.abs(np.array(window) - median)))
        return (value - median) / max(deviation, least) > 6

    steps = [*more, (losses[0], norms[0])]
    for towards in (-math.inf, math.inf):
        loss, norm = limits.loss, limits.grad_norm
        for _ in range(3):
            # Norms are roots of sums in float64.
            steps += [(loss, norms[0]), (losses[0], min(norm, 1e154))]
            loss, norm = math.nextafter(loss, towards), math.nextafter(norm, max(towards, 0.0))
    for loss, norm in steps:
        logarithm = math.log(norm) if norm > 0 else -745.0
        clean = not (is_spike(loss, state["losses"], least) or is_spike(logarithm, state["norms"], 0.4))
        assert admitted(detector, loss, norm) == clean, (loss, norm, limits)


def test_limits_admit_finite_numbers_alone() -> None:
    for loss, norm in itertools.product((1.0, math.inf, -math.inf, math.nan), repeat=2):
        assert admitted(Detector(CONFIG), loss, norm) == (loss == norm == 1.0)


def test_at_first_only_numbers_that_are_none_are_left_out() -> None:
    detector = after(63)
    assert level_of(detector, 100.0, 1e6) == "clean"
    assert level_of(detector, math.inf, 1.0) == "nonfinite"
    reported(detector, 63, 3.0)
    assert level_of(detector, 100.0, 1.0) == "spike"


def test_what_is_left_out_does_not_widen_the_window() -> None:
    """Mean and variance would: with one value 50 deviations off a second one is nothing special."""
    detector = after(128)
    assert reported(detector, 128, 50.0) is None
    assert level_of(detector, 4.0, 1.0) == "spike"


def test_three_steps_without_numbers_are_divergence_from_the_first_step_on() -> None:
    detector = Detector(CONFIG)
    assert steps_until(detector, [math.nan, math.nan], begin=0) is None
    found = reported(detector, 2, math.nan)
    assert found is not None
    assert (found.onset, found.step) == (0, 2)


def test_eight_spikes_among_64_steps_are_divergence_and_seven_are_not() -> None:
    detector = after(128)
    assert steps_until(detector, [9.0 if step % 8 == 0 else noisy(step) for step in range(56)]) is None
    found = reported(detector, 184, 9.0)
    assert found is not None
    assert found.cause.startswith("8 of the last 64 steps")
    assert found.onset == 128, "spikes that are less than 20 steps apart hang together"


def test_spikes_that_are_far_apart_are_forgotten() -> None:
    detector = after(128)
    assert steps_until(detector, [9.0 if step % 10 == 0 else noisy(step) for step in range(1000)]) is None


def test_one_poisoned_batch_is_left_out_and_nothing_more() -> None:
    detector = after(128)
    assert steps_until(detector, [30.0, *(noisy(step) for step in range(300))]) is None


def test_a_slow_rise_is_divergence() -> None:
    """.4 nats above a median of 3: no spike, where deviations are wide, and 13% above it."""
    wide = GuardConfig(least_loss_deviation=0.2)
    found = steps_until(after(128, wide), [3.4] * 30)
    assert found is not None
    assert found.cause == "the loss has risen from 3 to 3.4 since step 128"
    assert (found.onset, found.step) == (128, 135)


def test_a_rise_is_reported_sooner_the_higher_it_is() -> None:
    """Of 3: a fifth of it and more is four deviations and a step counts for no more than three, 5% is one, and none."""
    wide = GuardConfig(least_loss_deviation=0.2)
    found = [steps_until(after(128, wide), [loss] * 60) for loss in (4.1, 3.3, 3.14)]
    assert [one.step if one else None for one in found] == [131, 141, None]
    assert [one.onset if one else None for one in found] == [128, 128, None]


def test_a_rise_is_dated_where_it_began_however_long_it_takes_to_see() -> None:
    """A nat in 100 steps. It is 5% above after 15 of them, and .1 are noise."""
    detector = after(128, GuardConfig(least_loss_deviation=0.2))
    found = steps_until(detector, (noisy(step) + 0.01 * step for step in range(100)))
    assert found is not None
    assert found.step - found.onset >= CONFIG.margin_steps
    assert 128 <= found.onset <= 128 + 15 + 10


def test_losses_of_small_batches_vary_and_are_no_rise() -> None:
    """Losses around 1.6 with a deviation of .3, a fifth of them: half of them more are a rise, and 5% are not."""
    losses = 1.6 + 0.3 * np.random.default_rng(5).standard_normal(10_000)
    assert steps_until(Detector(CONFIG), losses.tolist(), begin=0) is None
    for rise, seen in ((0.8, True), (0.08, False)):
        detector = Detector(CONFIG)
        assert steps_until(detector, losses[:200].tolist(), begin=0) is None
        risen = steps_until(detector, (losses[200:300] + rise).tolist(), begin=200)
        assert (risen is not None) == seen
        assert risen is None or 196 <= risen.onset <= 204


def test_a_falling_loss_is_none() -> None:
    detector = Detector(CONFIG)
    assert steps_until(detector, [10 * 0.99**step + noisy(step) for step in range(600)], begin=0) is None


NAMES = ("embedding", "block 0 attention logits", "block 0", "logits")


def read(detector: Detector, steps: Iterable[int], *heat: float, loss: float | None = None) -> Divergence | None:
    for step in steps:
        found = detector.update(step, "clean", loss or noisy(step), 1.0, heat, halved=False)
        if found is not None:
            return found
    return None


def test_a_reading_that_rises_for_good_is_divergence_though_the_loss_recovers() -> None:
    """16 steps of a rate 50 times too high did this to a network: 7 to 35 behind a block, and a loss as before."""
    detector = Detector(CONFIG, names=NAMES)
    assert read(detector, range(150), 2.0, 1.0, 7.0, 9.0) is None
    assert read(detector, range(150, 154), 2.0, 1.0, 12.0, 9.0, loss=3.15) is None
    found = read(detector, range(154, 300), 2.0, 1.0, 35.0, 9.0)
    assert found is not None
    assert found.cause.startswith("the largest value of block 0 has risen from 8 to 35 since step ")
    assert 150 <= found.onset <= 154
    assert found.step < 170


def test_an_infinite_reading_is_the_highest_and_what_is_lukewarm_is_none() -> None:
    """Scores of attention may grow to 50, other readings to 8, whatever they were before."""
    detector = Detector(CONFIG, names=NAMES)
    assert read(detector, range(128), 0.5, 0.02, 1.0, 1.0) is None
    assert read(detector, range(128, 400), 8.0, 50.0, 8.0, 8.0) is None
    found = read(detector, range(400, 420), 8.0, 50.0, math.inf, math.nan)
    assert found is not None
    assert (found.onset, found.step) == (400, 403)


def test_readings_that_grow_slowly_are_none() -> None:
    """Tenfold in 600 steps."""
    detector = Detector(CONFIG, names=NAMES)
    for step in range(1200):
        grown = 5 * 10 ** (step / 600)
        assert read(detector, [step], grown, grown, grown, grown) is None


def test_a_single_reading_far_off_is_none() -> None:
    detector = Detector(CONFIG, names=NAMES)
    assert read(detector, range(128), 2.0, 1.0, 7.0, 9.0) is None
    for begin in range(128, 328, 20):
        assert read(detector, [begin], 2.0, 1.0, 700.0, 9.0) is None
        assert read(detector, range(begin + 1, begin + 20), 2.0, 1.0, 7.0, 9.0) is None


def test_the_earliest_sign_of_any_signal_dates_the_trouble() -> None:
    """Readings begin to rise at step 128, the loss follows ten steps later and is what decides."""
    detector = Detector(CONFIG, names=NAMES)
    assert read(detector, range(128), 2.0, 1.0, 9.0, 9.0) is None
    assert read(detector, range(128, 138), 2.0, 1.0, 30.0, 9.0) is None
    found = read(detector, range(138, 160), 2.0, 1.0, 30.0, 9.0, loss=4.5)
    assert found is not None
    assert (found.onset, found.cause.split(" has")[0]) == (128, "the loss")


def test_steps_left_out_are_dated_by_the_rise_before_them() -> None:
    detector = after(128)
    assert steps_until(detector, [3.35] * 4) is None
    found = steps_until(detector, [9.0] * 8, begin=132)
    assert found is not None
    assert found.cause.startswith("8 of the last 64 steps")
    assert found.onset == 128


def test_a_chain_of_spikes_longer_than_the_window_dates_its_first() -> None:
    """One in ten steps from step 128 on, until the eighth of 64 is no number: 101 steps of the same trouble."""
    detector = after(128)
    losses = [9.0 if step % 10 == 0 else noisy(step) for step in range(101)]
    assert steps_until(detector, losses) is None
    found = reported(detector, 229, math.nan)
    assert found is not None
    assert (found.onset, found.step) == (128, 229)


def test_a_lower_limit_reports_sooner() -> None:
    """What a run that went back is held against."""
    wide = GuardConfig(least_loss_deviation=0.2)
    detectors = after(128, wide), after(128, wide)
    steps = [
        next(step for step in range(128, 200) if one.update(step, "clean", 3.4, 1.0, [1.0], halved=False, limit=limit))
        for one, limit in zip(detectors, (12.0, 6.0), strict=True)
    ]
    assert steps[1] < steps[0]


def test_four_halvings_of_the_loss_scale_within_50_steps_are_divergence() -> None:
    detector = after(128)
    steps = (130, 150, 170, 179)
    found = [detector.update(step, "clean", math.inf, math.inf, [1.0], halved=True) for step in steps]
    assert [one is not None for one in found] == [False, False, False, True]
    detector = after(128)
    steps = (130, 150, 170, 181)
    assert not any(detector.update(step, "clean", math.inf, math.inf, [1.0], halved=True) for step in steps)


def test_without_the_guard_only_numbers_that_are_none_count() -> None:
    off = GuardConfig(enabled=False)
    detector = after(128, off)
    assert level_of(detector, 100.0, 1e9) == "clean"
    assert steps_until(detector, [100.0] * 100) is None
    assert steps_until(detector, [math.nan] * 3, begin=300) is not None


@settings(max_examples=60, deadline=None)
@given(
    losses=st.lists(st.sampled_from([2.9, 3.0, 3.1, 3.3, 9.0, math.nan]), min_size=40, max_size=120),
    cut=st.integers(0, 120),
)
def test_a_detector_goes_on_from_its_state(losses: list[float], cut: int) -> None:
    config = GuardConfig(window=32, least_steps=8, unclean_window=16, most_unclean=8)
    whole, first = Detector(config), Detector(config)
    found = [reported(whole, step, loss) for step, loss in enumerate(losses)]
    again = [reported(first, step, loss) for step, loss in enumerate(losses[:cut])]
    second = Detector(config, json.loads(json.dumps(first.state)))
    again += [reported(second, step, loss) for step, loss in enumerate(losses[cut:], len(losses[:cut]))]
    assert again == found
    assert second.state == whole.state


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"least_steps": 200}, "least_steps 200 is larger than window 128"),
        ({"most_unclean": 65}, "most_unclean 65 is larger than unclean_window 64"),
        ({"enabled": False, "window": 64}, "window would have no effect"),
        ({"ladder": []}, "at least 1"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GuardConfig.model_validate(wrong)
