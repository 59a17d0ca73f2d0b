"""The log of a study: every trial and its results, one line an event, so that a kill at any time loses nothing.

Optuna's own storages have no paused trial that the sampler learns from: a running one is invisible to it, and a pruned
one can never continue. So the log is ours, and Optuna gets a copy at each suggestion (`samplers.optuna_study`).
"""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from flows.experiments.studies import Value
from model.checksummed_json import append_sealed_line, read_sealed_lines
from model.errors import BessemerError, Numerics
from tasks.execution.outcome import one_line

LOG_LOST = "Restore it from a copy, or give the study another name: finished runs are reused."

Sampler = Literal["recipe", "tpe", "random", "hand"]

State = Literal["waiting", "running", "paused", "complete", "diverged", "failed"]


@dataclass(frozen=True)
class Stop:
    """Result of one segment of a trial, up to a rung or its end."""

    rung: int
    step: int
    steps: int
    loss: float | None
    """Mean training loss (nats) of the last steps before a rung; None at the end."""
    seconds: float
    """Time of this segment, data stages included."""
    built: tuple[str, ...]
    """Stages that were built in this segment; all others were reused."""


@dataclass
class Trial:
    """Settings, and how far the training with them has come."""

    number: int
    origin: Sampler
    settings: dict[str, Value]
    run_id: str
    state: State = "waiting"
    rung: int = -1
    """The rung that it is trained to, or reached last."""
    stops: list[Stop] = field(default_factory=list)
    value: float | None = None
    """Value of the objective, for a complete trial."""
    stderr: float | None = None
    cause: str = ""
    """Why it failed."""

    def loss_at(self, rung: int) -> float | None:
        """Return the loss at a rung before the end; infinite where training diverged before it, None where it was not
        reached."""
        found = next((stop for stop in self.stops if stop.rung == rung), None)
        if found is not None:
            return math.inf if found.loss is None else found.loss
        return math.inf if self.state == "diverged" and self.rung == rung else None

    @property
    def share(self) -> float:
        """Share of its training that is done."""
        return max((stop.step / stop.steps for stop in self.stops if stop.steps), default=0.0)

    @property
    def seconds(self) -> float:
        """Time that it took so far."""
        return sum(stop.seconds for stop in self.stops)

    @property
    def last_loss(self) -> float | None:
        """Loss at the highest rung before the end that it reached."""
        return next((stop.loss for stop in reversed(self.stops) if stop.loss is not None), None)

    @property
    def built(self) -> list[str]:
        """Stages that no earlier run had built."""
        return list(dict.fromkeys(stage for stop in self.stops for stage in stop.built))

    def to_json(self) -> dict[str, Any]:
        """Return settings, progress and results as plain values."""
        return {
            "trial": self.number,
            "by": self.origin,
            "settings": self.settings,
            "share": self.share,
            "loss": self.last_loss,
            "value": self.value,
            "stderr": self.stderr,
            "seconds": self.seconds,
            "built": self.built,
            "state": self.state,
            "cause": self.cause,
            "run_id": self.run_id,
        }


@dataclass(frozen=True)
class TrialResult:
    """Result of one segment of a trial, with the objective's value at its end."""

    number: int
    state: State
    stop: Stop
    value: float | None = None
    stderr: float | None = None
    cause: str = ""

    @property
    def summary(self) -> str:
        """The result in a few words."""
        if self.state == "complete":
            return f"{self.value:.4f}"
        if self.state == "paused" and self.stop.loss is not None:
            return f"loss {self.stop.loss:.4f} after step {self.stop.step} of {self.stop.steps}"
        return self.cause or self.state


class TrialLog:
    """The trials of a study, read from its file and appended to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trials: list[Trial] = []
        for event in read_sealed_lines(path, LOG_LOST):
            self._apply(event)

    def add(self, origin: Sampler, settings: dict[str, Value], run_id: str, waited_as: str = "") -> Trial:
        """Add a waiting trial and return it; `waited_as` names the file of a manually added one."""
        number = len(self.trials)
        self._write(event="added", number=number, origin=origin, settings=settings, run_id=run_id, waited_as=waited_as)
        return self.trials[number]

    def begin(self, trial: Trial, rung: int) -> None:
        """Record that a trial starts training to a rung."""
        self._write(event="began", number=trial.number, rung=rung)

    def record(self, result: TrialResult) -> None:
        """Record that a trial reached a rung, and pauses, or that it ended: complete, diverged or failed."""
        stop = asdict(result.stop)
        if result.state == "paused":
            self._write(event="stopped", number=result.number, **stop)
            return
        end = {"state": result.state, "value": result.value, "stderr": result.stderr, "cause": result.cause}
        self._write(event="ended", number=result.number, **end, stop=stop)

    def knows(self, waited_as: str) -> bool:
        """Return whether a manually added trial is in the log already."""
        return any(event.get("waited_as") == waited_as for event in read_sealed_lines(self._path, LOG_LOST))

    def _write(self, **event: Any) -> None:
        append_sealed_line(self._path, event)
        self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        if event["event"] == "added":
            kept = {key: event[key] for key in ("number", "origin", "settings", "run_id")}
            self.trials.append(Trial(**kept))
            return
        trial = self.trials[event["number"]]
        if event["event"] == "began":
            trial.state, trial.rung = "running", event["rung"]
        elif event["event"] == "stopped":
            trial.state = "paused"
            trial.stops.append(_stop(event))
        else:
            trial.state, trial.value, trial.stderr = event["state"], event["value"], event["stderr"]
            trial.cause = event["cause"]
            trial.stops.append(_stop(event["stop"]))


def _stop(event: dict[str, Any]) -> Stop:
    values = {name: event[name] for name in Stop.__dataclass_fields__}
    return Stop(**{**values, "built": tuple(values["built"])})


def failed_result(number: int, rung: int, error: BessemerError, seconds: float = 0.0) -> TrialResult:
    """Return the result of a trial that ended in an error: diverged or failed."""
    state: State = "diverged" if isinstance(error, Numerics) else "failed"
    cause = f"{type(error).__name__}: {one_line(error)}"
    return TrialResult(number, state, Stop(rung, 0, 0, None, seconds, ()), cause=cause)
