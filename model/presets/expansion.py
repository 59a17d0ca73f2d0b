"""A preset's name in a recipe, replaced by the settings that it stands for."""

import difflib
from collections.abc import Mapping
from typing import Any

from model.errors import RecipeError
from model.presets.published import PRESETS

KEY = "preset"


def expanded(model: Mapping[str, Any], place: str = "train.model") -> dict[str, Any]:
    """The settings of `train.model` with those of its preset; a key that stands beside the preset overrules it.

    The number of rows stays open, since it follows from a run's vocabulary. Raises RecipeError for an unknown name and
    for an architecture that is not the preset's.
    """
    values = dict(model)
    if KEY not in values:
        return values
    name = values.pop(KEY)
    if not isinstance(name, str) or name not in PRESETS:
        close = difflib.get_close_matches(str(name), PRESETS, n=1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise RecipeError(f"{place}.{KEY}: there is no preset {name!r}.{meant} Known are {', '.join(PRESETS)}.")
    preset = PRESETS[name].values
    asked = values.get("architecture", preset["architecture"])
    if asked != preset["architecture"]:
        raise RecipeError(
            f"{place}.{KEY}: {name} is a {preset['architecture']}, and architecture beside it says {asked}. Leave"
            f" architecture out, or take a preset of that architecture."
        )
    return {**preset, **values}


def overruled(model: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> value as asked and as published, of what stands beside a known preset in `train.model` and is not its."""
    preset = PRESETS.get(str(model.get(KEY)))
    if preset is None:
        return {}
    return {
        key: (asked, preset.values[key])
        for key, asked in model.items()
        if key in preset.values and asked != preset.values[key]
    }
