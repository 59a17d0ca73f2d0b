"""The learning rate at points that can be checked in the head."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config import ScheduleConfig
from model.schedule import learning_rate

CONFIG = ScheduleConfig(start_lr=0.0, peak_lr=1.0, end_lr=0.1, warmup_share=0.2)


@pytest.mark.parametrize(
    ("share", "rate"), [(0.0, 0.0), (0.05, 0.25), (0.1, 0.5), (0.2, 1.0), (0.6, 0.55), (1.0, 0.1), (1.5, 0.1)]
)
def test_rate_rises_in_a_line_and_falls_along_half_a_cosine(share: float, rate: float) -> None:
    assert learning_rate(share, CONFIG) == pytest.approx(rate)


def test_without_warm_up_the_rate_starts_at_its_peak() -> None:
    assert learning_rate(0.0, CONFIG.model_copy(update={"warmup_share": 0.0})) == 1.0


@given(st.floats(0, 2), st.floats(0, 2))
def test_rate_never_rises_after_warm_up_nor_falls_before(first: float, second: float) -> None:
    low, high = sorted((first, second))
    if high < 0.2:
        assert learning_rate(low, CONFIG) <= learning_rate(high, CONFIG)
    if low >= 0.2:
        assert learning_rate(low, CONFIG) >= learning_rate(high, CONFIG)
