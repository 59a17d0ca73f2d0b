"""Two models on the same items, with intervals that can be worked out by hand."""

import math

import pyarrow as pa
import pytest

from model.errors import InputError
from tasks.evaluate.comparison import ITEM_SCORES, Difference, paired_difference, paired_differences


def test_differences_are_taken_item_by_item() -> None:
    # Both are right on half; the first alone on 6 items, the second alone on 2: d has mean .4 and sum of squares 8.
    a = {number: float(number in (0, 1, 2, 3, 4, 5)) for number in range(10)}
    b = {number: float(number in (8, 9)) for number in range(10)}
    found = paired_difference(a, b)
    reach = 1.96 * math.sqrt((8 - 10 * 0.16) / 9 / 10)
    assert (found.n, found.mean) == (10, pytest.approx(0.4))
    assert (found.low, found.high) == (pytest.approx(0.4 - reach), pytest.approx(0.4 + reach))
    assert found.verdict == "no difference"


def test_better_only_where_the_interval_excludes_nothing() -> None:
    a = dict.fromkeys(range(20), 1.0)
    b = {number: float(number % 2) for number in range(20)}
    assert paired_difference(a, b).verdict == "better"
    assert paired_difference(b, a).verdict == "worse"
    assert paired_difference(a, a) == Difference(20, 0.0, 0.0, 0.0)
    assert paired_difference(a, a).verdict == "no difference"


def test_a_single_item_tells_nothing() -> None:
    assert paired_difference({"x": 1.0}, {"x": 0.0, "y": 1.0}) == Difference(1, 1.0, None, None)
    assert paired_difference({"x": 1.0}, {"x": 0.0}).verdict == "no difference"


def test_items_that_one_model_lacks_are_left_out_and_none_in_common_is_an_error() -> None:
    assert paired_difference({"x": 1.0, "y": 0.0}, {"y": 1.0, "z": 1.0}).mean == -1.0
    with pytest.raises(InputError, match="share no item"):
        paired_difference({"x": 1.0}, {"y": 1.0})


def test_pairing_sees_what_two_scores_do_not() -> None:
    # 60% and 50% of 100 items, where the second is right on nothing that the first is not.
    a = {number: float(number < 60) for number in range(100)}
    b = {number: float(number < 50) for number in range(100)}
    found = paired_difference(a, b)
    assert found.verdict == "better"
    apart = 1.96 * math.sqrt((0.24 + 0.25) / 99)
    assert found.low is not None
    assert found.mean - found.low < apart / 2


def test_tables_are_compared_by_benchmark_metric_and_shots() -> None:
    def rows(value: float, shots: tuple[int, ...]) -> pa.Table:
        place = {"task": "quiz", "state": "clean", "metric": "acc", "value": value}
        found = [{**place, "item_id": str(item), "shots": number} for number in shots for item in range(3)]
        return pa.Table.from_pylist(found, schema=ITEM_SCORES)

    lines = paired_differences(rows(1.0, (0, 1)), rows(0.0, (1, 5)))
    assert lines == [
        {"task": "quiz", "metric": "acc", "shots": 1, "n": 3, "mean": 1.0, "low": 1.0, "high": 1.0, "verdict": "better"}
    ]
