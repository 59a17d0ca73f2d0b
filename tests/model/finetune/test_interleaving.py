"""The order of examples: exact shares, none left out, a function of seed and epoch."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from model.finetune.data import interleave


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=4), cap=st.integers(1, 40), seed=st.integers(0, 5))
def test_each_epoch_reads_each_task_in_proportion_up_to_the_cap(counts: list[int], cap: int, seed: int) -> None:
    first = np.cumsum([0, *counts])
    read = [interleave(counts, cap, seed, epoch) for epoch in range(5)]
    for order in read:
        taken = np.histogram(order, bins=first - 0.5)[0]
        assert taken.tolist() == [min(count, cap) for count in counts]
    times = np.bincount(np.concatenate(read), minlength=first[-1])
    for task in range(len(counts)):
        of_task = times[first[task] : first[task + 1]]
        assert of_task.max() - of_task.min() <= 1, "all come round before one comes again"


def test_the_order_follows_from_seed_and_epoch() -> None:
    order = interleave([50], 100, 1, 0)
    assert order.tolist() == interleave([50], 100, 1, 0).tolist()
    assert sorted(order) == list(range(50))
    assert order.tolist() not in [interleave([50], 100, *key).tolist() for key in ((2, 0), (1, 1))]


def test_tasks_are_mixed_within_an_epoch() -> None:
    of_first = interleave([100, 100], 100, 1, 0)[:100] < 100
    assert 30 < of_first.sum() < 70
