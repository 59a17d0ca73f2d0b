"""The loss scale of float16: halved by overflows, doubled without them, and limited by its floor."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model.config.options import LossScaleConfig
from model.config.train import TrainConfig
from model.engines.base import StepResult
from model.engines.runtime import LossScale

CONFIG = TrainConfig(dtype="float16", loss_scale=LossScaleConfig(start=8.0, growth_steps=3, floor=2.0))


def step(applied: bool = True, loss: float = 1.0) -> StepResult:
    return StepResult(loss, [loss], [], 1.0 if applied else math.inf, [], [], applied)


def test_overflows_halve_it_down_to_the_floor_where_they_no_longer_count_as_such() -> None:
    scale = LossScale(CONFIG)
    seen = [(scale.adapt(step(applied=False)), scale.value) for _ in range(3)]
    assert seen == [(True, 4.0), (True, 2.0), (False, 2.0)]


def test_it_doubles_after_so_many_steps_in_a_row() -> None:
    scale = LossScale(CONFIG)
    values = []
    for applied in (True, True, False, True, True, True, True):
        scale.adapt(step(applied))
        values.append(scale.value)
    assert values == [8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0]


def test_a_loss_that_is_no_number_is_no_overflow() -> None:
    scale = LossScale(CONFIG)
    assert not scale.adapt(step(applied=False, loss=math.nan))
    assert scale.value == 4.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_other_types_there_is_none(dtype: str) -> None:
    scale = LossScale(TrainConfig.model_validate({"dtype": dtype}))
    assert not scale.adapt(step(applied=False))
    assert [scale.adapt(step()) for _ in range(5000)] == [False] * 5000
    assert scale.value == 1.0


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40))
def test_with_its_state_back_it_goes_on_as_it_would_have(steps: list[bool], stop: int) -> None:
    whole = LossScale(CONFIG)
    for applied in steps:
        whole.adapt(step(applied))
    first = LossScale(CONFIG)
    for applied in steps[:stop]:
        first.adapt(step(applied))
    second = LossScale(CONFIG, first.state)
    for applied in steps[stop:]:
        second.adapt(step(applied))
    assert second.state == whole.state


@pytest.mark.parametrize("given_", [{"start": 3.0}, {"floor": 0.3}, {"start": 1.0, "floor": 2.0}])
def test_a_scale_that_would_round_gradients_is_refused(given_: dict) -> None:
    with pytest.raises(ValidationError, match=r"power of two|above start"):
        LossScaleConfig.model_validate(given_)
