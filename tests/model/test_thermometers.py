"""What thermometers read: the smallest and the largest of all, whoever computes which part, and whether all are
numbers."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.config import TrainerRun
from model.engine import StepResult
from model.engines.native import NativeEngine
from model.engines.totals import Totals
from model.loader import CausalBatch
from model.objectives.interface import Sums
from model.ranks import ALONE
from model.schedule import Pace
from model.thermometers import extremes, lows_and_highs, nothing_read
from model.transformer import GPT

numbers = st.floats(-100, 100, width=32)


def test_smallest_and_largest_are_read() -> None:
    read = extremes(torch.tensor([[1.0, -3.0], [2.0, 0.5]]))
    assert read.tolist() == [3.0, 2.0]
    assert lows_and_highs(read[None]) == ([-3.0], [2.0])


@given(values=st.lists(numbers, min_size=1, max_size=12), cut=st.integers(0, 12))
def test_parts_join_to_the_whole_by_their_maximum(values: list[float], cut: int) -> None:
    whole = torch.tensor(values)
    read = nothing_read(whole)
    for part in (whole[:cut], whole[cut:]):
        if len(part):
            read = torch.maximum(read, extremes(part))
    assert lows_and_highs(read[None]) == ([min(values)], [max(values)])


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([1.0, -math.inf], -math.inf, 1.0),
        ([1.0, math.inf], 1.0, math.inf),
        ([1.0, math.nan], -math.inf, math.inf),
    ],
)
def test_what_is_no_number_reads_as_infinite(values: list[float], low: float, high: float) -> None:
    totals = Totals()
    for part in ([0.5, 2.0], values):
        totals.add(Sums((torch.ones(()),), (), extremes(torch.tensor(part))[None]))
    _, _, lows, highs = totals.over_all_ranks(ALONE, (1,))
    assert (lows, highs) == ([min(low, 0.5)], [max(high, 2.0)])
    assert StepResult(1.0, [1.0], [], 1.0, lows, highs, applied=False).thermometers == [math.inf]


def test_the_largest_magnitude_is_that_of_either_sign() -> None:
    assert StepResult(1.0, [1.0], [], 1.0, [-3.0, 1.0], [2.0, 4.0], applied=True).thermometers == [3.0, 4.0]


def test_a_segment_behind_a_number_that_is_none_reads_as_infinite_and_those_before_it_do_not(
    make_run: Callable[..., TrainerRun],
) -> None:
    run = make_run()
    engine = NativeEngine(run, GPT(run.model).initialise(1), ALONE)
    with torch.no_grad():
        engine.network.final_norm.weight[0] = math.nan
    done = engine.step(CausalBatch(torch.arange(4, 21)[None], torch.zeros(1, dtype=torch.int64)), Pace(0.01))
    assert all(map(math.isfinite, done.thermometers[:-1]))
    assert (done.lows[-1], done.highs[-1]) == (-math.inf, math.inf)
