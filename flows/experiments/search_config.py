"""The configuration of a search: the recipe's table `[search]`, or that table in a file of its own.

[search]
trials = 20

[search.space]                # any key of the recipe, as `--set` writes it
"train.schedule.peak_lr" = { low = 1e-5, high = 1e-1, log = true }
"train.batch_rows" = { choices = [8, 16, 32] }

`recipes_of_space` checks that the recipe accepts every value, and `rungs_of` whether trials can be compared before
their end.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from flows.experiments.studies import Value, read_config
from flows.recipe.load import apply_setting, names_of
from flows.recipe.resolve import SHARED_KEYS
from flows.recipe.schema import Recipe
from flows.recipe.stages import DATA_STAGES
from model.config import EXPERT, RUNTIME
from model.errors import RecipeError
from tasks.artifacts.tables.rows import HELDOUT_ALL
from tasks.common.config import StrictConfig

TABLE = "search"

RANGE, CHOICES = "(range)", "(choices)"
"""Tags of the two kinds of values, which pydantic writes into the places of errors."""


class Range(StrictConfig):
    """All numbers between two; integers where both ends are."""

    low: int | float = Field(allow_inf_nan=False)
    """Smallest value."""
    high: int | float = Field(allow_inf_nan=False)
    """Largest value."""
    log: bool = False
    """Whether the scale is logarithmic, as for learning rates."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "Range":
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low:g} has no logarithm; ranges with log = true begin above 0")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


class Choices(StrictConfig):
    """One of a few values, without an order."""

    choices: tuple[Value, ...] = Field(min_length=2)
    """The values."""

    @model_validator(mode="after")
    def _differ(self) -> "Choices":
        if len({(type(value), value) for value in self.choices}) < len(self.choices):
            raise ValueError(f"choices {list(self.choices)} name a value twice")
        return self


def _kind(value: object) -> str:
    named = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return CHOICES if "choices" in named else RANGE


Axis = Annotated[Annotated[Range, Tag(RANGE)] | Annotated[Choices, Tag(CHOICES)], Discriminator(_kind)]
"""Values of a key."""


class ObjectiveConfig(StrictConfig):
    """The figure of SCORES that trials are compared by at their end."""

    task: str = HELDOUT_ALL
    """A benchmark, or `heldout/SOURCE`; `heldout/all` is the plain mean of the sources."""
    metric: str = "bits_per_byte"
    """`bits_per_byte` of a GPT; `masked_nats_per_token` of a BERT, `target_bits_per_byte` of a T5; `acc` of a
    benchmark."""
    shots: int = Field(default=0, ge=0)
    """Solved examples before each item of a benchmark."""
    subset: Literal["all", "clean", "leaked"] = "all"
    """Items of a benchmark that count."""
    direction: Literal["minimize", "maximize"] = "minimize"
    """Which values are better."""

    @property
    def label(self) -> str:
        """Such as `bits_per_byte of heldout/all`."""
        return f"{self.metric} of {self.task}"


