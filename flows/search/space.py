"""The space against the recipe: that it can take every value, and whether trials can be compared before their end."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flows.recipe import SAID_ONCE, Recipe
from flows.road import STAGES
from flows.search.config import Choices, Range, SearchConfig, Value
from model.errors import RecipeError

Space = Mapping[str, Range | Choices]
RecipeWith = Callable[[dict[str, Value]], Recipe]

DATA_STAGES = STAGES[: STAGES.index("train")]
DEFAULT_RUNGS = 3
OTHER_LOSSES = {
    "train.masked_share": "with more tokens hidden each is harder to tell",
    "train.model.dropout": "the loss is told with units dropped",
}
"""Settings of the training under which the same network has another training loss, and why."""


def check_space(config: SearchConfig, recipe_with: RecipeWith, base: Recipe) -> None:
    """RecipeError where the recipe refuses a value of the space by itself, or where a key decides nothing."""
    for key, axis in config.space.items():
        made = [recipe_with({key: value}).identity_params() for value in axis.corners]
        if all(one == made[0] for one in made):
            raise RecipeError(
                f"search.space.{key}: decides no result, so that all its values are one trial. Take it out of the space"
            )


def rungs_of(config: SearchConfig, recipe_with: RecipeWith, base: Recipe) -> int:
    """Rungs of the search; RecipeError where it asks for some and trials could not be compared there."""
    incomparable = _incomparable(config.space, recipe_with, base)
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


def _incomparable(space: Space, recipe_with: RecipeWith, base: Recipe) -> dict[str, str]:
    """Keys under which training losses cannot be compared, and why."""
    found = {key: why for key, why in OTHER_LOSSES.items() if key in space}
    for key, axis in space.items():
        recipes = [recipe_with({key: value}) for value in axis.corners]
        if any(_data_of(recipe) != _data_of(base) for recipe in recipes):
            found[key] = "trials read other text, or other tokens of it"
    return found


def _data_of(recipe: Recipe) -> list[Any]:
    return [getattr(recipe, stage).identity_params() for stage in DATA_STAGES]


def own_settings(space: Space, base: Recipe, path: Path) -> dict[str, Value]:
    """What the recipe itself says of the keys of the space; a key of which it says nothing that could be a trial's is
    left out."""
    complete, written = base.model_dump(mode="json"), tomllib.loads(path.read_text(encoding="utf-8"))
    found: dict[str, Value] = {}
    for key in space:
        # What a recipe says once for several stages stands in none of them under that name.
        value = _at(written if key.partition(".")[0] in SAID_ONCE else complete, key.split("."))
        if isinstance(value, bool | int | float | str):
            found[key] = value
    return found


def _at(place: Any, keys: list[str]) -> Any:
    for key in keys:
        if isinstance(place, list):
            place = next((entry for entry in place if isinstance(entry, dict) and entry.get("name") == key), None)
        elif isinstance(place, dict):
            place = place.get(key)
        else:
            return None
    return place
