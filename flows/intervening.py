"""A training that stands still: how far it came, and a person's word on how it goes on."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.explaining import BUILD, explain
from flows.lineage import open_run
from flows.recipe import Recipe
from flows.record import RECIPE
from model.errors import InputError, RecipeError
from model.guard.decision import Decision, read_decisions
from tasks.lease import is_held


@dataclass(frozen=True)
class Unfinished:
    """A training that stands still."""

    run_id: str
    recipe: Recipe
    identity: str
    folder: Path
    """The trainer's: checkpoints, decisions, `run.json`."""

    @property
    def checkpoints(self) -> list[int]:
        """Steps of the whole checkpoints that it could go on from, ascending."""
        from model.guard.by_hand import reached

        return reached(self.folder)

    @property
    def decisions(self) -> list[Decision]:
        """What was decided so far, by the guard and by people."""
        return read_decisions(self.folder)


def unfinished(root: Path, run_id: str | None) -> Unfinished:
    """The training of a run (the latest by default) that came to no end.

    Raises InputError where it came to its end, never began, was begun by other code or libraries, or goes on right now.
    """
    record = open_run(root, run_id, needs="chunk")
    recipe = Recipe.model_validate_json((root / "runs" / record["run_id"] / RECIPE).read_text())
    forecast = next((one for one in explain(recipe, root) if one.stage == "train"), None)
    if forecast is None or forecast.identity is None:
        raise InputError(f"run {record['run_id']} did not come to training; go on with `bessemer run`")
    if forecast.verdict != BUILD:
        raise InputError(f"the training of run {record['run_id']} came to its end; there is nothing to resume")
    if is_held(root / "locks" / forecast.identity):
        raise InputError(
            f"the training of run {record['run_id']} goes on right now. Stop it first (Ctrl-C, or cancel it in the"
            f" Prefect UI): it leaves a checkpoint"
        )
    works = sorted((root / "work").glob(f"{forecast.identity}.[0-9]*"))
    folder = works[-1] / "scratch" / "train" if works else None
    if folder is None or not folder.is_dir():
        raise InputError(
            f"run {record['run_id']} left no training that this version of the program could resume"
            f" ({forecast.cause}). Where the code or a library changed, put the old one back, or begin anew with"
            f" `bessemer run`"
        )
    return Unfinished(record["run_id"], recipe, forecast.identity, folder)


def changes(settings: Sequence[str]) -> dict[str, Any]:
    """`train.optimizer.kind=sgd` by the trainer's own paths, as in a recipe: `train.model.X` is `model.X` there."""
    named: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        path = path.strip()
        if not equals or not path.startswith("train."):
            raise RecipeError(f"--set {setting}: write it as train.KEY=VALUE, as train.schedule.peak_lr=1e-4")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        named[path.removeprefix("train.") if path.startswith("train.model.") else path] = value
    return named
