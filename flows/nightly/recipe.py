"""The recipe of a nightly run: the recipe itself for the first; for later ones its new text and the current model."""

import json
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.nightly.config import NightlyConfig, NotifyConfig, read_nightly, read_notify
from flows.recipe.checks import table_at
from flows.recipe.load import fit_micro_batch, locate_recipe, read_toml, recipe_from, with_text
from flows.recipe.resolve import apply_mixture_weights, check_tables
from flows.recipe.schema import Recipe
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import recipe_of
from flows.runs.shredding import certificates_under
from model.config.options import ScheduleConfig
from model.errors import InputError, RecipeError
from tasks.common.confinement import allow
from tasks.common.text import without_credentials

KEYED_BY_SOURCE = (
    ("sample", "tokens_per_byte"),
    ("clean", "presets"),
    ("clean", "kinds"),
    ("clean", "wipe_out_overrides"),
    ("dedup", "priorities"),
    ("dedup", "wipe_out_overrides"),
    ("chunk", "weights"),
)
"""Tables of a recipe whose keys are sources; sources without new files are removed from them too."""

RESUMABLE_SCHEDULES = ("warmup_stable_decay", "constant")
"""Schedules that training can continue from at any time."""


@dataclass(frozen=True)
class Base:
    """The current model, and the runs that led to it."""

    run_id: str
    recipe: Recipe
    """As it was run."""
    model: Path
    vocabulary: Path
    """File of its vocabulary."""
    forgotten: tuple[str, ...] = ()
    """Ids of documents that had to leave, which may still be in their files: a file that grew is read whole again."""

    @property
    def against(self) -> list[str]:
        """Runs whose text the model has learnt or held out: `dedup.against` of the next nightly run."""
        return [*self.recipe.dedup.against, self.run_id]

    @property
    def chain(self) -> list[str]:
        """Runs whose held-out text and leaks count for the model: `evaluate.earlier` of the next nightly run."""
        return [*self.recipe.evaluate.earlier, self.run_id]


