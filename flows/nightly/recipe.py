"""Tonight's recipe: the recipe itself on the first night; on later ones its text that is new, and the current model."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.nightly.config import NightlyConfig, NotifyConfig, read_nightly, read_notify
from flows.nightly.history import Files
from flows.recipe.load import apply_setting, locate_recipe, recipe_from
from flows.recipe.resolve import apply_mixture_weights
from flows.recipe.schema import Recipe
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import recipe_of
from model.config.options import ScheduleConfig
from model.errors import InputError, RecipeError
from tasks.common.confinement import allow
from tasks.common.text import without_credentials

KEYED_BY_SOURCE = (
    ("sample", "tokens_per_byte"),
    ("clean", "presets"),
    ("clean", "wipe_out_overrides"),
    ("dedup", "priorities"),
    ("dedup", "wipe_out_overrides"),
    ("chunk", "weights"),
)
"""Tables of a recipe whose keys are sources: those that have nothing new leave them, too."""

GOES_ON = ("warmup_stable_decay", "constant")
"""Schedules that can be gone on from at any time."""


@dataclass(frozen=True)
class Base:
    """The current model, and the runs that it went through."""

    run_id: str
    recipe: Recipe
    """As it was run."""
    model: Path
    vocabulary: Path
    """Its vocabulary's file."""

    @property
    def against(self) -> list[str]:
        """Runs whose text the model has learnt, or set aside: what `dedup.against` of the next night names."""
        return [*self.recipe.dedup.against, self.run_id]

    @property
    def chain(self) -> list[str]:
        """Runs whose held-out text and leaks count for the model: what `evaluate.earlier` of the next night names."""
        return [*self.recipe.evaluate.earlier, self.run_id]


