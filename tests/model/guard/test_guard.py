"""The guard as the step loop uses it."""

from collections.abc import Callable

from model.config.train import TrainerRun
from model.engines.base import StepResult
from model.guard.guard import Guard

CLEAN = StepResult(loss=1.0, losses=[1.0], accuracies=[], grad_norm=1.0, lows=[-1.0], highs=[1.0], applied=True)


def test_a_checkpoint_between_two_regular_ones_is_never_gone_back_to(make_run: Callable[..., TrainerRun]) -> None:
    """One that a stop at step 70 asked for: the way back is that of a run which nobody stopped."""
    undisturbed, stopped = (Guard(make_run(checkpoint_steps=50), []) for _ in range(2))
    for step in range(200):
        for guard in (undisturbed, stopped):
            if (step + 1) % 50 == 0 or (guard is stopped and step + 1 == 70):
                guard.saved(step + 1)
            guard.step_done(step, CLEAN, overflow=False, scale=1.0)
    assert stopped.to_keep == undisturbed.to_keep == [50, 100, 150, 200]
