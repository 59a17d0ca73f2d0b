"""The learning rate at points that are easy to check, and compared with torch's schedulers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model.config.options import ClipConfig, ScheduleConfig
from model.optim.schedules import clip_norm, learning_rate

CONFIG = ScheduleConfig(start_lr=0.0, peak_lr=1.0, end_lr=0.1, warmup_share=0.2)
KINDS = ("cosine", "linear", "constant", "step", "warmup_stable_decay")
STEPS = 200


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("cosine", (0.0, 0.25, 0.5, 1.0, 0.55, 0.1, 0.1)),
        ("linear", (0.0, 0.25, 0.5, 1.0, 0.55, 0.1, 0.1)),
        ("constant", (0.0, 0.25, 0.5, 1.0, 1.0, 1.0, 1.0)),
        ("step", (0.0, 0.25, 0.5, 1.0, 0.5, 0.25, 0.25)),
        ("warmup_stable_decay", (0.0, 0.25, 0.5, 1.0, 1.0, 0.1, 0.1)),
    ],
)
def test_rates_at_a_few_shares(kind: str, rates: tuple[float, ...]) -> None:
    config = CONFIG.model_copy(update={"kind": kind, "step_factor": 0.5})
    shares = (0.0, 0.05, 0.1, 0.2, 0.6, 1.0, 1.5)
    assert [learning_rate(share, config) for share in shares] == pytest.approx(rates)


def test_the_stable_rate_falls_in_a_line_over_the_last_part() -> None:
    config = CONFIG.model_copy(update={"kind": "warmup_stable_decay", "decay_share": 0.2})
    assert [learning_rate(share, config) for share in (0.79, 0.8, 0.9)] == pytest.approx([1.0, 1.0, 0.55])


def test_steps_never_lead_below_the_end() -> None:
    config = CONFIG.model_copy(update={"kind": "step", "end_lr": 0.05})
    assert [learning_rate(share, config) for share in (0.5, 0.75)] == pytest.approx([0.1, 0.05])


def test_without_warm_up_the_rate_starts_at_its_peak() -> None:
    assert learning_rate(0.0, CONFIG.model_copy(update={"warmup_share": 0.0})) == 1.0


def torchs_rates(make: type, **options: object) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer, **options)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("kind", "reference", "options"),
    [
        ("cosine", torch.optim.lr_scheduler.CosineAnnealingLR, {"T_max": STEPS, "eta_min": 0.1}),
        ("linear", torch.optim.lr_scheduler.LinearLR, {"start_factor": 1, "end_factor": 0.1, "total_iters": STEPS}),
        ("step", torch.optim.lr_scheduler.MultiStepLR, {"milestones": [100, 150], "gamma": 0.5}),
        ("constant", torch.optim.lr_scheduler.ConstantLR, {"factor": 1}),
    ],
)
def test_rates_are_those_of_torchs_schedulers(kind: str, reference: type, options: dict[str, object]) -> None:
    config = CONFIG.model_copy(update={"kind": kind, "warmup_share": 0.0, "step_factor": 0.5})
    ours = [learning_rate(step / STEPS, config) for step in range(STEPS)]
    assert ours == pytest.approx(torchs_rates(reference, **options), abs=1e-9)


@given(st.sampled_from(KINDS), st.floats(0, 2), st.floats(0, 2))
def test_rate_never_rises_after_warm_up_nor_falls_before(kind: str, first: float, second: float) -> None:
    config = CONFIG.model_copy(update={"kind": kind})
    low, high = sorted((first, second))
    if high < 0.2:
        assert learning_rate(low, config) <= learning_rate(high, config)
    if low >= 0.2:
        assert learning_rate(low, config) >= learning_rate(high, config)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"kind": "step", "steps": (0.7, 0.6)}, "must rise"),
        ({"kind": "step", "steps": (0.01, 0.6)}, "begin after warmup_share"),
        ({"kind": "warmup_stable_decay", "warmup_share": 0.5, "decay_share": 0.6}, "more than the whole run"),
        ({"kind": "exponential"}, "kind"),
    ],
)
def test_phases_that_do_not_follow_each_other_are_refused(given: dict[str, object], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        ScheduleConfig.model_validate(given)


def test_the_early_norm_holds_up_to_its_share_and_by_default_nowhere() -> None:
    early = ClipConfig(max_norm=5.0, early_norm=0.3, early_share=0.25)
    assert [clip_norm(share, early) for share in (0.0, 0.1, 0.25, 0.26, 1.0)] == [0.3, 0.3, 0.3, 5.0, 5.0]
    assert [clip_norm(share, ClipConfig()) for share in (0.0, 0.001, 1.0)] == [1.0, 1.0, 1.0]
