"""Who goes on: the best third of a rung, each once, the highest rung first."""

import math

from hypothesis import given
from hypothesis import strategies as st

from flows.experiments.samplers import best_to_promote, next_promotion, rung_shares


def test_rungs_are_a_geometric_series_up_to_the_whole() -> None:
    assert rung_shares(3, 3) == (1 / 9, 1 / 3, 1.0)
    assert rung_shares(1, 3) == (1.0,)
    assert rung_shares(4, 2) == (1 / 8, 1 / 4, 1 / 2, 1.0)


def test_of_three_trials_the_best_goes_on_and_of_two_none() -> None:
    assert best_to_promote({0: 2.0, 1: 1.0}, set(), 3) is None
    assert best_to_promote({0: 2.0, 1: 1.0, 2: 3.0}, set(), 3) == 1
    assert best_to_promote({0: 2.0, 1: 1.0, 2: 3.0}, {1}, 3) is None
    assert best_to_promote({trial: 10.0 - trial for trial in range(6)}, {5}, 3) == 4


def test_of_equal_losses_the_earlier_trial_goes_on() -> None:
    assert best_to_promote({2: 1.0, 0: 1.0, 1: 1.0}, set(), 3) == 0


def test_what_diverged_counts_in_the_rung_and_never_goes_on() -> None:
    assert best_to_promote({0: math.inf, 1: math.inf, 2: 4.0}, set(), 3) == 2
    assert best_to_promote({0: math.inf, 1: math.inf, 2: math.nan}, set(), 3) is None


def test_the_highest_rung_counts_first() -> None:
    losses = [{0: 3.0, 1: 2.0, 2: 1.0, 3: 4.0, 4: 5.0, 5: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0}, {}]
    began = [{0, 1, 2, 3, 4, 5}, {0, 1, 2}, set[int]()]
    assert next_promotion(losses, began, 3) == (0, 2)
    assert next_promotion(losses, [began[0], {0}, {0}], 3) == (2, 1)
    assert next_promotion([{0: 1.0}], [{0}], 3) is None


@given(losses=st.lists(st.floats(0, 10), min_size=1, max_size=40), eta=st.integers(2, 5))
def test_in_the_end_just_the_best_part_of_a_rung_has_gone_on(losses: list[float], eta: int) -> None:
    """However trials come in, when the last has come those that went on include the best 1/eta."""
    came: dict[int, float] = {}
    gone: set[int] = set()
    for trial, loss in enumerate(losses):
        came[trial] = loss
        while (best := best_to_promote(came, gone, eta)) is not None:
            gone.add(best)
    best = {trial for _, trial in sorted((loss, trial) for trial, loss in came.items())[: len(losses) // eta]}
    assert best <= gone
