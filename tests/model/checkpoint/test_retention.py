"""Which checkpoints are deleted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.checkpoint.checkpoint import steps_to_delete

STEPS = st.sets(st.integers(1, 40), max_size=12)


@pytest.mark.parametrize(
    ("existing", "newest", "keep", "healthy", "gone"),
    [
        ([10, 20, 30, 40], 40, 2, [], [10, 20]),
        ([10, 20, 30, 40], 40, 9, [], []),
        ([10, 20, 30, 40, 50, 60], 60, 1, [20, 30, 40], [10, 50]),
        ([10, 20, 30], 30, 2, [10], []),
        # 20 was damaged and is gone.
        ([10, 30, 40, 50], 50, 1, [10, 20, 30], [40]),
        # 50 and 60 belong to an attempt that was given up; they are not the newest, healthy or not.
        ([10, 20, 50, 60], 20, 2, [10, 50], [50, 60]),
    ],
)
def test_the_newest_and_the_healthy_ones_stay(
    existing: list[int], newest: int, keep: int, healthy: list[int], gone: list[int]
) -> None:
    assert steps_to_delete(existing, newest, keep, healthy) == gone


@given(STEPS, STEPS, st.integers(1, 4), st.randoms())
def test_the_one_just_written_stays_and_nothing_that_was_named_goes(existing, healthy, keep: int, random) -> None:
    if not existing:
        return
    newest = random.choice(sorted(existing))
    stay = existing - set(steps_to_delete(existing, newest, keep, healthy))
    assert newest in stay
    assert max(stay) == newest
    led_here = {step for step in existing if step <= newest}
    assert stay == set(sorted(led_here)[-keep:]) | (led_here & healthy)