@dataclass(frozen=True)
class RawRecipe:
    """A recipe's values as its file and the settings beside it give them."""

    values: dict[str, Any]
    origin: str
    """Its name in errors."""
    folder: Path
    root: Path
    nightly: NightlyConfig
    notify: NotifyConfig

    @property
    def name(self) -> str:
        """The recipe's, or its file's where it has none."""
        return str(self.values.get("name", self.origin))

    def whole(self) -> Recipe:
        """The recipe as it stands, with a schedule that a later night can go on from where it names none."""
        values = deepcopy(self.values)
        _schedule(values)
        return self._checked(values)

    def of_night(self, new: Mapping[str, Sequence[str]], base: Base) -> Recipe:
        """The recipe of a later night: the files `new` (source -> root-relative paths), and the model of `base`.

        Raises RecipeError where a setting cannot hold for a part of the sources.
        """
        values = deepcopy(self.values)
        _overrule(values, self.nightly.later, self.origin)
        schedule = _schedule(values)
        end = schedule.get("end_lr", ScheduleConfig.model_fields["end_lr"].default)
        peak = schedule.get("peak_lr", ScheduleConfig.model_fields["peak_lr"].default)
        # The rate goes on where the night before left it; a model is not met by the first night's zero again.
        schedule.setdefault("start_lr", min(end, peak))
        values["sources"] = self._sources(values, new)
        sample = values.setdefault("sample", {})
        sample["normalise_weights"] = True
        for stage, key in KEYED_BY_SOURCE:
            table = values.get(stage, {}).get(key)
            if isinstance(table, dict):
                values[stage][key] = {source: value for source, value in table.items() if source in new}
        _learn_from_what_is_there(values, new, self.origin)
        dedup = values.setdefault("dedup", {})
        given = dedup.get("against", ())
        given = [given] if isinstance(given, str) else list(given)
        dedup["against"] = list(dict.fromkeys([*given, *base.against]))
        # A file that grew is read whole again, and nearly all of it is known: no sign of a wrong rule.
        dedup.setdefault("wipe_out_limit", 1.0)
        # The text that the first night set aside is the only one that scores are compared on.
        values.setdefault("decontaminate", {})["heldout_share"] = 0.0
        values.setdefault("evaluate", {})["earlier"] = base.chain
        values["vocab"] = {"base": str(base.vocabulary)}
        values.setdefault("train", {})["base_model"] = str(base.model)
        allow(*base.against, *base.chain, base.vocabulary, base.model)
        return self._checked(values)

    def remarks(self) -> list[str]:
        """What whoever wrote the recipe may not have meant."""
        kind = self.values.get("train", {}).get("schedule", {}).get("kind")
        if kind is None or kind in GOES_ON:
            return []
        return [
            f"train.schedule.kind is {kind}, whose way down is meant to be the end of a training; nights go on from"
            f" it all the same. warmup_stable_decay is made for this, and what nights take where the recipe names none"
        ]

    def _sources(self, values: dict[str, Any], new: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        weights = values.pop("weights_from", None)
        sources = apply_mixture_weights(values["sources"], weights, self.folder, self.origin)
        tonight: list[dict[str, Any]] = []
        for source in sources:
            if source["name"] in new:
                # `tokens` is what the whole source holds.
                kept = {key: value for key, value in source.items() if key != "tokens"}
                tonight.append({**kept, "only": sorted(new[source["name"]])})
        return tonight

    def _checked(self, values: dict[str, Any]) -> Recipe:
        return recipe_from(values, origin=self.origin, folder=self.folder, root=self.root)


def read_raw(name: str, root: Path, settings: Sequence[str] = ()) -> RawRecipe:
    """The recipe in a file, or that ships under a name; RecipeError for wrong tables of nights."""
    path = locate_recipe(name, root)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML in UTF-8: {error}") from error
    for setting in settings:
        apply_setting(values, setting)
    told = f" with --set {without_credentials(' '.join(settings))}" if settings else ""
    origin = f"{path}{told}"
    return RawRecipe(
        values, origin, path.resolve().parent, root, read_nightly(values, origin), read_notify(values, origin)
    )


def base_of(root: Path, run_id: str) -> Base:
    """The model of a run as a night goes on from it; InputError where the run has none."""
    from tasks.tokenizer.base import DESCRIPTION_FILE, MODEL_FILES

    record = open_run(root, run_id)
    artifacts = run_artifacts(record)
    if "train" not in artifacts:
        raise InputError(f"nightly: the current model is that of run {run_id}, which ended before `train`")
    kind = json.loads(artifacts["vocab"].file(DESCRIPTION_FILE).read_text())["kind"]
    recipe = recipe_of(root / "runs" / record["run_id"])
    return Base(record["run_id"], recipe, artifacts["train"].path, artifacts["vocab"].file(MODEL_FILES[kind]))


def paths_of(files: Files) -> dict[str, list[str]]:
    """Source -> root-relative paths."""
    return {source: sorted(mine) for source, mine in files.items()}


def _schedule(values: dict[str, Any]) -> dict[str, Any]:
    train = values.setdefault("train", {})
    schedule = train.setdefault("schedule", {})
    schedule.setdefault("kind", "warmup_stable_decay")
    return schedule


def _learn_from_what_is_there(values: dict[str, Any], new: Mapping[str, Sequence[str]], origin: str) -> None:
    quality = values.get("clean", {}).get("quality")
    if not isinstance(quality, dict) or "good" not in quality:
        return
    there = [source for source in quality["good"] if source in new]
    if not there:
        raise RecipeError(
            f"{origin}: clean.quality learns what is good from {', '.join(quality['good'])}, of which nothing is new"
            f" tonight. A classifier that is learnt anew each night needs these sources each night; leave"
            f" clean.quality out of a recipe for nights."
        )
    quality["good"] = there


def _overrule(values: dict[str, Any], later: Mapping[str, Any], origin: str) -> None:
    """Write settings into a recipe's values; a key may be a path with dots, a value a table."""
    for path, value in later.items():
        place = values
        *above, key = path.split(".")
        for name in above:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise RecipeError(f"{origin}: nightly.later.{path}: `{name}` is a value, not a table")
        if isinstance(value, dict) and isinstance(place.setdefault(key, {}), dict):
            _overrule(place[key], value, origin)
        else:
            place[key] = value
