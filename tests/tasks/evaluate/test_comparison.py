"""Two models on the same items, with intervals that can be worked out by hand."""

import math

import numpy as np
import pyarrow as pa
import pytest

from model.errors import InputError
from tasks.artifacts.tables.schema import DOCUMENT_SCORES, ITEM_SCORES
from tasks.common.numeric import Z_95
from tasks.evaluate.comparison import (
    Difference,
    bits_regressions,
    holm_significant,
    paired_difference,
    paired_differences,
    score_regressions,
    sign_flip_p_value,
)


def test_differences_are_taken_item_by_item() -> None:
    # Both are right on half; the first alone on 6 items, the second alone on 2: d has mean .4 and sum of squares 8.
    a = {number: float(number in (0, 1, 2, 3, 4, 5)) for number in range(10)}
    b = {number: float(number in (8, 9)) for number in range(10)}
    found = paired_difference(a, b)
    reach = Z_95 * math.sqrt((8 - 10 * 0.16) / 9 / 10)
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


def test_a_single_item_says_nothing() -> None:
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

    found = paired_differences(rows(1.0, (0, 1)), rows(0.0, (1, 5)))
    assert found == {("quiz", "acc", 1): Difference(n=3, mean=1.0, low=1.0, high=1.0)}
    assert found["quiz", "acc", 1].verdict == "better"


def _documents(source: str, *bits_and_bytes: tuple[float, int]) -> pa.Table:
    rows = [
        {"source": source, "doc_id": bytes([number] * 16), "piece": 0, "metric": "bits_per_byte", "bits": b, "bytes": n}
        for number, (b, n) in enumerate(bits_and_bytes)
    ]
    return pa.Table.from_pylist(rows, schema=DOCUMENT_SCORES)


def test_bits_that_rise_everywhere_have_the_chance_of_all_signs_falling_so() -> None:
    before = _documents("en", (10.0, 10), (200.0, 100), (9.0, 3))
    (line,) = bits_regressions(_documents("en", (20.0, 10), (300.0, 100), (12.0, 3)), before)
    assert (line.what, line.n, line.worse_by) == ("en: bits_per_byte", 3, 1.0)
    assert (line.before, line.after) == (219 / 113, 332 / 113)
    assert line.chance == 1 / 8
    (back,) = bits_regressions(before, _documents("en", (20.0, 10), (300.0, 100), (12.0, 3)))
    assert (back.worse_by, back.chance) == (-1.0, 1.0)


def test_a_document_that_was_cut_elsewhere_is_left_out() -> None:
    before = _documents("en", (0.0, 1), (0.0, 1), (5.0, 9))
    (line,) = bits_regressions(_documents("en", (1.0, 1), (2.0, 1), (7.0, 8)), before)
    assert (line.n, line.worse_by, line.chance) == (2, 1.5, 1 / 4)
    assert bits_regressions(_documents("en", (9.0, 1)), _documents("it", (1.0, 1))) == []


def test_sources_are_taken_together_too() -> None:
    def of_both(*bits: float) -> pa.Table:
        return pa.concat_tables([_documents("en", (bits[0], 10)), _documents("it", (bits[1], 30), (bits[2], 10))])

    lines = {line.what: line for line in bits_regressions(of_both(20.0, 65.0, 15.0), of_both(10.0, 60.0, 20.0))}
    whole = lines["all sources: bits_per_byte"]
    assert (whole.n, whole.before, whole.after, whole.worse_by) == (3, 90 / 50, 100 / 50, 10 / 50)
    # +10 +5 -5 is one of the four ways of eight to come to 10 or more: the tens up, and not both fives down.
    assert whole.chance == 3 / 8
    assert lines["it: bits_per_byte"].chance == 1.0


def test_scores_fall_item_by_item() -> None:
    def items(*values: float) -> pa.Table:
        rows = [
            {"task": "t", "item_id": str(n), "shots": 0, "state": "clean", "metric": "acc", "value": value}
            for n, value in enumerate(values)
        ]
        return pa.Table.from_pylist(rows, schema=ITEM_SCORES)

    (line,) = score_regressions(items(0, 0, 1, 0), items(1, 1, 1, 1))
    assert (line.what, line.n, line.before, line.after) == ("t 0-shot: acc", 4, 1.0, 0.25)
    # Three items differ, and all signs of three fall so once in eight times.
    assert line.chance == 1 / 8


def test_random_signs_agree_with_all_of_them() -> None:
    values = [5.0, -1.0, 2.5, 4.0, -2.0, 1.0, 3.0, -0.5, 2.0, 1.5, -1.5, 0.5]
    exact = sign_flip_p_value(values, "x")
    # Pairs of signs of a zero change no sum: the same question with more ways to sign than are looked at.
    drawn = sign_flip_p_value([*values, *[0.0] * 70], "x")
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact / 10_000))
    assert drawn == sign_flip_p_value([*values, *[0.0] * 70], "x")
    assert sign_flip_p_value([1.0] * 100, "x") == 1 / 10_000


def test_equal_models_are_called_worse_no_more_often_than_stated() -> None:
    """Documents of very unequal lengths, where Student's t is wrong in 8 to 11 of 100 tellings instead of 5."""
    draws = np.random.Generator(np.random.Philox(key=3))
    alarms = 0
    for _ in range(400):
        size = draws.lognormal(8.0, 1.0, 9)
        alarms += sign_flip_p_value((size * draws.normal(0.0, 0.05, 9)).tolist(), "x") <= 0.05
    # 20 are expected; 3 standard deviations above them.
    assert alarms <= 33


def test_of_several_findings_each_further_one_needs_less() -> None:
    assert holm_significant([0.03, 0.001, 0.02], 0.05) == [True, True, True]
    assert holm_significant([0.03, 0.001, 0.03], 0.05) == [False, True, False]
    assert holm_significant([0.02], 0.05) == [True]
    assert holm_significant([], 0.05) == []
