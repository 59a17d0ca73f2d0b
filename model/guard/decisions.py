"""Decisions about a run, by the guard or by a person: where it resumes, which data it skips, which settings change."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from model.checkpoint.complete_marker import find_damage
from model.config import BaseConfig
from model.config.train import TrainerRun
from model.errors import IntegrityError, RecipeError, validation_problems

ATTEMPTS = "attempts"
"""Folder of a run with a folder for each decision."""

DECISION = "decision.json"


class Decision(BaseConfig):
    """One rollback or intervention. A checkpoint and a run's decisions, in order, are all that resuming needs."""

    attempt: int = Field(ge=1)
    """The attempt that begins with this decision."""
    by: Literal["guard", "hand"]
    """Who decided: the guard, or a person."""
    cause: str
    """Why, for people to read."""
    onset: int = Field(ge=0)
    """Step at which the divergence began; of an intervention, the step that the run had reached."""
    step: int = Field(ge=0)
    """Last step of the attempt that ended."""
    to_step: int = Field(ge=0)
    """Steps before the checkpoint from which the attempt resumes; 0 is the start."""
    skipped: tuple[int, int] | None = None
    """Positions [begin, end) of ORDER that are skipped from now on."""
    firing: int = Field(default=0, ge=0)
    """How often the guard fired for the same divergence, this time included."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that change from now on, by path (`train.schedule.peak_lr`, `model.activation`); None unsets one."""
    versions: dict[str, tuple[Any, Any]] = Field(default_factory=dict)
    """Entries of a checkpoint's state about the program and the machine that change: (before, from now on)."""

    @model_validator(mode="after")
    def _goes_back(self) -> Self:
        assert self.to_step <= self.step + 1, "an attempt resumes from a step that another has reached"
        return self


def read_decisions(out: Path) -> list[Decision]:
    """Return the decisions of a run, in order; IntegrityError for a damaged one."""
    decisions: list[Decision] = []
    for path in sorted((out / ATTEMPTS).glob("[0-9]*")):
        if reason := find_damage(path):
            raise IntegrityError(
                f"{path} is damaged ({reason}): it records how training was resumed after step"
                f" {decisions[-1].step if decisions else 0} or later. Remove {out} to train from the start."
            )
        decisions.append(Decision.model_validate_json((path / DECISION).read_text()))
    return decisions


def previous_versions(decisions: Iterable[Decision]) -> dict[str, list[Any]]:
    """Return the earlier values of program and machine that checkpoints of a run may record, by entry."""
    found: dict[str, list[Any]] = {}
    for decision in decisions:
        for name, (before, _) in decision.versions.items():
            found.setdefault(name, []).append(before)
    return found


def effective_config(run: TrainerRun, decisions: Iterable[Decision]) -> TrainerRun:
    """Return the run under all settings changed since it began; RecipeError where they contradict each other."""
    changes: dict[str, Any] = {}
    for decision in decisions:
        for path, value in decision.settings.items():
            # Last, since a later setting of a whole table would replace it.
            changes.pop(path, None)
            changes[path] = value
    return with_settings(run, changes) if changes else run


def with_settings(run: TrainerRun, settings: Mapping[str, Any]) -> TrainerRun:
    """Return the run under other settings, given by path; None unsets one. Raises RecipeError for invalid ones."""
    # Unset fields stay unset: several checks depend on whether a setting was chosen.
    values = run.model_dump(mode="json", exclude_unset=True)
    values["model"]["architecture"] = run.model.architecture
    for path, value in settings.items():
        *sections, name = path.split(".")
        if not sections or sections[0] not in ("train", "model"):
            raise RecipeError(f"{path} is no setting of training; those begin with train. or model.")
        section = values
        for key in sections:
            section = section.setdefault(key, {})
            if not isinstance(section, dict):
                raise RecipeError(f"{path} is no setting of training: {key} is no table. Set {key} as a whole.")
        if value is None:
            section.pop(name, None)
        else:
            section[name] = value
    try:
        return TrainerRun.model_validate(values)
    except ValidationError as error:
        problems = validation_problems(error)
        raise RecipeError(f"the run cannot resume with {json.dumps(dict(settings))}: {problems}") from error