class SearchConfig(StrictConfig):
    """One search."""

    name: Annotated[str, RUNTIME, EXPERT] = Field(default="", max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$")
    """Name of the study, whose folder is `searches/NAME` under the root; the recipe's name by default."""
    trials: Annotated[int, RUNTIME] = Field(default=20, ge=1, le=10_000)
    """Trials in all, including one with the recipe's own settings, without those added manually. A finished study
    continues with a larger number."""
    parallel: Annotated[int, RUNTIME] = Field(default=1, ge=1, le=64)
    """Trials that train at once, on the same processor or device. With more than one, suggestions depend on which of
    them finishes first."""
    sampler: Annotated[Literal["tpe", "random"], EXPERT] = "tpe"
    """How settings are suggested."""
    startup_trials: Annotated[int, EXPERT] = Field(default=5, ge=1)
    """`tpe`: trials before it learns from them, drawn at random."""
    seed: Annotated[int, EXPERT] = Field(default=1, ge=0, lt=2**63)
    """Seed of the suggestions; the seed of the trainings is the recipe's."""
    rungs: Annotated[int | None, EXPERT] = Field(default=None, ge=1, le=6)
    """Points at which trials are compared, the end included: 3 are a ninth, a third and all of the training (with
    eta = 3), 1 trains all to their end. 3 by default where the training loss of trials can be compared, else 1."""
    eta: Annotated[int, EXPERT] = Field(default=3, ge=2, le=10)
    """One trial in this many continues from a rung to the next."""
    objective: Annotated[ObjectiveConfig, EXPERT] = ObjectiveConfig()
    """What is optimised."""
    space: dict[str, Axis] = Field(min_length=1)
    """Keys of the recipe and the values to try, as `{ low, high, log }` or `{ choices }`."""


HINT = (
    "which says what is searched. Add one, with the keys to vary:\n\n"
    f'    [{TABLE}.space]\n    "train.schedule.peak_lr" = {{ low = 1e-4, high = 1e-1, log = true }}'
)


def read_search(
    path: Path, search_file: Path | None, trials: int | None, parallel: int | None, settings: Sequence[str] = ()
) -> SearchConfig:
    """Return the search of a recipe or of a separate file, with `settings`, `trials` and `parallel` overridden.

    Raises RecipeError where there is none, or where it is invalid.
    """
    return read_config(SearchConfig, search_file or path, TABLE, HINT, settings, trials=trials, parallel=parallel)


Space = Mapping[str, Range | Choices]

RecipeWith = Callable[[dict[str, Value]], Recipe]

DEFAULT_RUNGS = 3

_SHORTER = "while sequences are shorter their tokens are harder to predict"

LOSS_CHANGING_KEYS = {
    "train.masked_share": "with more tokens hidden each is harder to predict",
    "train.model.dropout": "the training loss is computed with dropout",
    "train.length_warmup.start_length": _SHORTER,
    "train.length_warmup.share": _SHORTER,
}
"""Settings under which the same network has another training loss, and why."""


def recipes_of_space(space: Space, recipe_with: RecipeWith) -> dict[str, list[Recipe]]:
    """Return by key the recipes by which all of its values are checked.

    Raises RecipeError where the recipe refuses a value, or where a key has no effect on the result.
    """
    recipes = {key: [recipe_with({key: value}) for value in _corners(axis)] for key, axis in space.items()}
    for key, made in recipes.items():
        if all(one.identity_params() == made[0].identity_params() for one in made[1:]):
            raise RecipeError(
                f"search.space.{key}: has no effect on the result, so all its values are the same trial. Take it out of"
                f" the space"
            )
    return recipes


def _corners(axis: Range | Choices) -> tuple[Value, ...]:
    """Return the values by which to check that a recipe accepts all of them."""
    return axis.choices if isinstance(axis, Choices) else (axis.low, axis.high)


def rungs_of(config: SearchConfig, recipes: Mapping[str, list[Recipe]], base: Recipe) -> int:
    """Return the number of rungs, by the `recipes_of_space`; RecipeError where some are configured at which trials
    could not be compared."""
    incomparable = _incomparable(recipes, base)
    if config.rungs is None:
        return 1 if incomparable else DEFAULT_RUNGS
    if config.rungs > 1 and incomparable:
        key, why = next(iter(incomparable.items()))
        raise RecipeError(
            f"search.rungs is {config.rungs}, and at a rung trials are compared by their training loss, which"
            f" {key} changes by itself: {why}. Set rungs = 1, so that all train to their end, or take it out of the"
            f" space"
        )
    return config.rungs


def _incomparable(recipes: Mapping[str, list[Recipe]], base: Recipe) -> dict[str, str]:
    """Return the keys under which training losses cannot be compared, and why."""
    found = {key: why for key, why in LOSS_CHANGING_KEYS.items() if key in recipes}
    for key, made in recipes.items():
        if any(_data_of(recipe) != _data_of(base) for recipe in made):
            found[key] = "trials read other text, or other tokens of it"
    return found


def _data_of(recipe: Recipe) -> list[dict[str, Any]]:
    return [getattr(recipe, stage).identity_params() for stage in DATA_STAGES]


def own_settings(space: Space, base: Recipe, path: Path, settings: Sequence[str]) -> dict[str, Value]:
    """Return the recipe's own values of the keys of the space, those that `--set` gave it included, without keys that
    have no plain value."""
    complete, written = base.model_dump(mode="json"), tomllib.loads(path.read_text(encoding="utf-8"))
    for setting in settings:
        apply_setting(written, setting)
    found: dict[str, Value] = {}
    for key in space:
        names = names_of(key)
        # Shared keys of a recipe are in no stage under that name.
        value = _at(written if names[0] in SHARED_KEYS else complete, names)
        if isinstance(value, bool | int | float | str):
            found[key] = value
    return found


def _at(place: object, keys: list[str]) -> object:
    for key in keys:
        if isinstance(place, list):
            place = next((entry for entry in place if isinstance(entry, dict) and entry.get("name") == key), None)
        elif isinstance(place, dict):
            place = place.get(key)
        else:
            return None
    return place