@dataclass(frozen=True)
class RawRecipe:
    """The values of a recipe from its file and `--set`, before they are resolved."""

    values: dict[str, Any]
    origin: str
    """Its name in errors."""
    folder: Path
    root: Path
    nightly: NightlyConfig
    notify: NotifyConfig

    @property
    def name(self) -> str:
        """The recipe's name, or its file's where it has none."""
        return str(self.values.get("name", self.origin))

    def whole(self) -> Recipe:
        """Return the whole recipe, with a schedule that a later nightly run can continue from where it names none."""
        values = deepcopy(self.values)
        _schedule(values, self.origin)
        return self._checked(values, self.origin)

    def check_later(self, whole: Recipe) -> None:
        """Raise RecipeError where a nightly run of all sources after the first one would be refused."""
        current = self.root / "current"
        base = Base("first", whole, current / "model", current / "tokenizer")
        self.of_night({source.name: () for source in whole.sample.sources}, base)

    def of_night(self, new: Mapping[str, Collection[str]], base: Base) -> Recipe:
        """Return the recipe of a later nightly run: the files `new` (source -> root-relative paths), and the model of
        `base`.

        Raises RecipeError where a setting cannot apply to a part of the sources.
        """
        values = deepcopy(self.values)
        origin = f"{self.origin} with nightly.later" if self.nightly.later else self.origin
        _override(values, self.nightly.later, self.origin)
        schedule = _schedule(values, origin)
        rates = [schedule.get(key, ScheduleConfig.model_fields[key].default) for key in ("end_lr", "peak_lr")]
        if all(isinstance(rate, int | float) for rate in rates):  # Validation reports others.
            # The rate continues where the previous nightly run ended; it must not start from zero again.
            schedule.setdefault("start_lr", min(rates))
        values["sources"] = self._sources(values, new)
        sample = values.setdefault("sample", {})
        sample["normalise_weights"] = True
        sample["exclude_documents"] = sorted({*sample.get("exclude_documents", ()), *base.forgotten})
        for stage, key in KEYED_BY_SOURCE:
            table = values.get(stage, {}).get(key)
            if isinstance(table, dict):
                values[stage][key] = {source: value for source, value in table.items() if source in new}
        _keep_new_phase_weights(values, new)
        _keep_new_quality_sources(values, new, origin)
        dedup = values.setdefault("dedup", {})
        given = dedup.get("against", ())
        given = given if isinstance(given, list | tuple) else [given]
        dedup["against"] = list(dict.fromkeys([*given, *base.against]))
        # A file that grew is read whole again and nearly all of it is a duplicate, which is no sign of a wrong rule.
        dedup.setdefault("wipe_out_limit", 1.0)
        # Scores are compared only on the text that the first nightly run held out.
        values.setdefault("decontaminate", {})["heldout_share"] = 0.0
        values.setdefault("evaluate", {})["earlier"] = base.chain
        values["vocab"] = {"base": str(base.vocabulary)}
        values.setdefault("train", {})["base_model"] = str(base.model)
        if isinstance(gate := values["evaluate"].get("gate"), dict):
            gate.pop("base_model", None)  # It is that of training, the current model.
        allow(*base.against, *base.chain, base.vocabulary, base.model)
        return self._checked(values, origin)

    def warnings(self) -> list[str]:
        """Return sentences without full stop about settings that may not be intended."""
        kind = self.values.get("train", {}).get("schedule", {}).get("kind")
        if kind is None or kind in RESUMABLE_SCHEDULES:
            return []
        return [
            f"train.schedule.kind is {kind}, whose decay is meant to end a training; nightly runs continue from it all"
            f" the same. warmup_stable_decay is made for this, and the default of nightly runs"
        ]

    def _sources(self, values: dict[str, Any], new: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
        weights = values.pop("weights_from", None)
        sources = apply_mixture_weights(values["sources"], weights, self.folder, self.origin)
        reduced: list[dict[str, Any]] = []
        for source in sources:
            if source["name"] in new:
                # `tokens` is the size of the whole source.
                kept = {key: value for key, value in source.items() if key != "tokens"}
                reduced.append({**kept, "only": sorted(new[source["name"]])})
        return reduced

    def _checked(self, values: dict[str, Any], origin: str) -> Recipe:
        return recipe_from(values, origin=origin, folder=self.folder, root=self.root)


def read_raw(name: str, root: Path, settings: Sequence[str] = ()) -> RawRecipe:
    """Return the values of a recipe file or shipped recipe; RecipeError for wrong tables [nightly] or [notify]."""
    path = locate_recipe(name, root)
    _, values = read_toml(path, with_text(path, root, settings))
    fit_micro_batch(values, settings)
    origin = f"{path} with --set {without_credentials(' '.join(settings))}" if settings else str(path)
    return RawRecipe(
        values, origin, path.resolve().parent, root, read_nightly(values, origin), read_notify(values, origin)
    )


def base_of(root: Path, run_id: str) -> Base:
    """Return the model of a run as the base of a nightly run; InputError where the run has none."""
    from tasks.tokenizer.base import DESCRIPTION_FILE, MODEL_FILES

    record = open_run(root, run_id)
    artifacts = run_artifacts(record)
    if "train" not in artifacts:
        raise InputError(f"nightly: the current model is that of run {run_id}, which ended before `train`")
    kind = json.loads(artifacts["vocab"].file(DESCRIPTION_FILE).read_text())["kind"]
    recipe = recipe_of(root / "runs" / record["run_id"])
    vocabulary = artifacts["vocab"].file(MODEL_FILES[kind])
    return Base(record["run_id"], recipe, artifacts["train"].path, vocabulary, forgotten_documents(root, recipe))


def forgotten_documents(root: Path, recipe: Recipe) -> tuple[str, ...]:
    """Return the ids of the documents that removals under a root, or the recipe itself, leave out, sorted."""
    recipes = [recipe, *(recipe_of(root / "runs" / path.stem) for path in certificates_under(root))]
    return tuple(sorted({one for each in recipes for one in each.sample.exclude_documents}))


def _schedule(values: dict[str, Any], origin: str) -> dict[str, Any]:
    check_tables(values, origin)
    schedule = table_at(values.setdefault("train", {}).setdefault("schedule", {}), "train.schedule", origin)
    schedule.setdefault("kind", "warmup_stable_decay")
    return schedule


def _keep_new_phase_weights(values: dict[str, Any], new: Collection[str]) -> None:
    """Remove sources without new files from the mixtures of `train.phases`; a mixture of none of the others stays as
    before it, and a phase that changes nothing else is left out."""
    phases = values.get("train", {}).get("phases")
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        return  # Validation reports it.
    left: list[dict[str, Any]] = []
    for phase in phases:
        weights = phase.get("weights")
        if isinstance(weights, dict):
            kept = {source: weight for source, weight in weights.items() if source in new}
            phase["weights"] = kept if any(kept.values()) else {}
        if phase.get("weights") != {} or "start_lr" in phase or "end_lr" in phase:
            left.append(phase)
    values["train"]["phases"] = left


def _keep_new_quality_sources(values: dict[str, Any], new: Collection[str], origin: str) -> None:
    quality = values.get("clean", {}).get("quality")
    if not isinstance(quality, dict) or not isinstance(quality.get("good"), list):
        return  # Validation reports it.
    available = [source for source in quality["good"] if source in new]
    if not available:
        raise RecipeError(
            f"{origin}: clean.quality learns what is good from {', '.join(quality['good'])}, none of which has new"
            f" files. The classifier is trained again in each nightly run and needs these sources; leave clean.quality"
            f" out of a recipe for nightly runs."
        )
    quality["good"] = available


def _override(values: dict[str, Any], later: Mapping[str, Any], origin: str) -> None:
    """Write settings into the values of a recipe; a key may be a path with dots, a value may be a table."""
    for path, value in later.items():
        place = values
        *above, key = path.split(".")
        for name in above:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise RecipeError(f"{origin}: nightly.later.{path}: `{name}` is a value, not a table")
        if isinstance(value, dict) and isinstance(place.setdefault(key, {}), dict):
            _override(place[key], value, origin)
        else:
            place[key] = value
