"""What was decided for a run, by the guard or by a person: where it went on from, what it skips, what it changes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from model.checkpoint.complete_marker import why_damaged
from model.config import BaseConfig
from model.config.train import TrainerRun
from model.errors import IntegrityError, RecipeError

ATTEMPTS = "attempts"
"""Folder of a run with a folder for each decision."""

DECISION = "decision.json"


class Decision(BaseConfig):
    """One way back. A run's decisions, in their order, are all that a checkpoint needs besides to go on."""

    attempt: int = Field(ge=1)
    """The attempt that begins with it."""
    by: Literal["guard", "hand"]
    cause: str
    """Why, in words."""
    onset: int = Field(ge=0)
    """Step at which trouble began; by hand, that at which training stood."""
    step: int = Field(ge=0)
    """Last step of the attempt that ended."""
    to_step: int = Field(ge=0)
    """Steps before the checkpoint from which the attempt goes on; 0: from the start."""
    skipped: tuple[int, int] | None = None
    """Positions [begin, end) of ORDER that are left out from now on."""
    firing: int = Field(default=0, ge=0)
    """How often the guard fired for the same trouble, this time included."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What changed, from now on, by the path of the setting (`train.schedule.peak_lr`, `model.activation`); None for
    one that is left out."""
    versions: dict[str, tuple[Any, Any]] = Field(default_factory=dict)
    """What checkpoints say of the program and the machine and what changed of it, by its name there: before, and from
    now on."""

    @model_validator(mode="after")
    def _goes_back(self) -> Self:
        assert self.to_step <= self.step + 1, "an attempt goes on from what another has reached"
        return self


def read_decisions(out: Path) -> list[Decision]:
    """The decisions of a run, in their order; IntegrityError for one that cannot be read."""
    decisions: list[Decision] = []
    for path in sorted((out / ATTEMPTS).glob("[0-9]*")):
        if reason := why_damaged(path):
            raise IntegrityError(
                f"{path} is damaged ({reason}): it says how training went on after step"
                f" {decisions[-1].step if decisions else 0} or later. Remove {out} to train anew."
            )
        decisions.append(Decision.model_validate_json((path / DECISION).read_text()))
    return decisions


def formerly(decisions: Iterable[Decision]) -> dict[str, list[Any]]:
    """What checkpoints of a run may say of the program and the machine besides what is so today."""
    found: dict[str, list[Any]] = {}
    for decision in decisions:
        for name, (before, _) in decision.versions.items():
            found.setdefault(name, []).append(before)
    return found


def in_force(run: TrainerRun, decisions: Iterable[Decision]) -> TrainerRun:
    """The run with all that was changed since it began; RecipeError where the changes do not go together."""
    changes: dict[str, Any] = {}
    for decision in decisions:
        changes.update(decision.settings)
    return changed(run, changes) if changes else run


def changed(run: TrainerRun, settings: Mapping[str, Any]) -> TrainerRun:
    """The run under other settings, by their paths, None where one is left out; RecipeError names what it cannot
    have."""
    # What nobody set stays so: several checks ask whether a setting was chosen.
    values = run.model_dump(mode="json", exclude_unset=True)
    values["model"]["architecture"] = run.model.architecture
    for path, value in settings.items():
        *rooms, name = path.split(".")
        if not rooms or rooms[0] not in ("train", "model"):
            raise RecipeError(f"{path} is no setting of training; those begin with train. or model.")
        room = values
        for step in rooms:
            room = room.setdefault(step, {})
        if value is None:
            room.pop(name, None)
        else:
            room[name] = value
    try:
        return TrainerRun.model_validate(values)
    except ValidationError as error:
        told = "; ".join(f"{_path(one['loc'])}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors())
        raise RecipeError(f"the run cannot go on with {json.dumps(dict(settings))}: {told}") from error


def _path(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place))


def skips(decisions: Sequence[Decision], begin: int, end: int) -> bool:
    """Whether a step over the positions [begin, end) is left out: where any of them is to be skipped."""
    ranges = (decision.skipped for decision in decisions if decision.skipped is not None)
    return any(begin < last and first < end for first, last in ranges)
