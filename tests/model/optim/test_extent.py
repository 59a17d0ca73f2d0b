"""Parts of a schedule in shares, steps and tokens, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from model.config.options import BatchWarmupConfig, ScheduleConfig
from model.config.train import TrainConfig
from model.errors import RecipeError
from model.optim.schedules import TrainingSchedule

# 100 steps of 8 rows with 16 predictions: 12,800 tokens, 128 a step.
POSITIONS, CONTEXT = 800, 16


def rates(positions: int = POSITIONS, **schedule: Any) -> list[float]:
    config = TrainConfig.model_validate({"batch_rows": 8, "micro_batch_rows": 8, "schedule": schedule})
    curriculum = TrainingSchedule(config, positions, CONTEXT)
    return [curriculum.step_schedule(step).lr for step in range(curriculum.steps)]


@pytest.mark.parametrize(
    ("key", "share", "steps", "tokens"),
    [
        ("warmup_share", 0.25, "25 steps", "3.2K tokens"),
        ("end_share", 0.5, "50 steps", "6400 tokens"),
        ("steps", (0.5, 0.75), ("50 steps", "75 steps"), ("6.4K tokens", "9.6K Tokens")),
        ("decay_share", 0.1, "10 steps", "1280 tokens"),
    ],
)
def test_a_share_and_as_many_steps_and_tokens_give_the_same_rates(
    key: str, share: Any, steps: Any, tokens: Any
) -> None:
    kind = {"steps": "step", "decay_share": "warmup_stable_decay"}.get(key, "cosine")
    expected = rates(kind=kind, **{key: share})
    assert rates(kind=kind, **{key: steps}) == pytest.approx(expected, abs=1e-15)
    assert rates(kind=kind, **{key: tokens}) == pytest.approx(expected, abs=1e-15)


def test_parts_of_another_kind_may_be_in_steps() -> None:
    assert rates(kind="cosine", decay_share="10 steps", steps=("5 steps",)) == rates(kind="cosine")


def test_twenty_five_steps_of_warm_up_are_those_of_any_length() -> None:
    for positions in (400, 800, 1600):
        found = rates(positions, warmup_share="25 steps", peak_lr=1.0, kind="constant")
        assert found[:25] == pytest.approx([step / 25 for step in range(1, 26)])
        assert set(found[25:]) == {1.0}


def test_the_rate_is_that_of_the_end_behind_it_and_the_decay_may_go_on_behind_the_run() -> None:
    gpt3 = rates(peak_lr=1.0, end_lr=0.1, warmup_share=0.0, end_share="6400 tokens")
    assert gpt3[24] == pytest.approx(0.55)  # half of a cosine to step 50
    assert set(gpt3[49:]) == {0.1}
    opt = rates(kind="linear", peak_lr=1.0, end_lr=0.1, warmup_share=0.0, end_share="25.6K tokens")
    assert opt[-1] == pytest.approx(0.55)


def test_the_inverse_root_is_t5s() -> None:
    found = rates(kind="inverse_sqrt", start_lr=0.1, peak_lr=0.1, end_lr=0.0, warmup_share="25 steps")
    assert found[:25] == pytest.approx([0.1] * 25)
    assert found[99] == pytest.approx(0.1 * (25 / 100) ** 0.5)  # 0.05


def test_lengths_of_warm_up_of_batches_in_tokens() -> None:
    def begins(share: float | str) -> list[tuple[int, int]]:
        warmup = {"start_rows": 2, "step_rows": 2, "share": share}
        config = TrainConfig.model_validate({"batch_rows": 8, "micro_batch_rows": 8, "batch_warmup": warmup})
        curriculum = TrainingSchedule(config, POSITIONS, CONTEXT)
        return [curriculum.positions(step) for step in range(curriculum.steps)]

    assert begins("3200 tokens") == begins(0.25)
    with pytest.raises(ValidationError, match="cannot be counted in steps"):
        BatchWarmupConfig(share="10 steps")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2000, 'write "2000 steps" or "2000 tokens"'),
        ("2000", 'a text such as "2000 steps" or "1.5B tokens"'),
        ("2K rows", 'a text such as "2000 steps" or "1.5B tokens"'),
        (-0.1, "must not be negative"),
        (True, "must be a share of the training"),
    ],
)
def test_a_wrong_extent_is_refused_with_its_forms(value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ScheduleConfig(warmup_share=value)


def test_what_is_longer_than_the_training_is_refused_with_its_length() -> None:
    with pytest.raises(RecipeError, match=r"100 steps and 12,800 tokens: warmup_share 1\.01 .*warmup_share 101 steps"):
        rates(warmup_share="101 steps")
    with pytest.raises(RecipeError, match="begin after warmup_share"):
        rates(kind="step", steps=("2 steps", "50 steps"))
    with pytest.raises(RecipeError, match="decay_share 1 are nothing, or more than the whole run"):
        rates(kind="warmup_stable_decay", decay_share="12.8K tokens")
