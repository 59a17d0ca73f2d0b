"""The guard of a run: asked before the weights move, told what became of each step, and asked what to do then."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from model.config import TrainerRun
from model.engine import StepResult
from model.guard.change_points import RISEN
from model.guard.deciding import NothingLeft, decide
from model.guard.decision import Decision, skips
from model.guard.detection import Detector, Divergence, Level
from model.guard.health import Health
from model.networks import thermometer_names


class Guard:
    """Of one attempt; `run` is as it began, `state` what the checkpoint held from which the attempt goes on.

    A run whose guard is off leaves out non-finite steps alone, and can go back nowhere.
    """

    def __init__(self, run: TrainerRun, decisions: Sequence[Decision], state: dict[str, Any] | None = None) -> None:
        self._run = run
        self._config = run.train.guard
        self._decisions = decisions
        state = state or {}
        self._detector = Detector(
            self._config, run.train.max_nonfinite_steps, state.get("detector"), thermometer_names(run.model)
        )
        self._health = Health(self._config.healthy_steps, state.get("health"))

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {"detector": self._detector.state, "health": self._health.state}

    @property
    def to_keep(self) -> list[int]:
        """Checkpoints that must not be deleted, by the steps before them."""
        return self._health.to_keep if self._config.enabled else []

    def skips(self, begin: int, end: int) -> bool:
        """Whether the positions [begin, end) of ORDER are left out without a look."""
        return skips(self._decisions, begin, end)

    def admits(self, loss: float, grad_norm: float) -> bool:
        """Whether the weights may move by a step with this loss and gradient norm."""
        return self._detector.level(loss, grad_norm) == "clean"

    def saved(self, steps: int) -> None:
        """A checkpoint is about to be written after so many steps. One that somebody asked for in between is never gone
        back to: where the guard goes is the same whether a run was disturbed or not."""
        if steps % self._run.train.checkpoint_steps == 0:
            self._health.saved(steps)

    def step_done(self, step: int, done: StepResult, *, overflow: bool, scale: float) -> Divergence | None:
        """Take in what became of a step; the divergence that it completes, if any.

        `overflow`: the loss scale answers it. `scale` is the one that the step was computed with.
        """
        # `admits` has judged finite numbers: the step was applied or not by its word.
        level: Level = "clean" if overflow or done.applied else "spike" if done.finite else "nonfinite"
        limit = RISEN if self._replayed(step) is None else RISEN / 2
        found = self._detector.take(
            step, level, done.loss, done.grad_norm, done.thermometers, halved=overflow, limit=limit
        )
        clean = done.applied and scale >= 1
        self._health.step_done(step + 1, clean=clean, suspected=self._detector.suspects)
        return found

    def recovered(self, step: int) -> Decision | None:
        """The guard's way back that `step`, which completed no divergence, shows to have helped: everything that rises
        did not rise again, by half the usual limit, over as many steps behind the trouble as make a checkpoint healthy.
        """
        decision = self._replayed(step)
        return decision if decision and step == decision.step + self._config.healthy_steps else None

    def _replayed(self, step: int) -> Decision | None:
        """The guard's last way back, while it is watched whether its cause is gone."""
        last = self._decisions[-1] if self._decisions else None
        if last is None or last.by == "hand" or step > last.step + self._config.healthy_steps:
            return None
        return last

    def decide(
        self,
        divergence: Divergence,
        standing: Iterable[int],
        positions: Callable[[int], tuple[int, int]],
        steps: int,
    ) -> Decision:
        """The way back; NothingLeft where there is none."""
        if not self._config.enabled:
            raise NothingLeft("the guard is off")
        return decide(self._run, self._decisions, divergence, self._health, standing, positions, steps)
