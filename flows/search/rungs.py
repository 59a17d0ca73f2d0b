"""Asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning").

Trials are compared at rungs, a geometric series of shares of the training. A trial goes on as soon as it is among the
best 1/eta of those that came to its rung so far; nobody waits for a rung to fill. Each trial trains under the schedule
of the whole training, so that its way to the end is the one that it would have taken undisturbed.
"""

import math
from collections.abc import Collection, Mapping, Sequence


def rung_shares(rungs: int, eta: int) -> tuple[float, ...]:
    """Shares of the training at which trials are compared; the last is its end. (3, 3) -> (1/9, 1/3, 1)."""
    return tuple(float(eta) ** -(rungs - 1 - rung) for rung in range(rungs))


def next_promotion(
    losses: Sequence[Mapping[int, float]], began: Sequence[Collection[int]], eta: int
) -> tuple[int, int] | None:
    """The trial that goes on, and the rung that it goes to; None where none may.

    `losses[k]` are those of the trials that came to rung k, `began[k]` the trials that went, or are going, there. The
    highest rung counts first: what has been trained longest is nearest to an answer.
    """
    for rung in reversed(range(1, len(began))):
        trial = best_to_promote(losses[rung - 1], began[rung], eta)
        if trial is not None:
            return trial, rung
    return None


def best_to_promote(losses: Mapping[int, float], gone_on: Collection[int], eta: int) -> int | None:
    """The best trial among the best 1/eta of a rung that has not gone on from it; None where all have, or the loss is
    no number: a training that diverged does not come back. Of equal losses the earlier trial's counts as better."""
    ranked = sorted((loss, trial) for trial, loss in losses.items() if math.isfinite(loss))
    best = ranked[: len(losses) // eta]
    return next((trial for _, trial in best if trial not in gone_on), None)
