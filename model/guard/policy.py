"""Decide what follows a divergence: the checkpoint to roll back to, the data to skip, and the settings to change.

A run rolls back only to healthy checkpoints: those after which enough steps were clean.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

from model.checkpoint.state import HealthState
from model.config.network import width_multiplier
from model.config.options import DEFAULT_POLICY, FLOAT16_RECOVERY_STEP, PhaseConfig, RecoveryStep
from model.config.train import TrainerRun
from model.guard.decisions import Decision, effective_config, with_settings
from model.guard.detection import Divergence

KEPT = 3
"""Number of healthy checkpoints that are never deleted."""
SKIPPED_MARGIN = 2
"""Steps before the first sign of a divergence, and after its detection, whose data are skipped too."""
SAME_WITHIN = 200
"""A divergence that begins within so many steps of where the last one began is the same."""


class RecoveryExhausted(Exception):
    """Raised where the guard can roll back no further; carries the reason."""


class Health:
    """Tracks which checkpoints are healthy; a checkpoint is named by the number of steps before it."""

    def __init__(self, steps_after: int, state: HealthState | None = None) -> None:
        self._steps_after = steps_after
        self._candidates: list[int] = [*state["candidates"]] if state else []
        self.healthy: list[int] = [*state["healthy"]] if state else []
        """The newest healthy checkpoints, ascending."""

    @property
    def state(self) -> HealthState:
        return {"candidates": [*self._candidates], "healthy": [*self.healthy]}

    @property
    def to_keep(self) -> list[int]:
        """Checkpoints that must not be deleted: healthy ones, and those that may become so."""
        return [*self.healthy, *self._candidates]

    def saved(self, steps: int) -> None:
        """Add the checkpoint after `steps` steps as a candidate, unless another one is close before it: a run that
        saves at each step keeps three, and not sixty-four."""
        newest = max([*self._candidates, *self.healthy], default=None)
        if newest is None or steps - newest >= self._steps_after // 2:
            self._candidates.append(steps)

    def step_done(self, steps: int, *, clean: bool, suspected: bool = False) -> None:
        """Update the candidates after a step, of `steps` in all.

        A step that was rejected, or computed at a loss scale below 1, is not `clean` and disqualifies all candidates
        before it. While a rise is `suspected` no candidate becomes healthy, so that no older healthy one is dropped.
        """
        if not clean:
            self._candidates = []
        if suspected:
            return
        grown = [at for at in self._candidates if steps - at >= self._steps_after]
        self._candidates = [at for at in self._candidates if at not in grown]
        self.healthy = [*self.healthy, *grown][-KEPT:]


def decide(
    run: TrainerRun,
    decisions: Sequence[Decision],
    divergence: Divergence,
    health: Health,
    existing: Iterable[int],
    positions: Callable[[int], tuple[int, int]],
    steps: int,
) -> Decision:
    """Return the decision that answers `divergence`; raise RecoveryExhausted where none is left.

    `run` is the run as it began, which `decisions` changed, `existing` the steps of the checkpoints on disk, and
    `positions(step)` the range of ORDER that a step reads, of `steps` in all. The data of the whole episode are
    skipped, with a margin before and after it: what caused it may have been read before it showed. Where the divergence
    recurs after data were skipped for it, it lasts longer than it had when it was detected; then as many steps as it
    has lasted are skipped after it, if `guard.most_skipped` allows it.
    """
    guard = effective_config(run, decisions).train.guard
    if not guard.enabled:
        raise RecoveryExhausted("the guard is off")
    # A manual intervention resets the guard's counts.
    newest_first = [*takewhile(lambda decision: decision.by == "guard", reversed(decisions))]
    same = [*takewhile(lambda other: abs(other.onset - divergence.onset) <= SAME_WITHIN, newest_first)][::-1]
    before_it = effective_config(run, decisions[: len(decisions) - len(same)])
    policy = guard.ladder or default_policy(before_it)
    if len(same) >= len(policy):
        raise RecoveryExhausted(f"the same divergence recurred after each of the {len(policy)} steps of guard.ladder")
    if len(newest_first) >= guard.most_rollbacks:
        raise RecoveryExhausted(
            f"the guard has rolled back {guard.most_rollbacks} times, the limit of guard.most_rollbacks"
        )
    begin, rows = positions(max(0, divergence.onset - SKIPPED_MARGIN))[0], positions(steps - 1)[1]
    before = [decision.skipped for decision in decisions if decision.skipped]
    lasted = divergence.step + 1 - min([divergence.onset, *(decision.onset for decision in same)]) if same else 0
    for margin in sorted({SKIPPED_MARGIN, max(SKIPPED_MARGIN, lasted)}, reverse=True):
        skipped = (begin, positions(min(steps - 1, divergence.step + margin))[1])
        if _covered([*before, skipped]) <= guard.most_skipped * rows:
            break
    else:
        raise RecoveryExhausted(
            f"one more rollback would skip more than {guard.most_skipped:.0%} of the run's {rows:,} rows, which is"
            f" guard.most_skipped"
        )
    return Decision(
        attempt=len(decisions) + 1,
        by="guard",
        cause=divergence.cause,
        onset=divergence.onset,
        step=divergence.step,
        to_step=_target(same, divergence.onset - guard.margin_steps, health, existing),
        skipped=skipped,
        firing=len(same) + 1,
        settings=settings_of(policy[len(same)], before_it),
    )


def default_policy(run: TrainerRun) -> tuple[RecoveryStep, ...]:
    """Return the recovery steps of a run that does not set `guard.ladder`."""
    if run.train.dtype == "float16":
        return (*DEFAULT_POLICY[:-1], FLOAT16_RECOVERY_STEP)
    # Rates that hold for another width do so by the rules for AdamW.
    has_other_optimizer = run.train.optimizer.kind != "sgd" and width_multiplier(run.model) == 1.0
    return DEFAULT_POLICY if has_other_optimizer else DEFAULT_POLICY[:-1]


def check_policy(run: TrainerRun) -> None:
    """Raise RecipeError for a recovery step whose settings this run cannot have."""
    if run.train.guard.enabled:
        for recovery in run.train.guard.ladder or default_policy(run):
            with_settings(run, settings_of(recovery, run))


def settings_of(recovery: RecoveryStep, run: TrainerRun) -> dict[str, Any]:
    """Return the settings that a recovery step changes, by path."""
    train, settings = run.train, dict[str, Any]()
    if recovery.lr_factor != 1.0:
        for name in ("start_lr", "peak_lr", "end_lr"):
            settings[f"train.schedule.{name}"] = getattr(train.schedule, name) * recovery.lr_factor
        phases = [_scaled(phase, recovery.lr_factor) for phase in train.phases]
        if phases != [*train.phases]:
            settings["train.phases"] = [phase.model_dump(mode="json", exclude_unset=True) for phase in phases]
    if recovery.max_norm is not None:
        for name in ("max_norm", "early_norm"):
            settings[f"train.clip.{name}"] = min(getattr(train.clip, name), recovery.max_norm)
    if recovery.beta2 is not None:
        settings["train.optimizer.beta2"] = recovery.beta2
    if recovery.optimizer is not None:
        settings["train.optimizer.kind"] = recovery.optimizer
    if recovery.dtype is not None:
        settings["train.dtype"] = recovery.dtype
        if recovery.dtype != "float16":
            # A loss scale without float16 has no effect, which is an error.
            settings["train.loss_scale"] = None
    return settings


def _scaled(phase: PhaseConfig, factor: float) -> PhaseConfig:
    """Return a phase with its own rates, if it has any, multiplied."""
    rates = {"start_lr": phase.start_lr, "end_lr": phase.end_lr}
    return phase.model_copy(update={name: rate * factor for name, rate in rates.items() if rate is not None})


def _covered(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the number of positions in any of the ranges."""
    count = reached = 0
    for begin, end in sorted(ranges):
        count += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return count


def _target(same: Sequence[Decision], latest: int, health: Health, existing: Iterable[int]) -> int:
    """Return the newest healthy checkpoint up to step `latest`; from the second firing on, the one before that.

    A checkpoint rolled back to before counts as healthy, though the state restored from it does not list it.
    """
    if same:
        latest = min(latest, same[0].to_step - 1 if len(same) == 1 else same[1].to_step)
    healthy = {*health.healthy, *(decision.to_step for decision in same)}
    return max((at for at in set(existing) & healthy if at <= latest), default=0)
