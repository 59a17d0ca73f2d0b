"""The settings of a recipe's network, whole: those of its preset, and of the model that training goes on from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.presets.expansion import expanded


def network_settings(train: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """`train.model` with the settings of its preset and, for what is left out, of `train.base_model`.

    Raises RecipeError for an unknown preset; `origin` names the recipe. A base that cannot be read is told where it is
    needed.
    """
    model = expanded(dict(train.get("model", {})), f"{origin}: train.model")
    base = train.get("base_model")
    if not isinstance(base, str | Path):
        return model
    from tasks.train.base_model import settings_of_base

    of_base = settings_of_base(Path(base))
    if model.get("architecture", of_base.get("architecture")) != of_base.get("architecture"):
        return model
    return {**of_base, **model}
