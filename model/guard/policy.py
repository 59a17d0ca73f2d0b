"""What follows from a divergence: where the run goes back to, which data it skips, and what it changes.

Which checkpoints can be gone back to: those behind which enough steps went well.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from model.config.network import width_multiplier
from model.config.options import DEFAULT_POLICY, FLOAT16_RECOVERY_STEP, RecoveryStep
from model.config.train import TrainerRun
from model.guard.decisions import Decision, changed, in_force
from model.guard.detection import Divergence


class NothingLeft(Exception):
    """No way back, and why."""


class Health:
    """Checkpoints by the number of steps before them: candidates, and those found healthy."""

    def __init__(self, steps_after: int, state: dict[str, Any] | None = None) -> None:
        self._steps_after = steps_after
        self._candidates: list[int] = [*state["candidates"]] if state else []
        self.healthy: list[int] = [*state["healthy"]] if state else []
        """In rising order, the newest ones."""

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {"candidates": [*self._candidates], "healthy": [*self.healthy]}

    @property
    def to_keep(self) -> list[int]:
        """What must not be deleted: healthy ones, and those that may become so."""
        return [*self.healthy, *self._candidates]

    def saved(self, steps: int) -> None:
        """A checkpoint was written after so many steps. It is a candidate unless one lies just before it: a run that
        saves at each step keeps three of them, and not sixty-four."""
        newest = max([*self._candidates, *self.healthy], default=None)
        if newest is None or steps - newest >= self._steps_after // 2:
            self._candidates.append(steps)

    def step_done(self, steps: int, *, clean: bool, suspected: bool = False) -> None:
        """Another step was made, so many in all. One that was left out, or was computed at a loss scale below 1, is a
        reason to doubt all candidates before it. While something is `suspected` no candidate becomes healthy, and so
        none of the healthy ones, which are older than the suspicion, is given up for it."""
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
    standing: Iterable[int],
    positions: Callable[[int], tuple[int, int]],
    steps: int,
) -> Decision:
    """The next way back; NothingLeft where there is none.

    `run` is as it began, `standing` the steps of the checkpoints on disk, `positions(step)` what a step of the `steps`
    reads. The data of the whole episode are skipped, a little before and behind it too: what led to it may have been
    read before it showed. Trouble that goes on behind the data that were skipped for it is longer than it was when it
    was seen: as many steps as it has lasted by then are skipped behind it, if the run's rows allow it.
    """
    guard = run.train.guard
    of_guard = _since_a_person(decisions)
    same = _same_trouble(of_guard, divergence.onset, guard.same_trouble_steps)
    ladder = guard.ladder or default_ladder(run)
    if len(same) >= len(ladder):
        raise NothingLeft(f"the same trouble came back after each of the {len(ladder)} rungs of the guard's ladder")
    if len(of_guard) >= guard.most_rollbacks:
        raise NothingLeft(f"the guard has gone back {guard.most_rollbacks} times, which is guard.most_rollbacks")
    before_it = decisions[: len(decisions) - len(same)]
    begin, rows = positions(max(0, divergence.onset - guard.skip_before))[0], positions(steps - 1)[1]
    before = [decision.skipped for decision in decisions if decision.skipped]
    lasted = divergence.step + 1 - min([divergence.onset, *(decision.onset for decision in same)]) if same else 0
    for behind in sorted({guard.skip_after, max(guard.skip_after, lasted)}, reverse=True):
        skipped = (begin, positions(min(steps - 1, divergence.step + behind))[1])
        if _covered([*before, skipped]) <= guard.most_skipped * rows:
            break
    else:
        raise NothingLeft(
            f"to go back once more would leave out more than {guard.most_skipped:.0%} of the run's {rows:,} rows, which"
            f" is guard.most_skipped"
        )
    return Decision(
        attempt=len(decisions) + 1,
        by="guard",
        cause=divergence.cause,
        onset=divergence.onset,
        step=divergence.step,
        to_step=_target(same, divergence.onset - guard.margin_steps, health, standing),
        skipped=skipped,
        firing=len(same) + 1,
        settings=settings_of(ladder[len(same)], in_force(run, before_it)),
    )


def default_ladder(run: TrainerRun) -> tuple[RecoveryStep, ...]:
    """The one of a run whose settings name none."""
    if run.train.dtype == "float16":
        return (*DEFAULT_POLICY[:-1], FLOAT16_RECOVERY_STEP)
    # Rates that hold for another width do so by the rules for AdamW.
    has_other_optimizer = run.train.optimizer.kind != "sgd" and width_multiplier(run.model) == 1.0
    return DEFAULT_POLICY if has_other_optimizer else DEFAULT_POLICY[:-1]


def check_ladder(run: TrainerRun) -> None:
    """RecipeError for a rung that this run could not go on with."""
    if run.train.guard.enabled:
        for rung in run.train.guard.ladder or default_ladder(run):
            changed(run, settings_of(rung, run))


def settings_of(rung: RecoveryStep, run: TrainerRun) -> dict[str, Any]:
    """What a rung changes of a run, by the path of each setting."""
    train, settings = run.train, dict[str, Any]()
    if rung.lr_factor != 1.0:
        for name in ("start_lr", "peak_lr", "end_lr"):
            settings[f"train.schedule.{name}"] = getattr(train.schedule, name) * rung.lr_factor
    if rung.max_norm is not None:
        for name in ("max_norm", "early_norm"):
            settings[f"train.clip.{name}"] = min(getattr(train.clip, name), rung.max_norm)
    if rung.beta2 is not None:
        settings["train.optimizer.beta2"] = rung.beta2
    if rung.optimizer is not None:
        settings["train.optimizer.kind"] = rung.optimizer
    if rung.dtype is not None:
        settings["train.dtype"] = rung.dtype
        if rung.dtype != "float16":
            # It would say nothing, which is an error.
            settings["train.loss_scale"] = None
    return settings


def _covered(ranges: Iterable[tuple[int, int]]) -> int:
    """Positions in any of the ranges."""
    count = reached = 0
    for begin, end in sorted(ranges):
        count += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return count


def _since_a_person(decisions: Sequence[Decision]) -> list[Decision]:
    """The guard's own since somebody last took over: a person's word gives it a new start."""
    own: list[Decision] = []
    for decision in decisions:
        own = [] if decision.by == "hand" else [*own, decision]
    return own


def _same_trouble(decisions: Sequence[Decision], onset: int, within: int) -> list[Decision]:
    """The last decisions that were for what began here, in their order."""
    same: list[Decision] = []
    for decision in reversed(decisions):
        if abs(decision.onset - onset) > within:
            break
        same.insert(0, decision)
    return same


def _target(same: Sequence[Decision], latest: int, health: Health, standing: Iterable[int]) -> int:
    """The newest healthy checkpoint before the trouble; at its second firing the one before that, and so from then on.

    One that was gone back to before is healthy, though its run forgot it with what came behind it.
    """
    if same:
        latest = min(latest, same[0].to_step - 1 if len(same) == 1 else same[1].to_step)
    well = {*health.healthy, *(decision.to_step for decision in same)}
    return max((at for at in set(standing) & well if at <= latest), default=0)


KEPT = 3
"""Healthy checkpoints that are never deleted."""
