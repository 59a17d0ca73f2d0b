"""What the page of a study draws."""

import pytest

from flows.experiments.search_report import ceiling


def test_one_value_out_of_hand_does_not_stretch_the_axis() -> None:
    """The way from the best, 4, to the third quarter, 5, is drawn three times above it."""
    assert ceiling([4.0, 4.5, 4.8, 5.0, 59.0]) == pytest.approx(8.0)


def test_few_values_are_all_drawn() -> None:
    assert ceiling([1.0, 59.0]) == 59.0
    assert ceiling([2.0, 2.0, 2.0, 2.0]) == 2.0
