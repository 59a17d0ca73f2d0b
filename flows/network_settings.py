"""The settings of a recipe's network, whole: those of its preset, and of the model that training goes on from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.presets.expansion import KEY, expanded, overruled


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


def hybrids(train: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence without a stop where `train.model` has settings beside its preset that are not that network's."""
    model = train.get("model", {})
    found = overruled(model)
    if not found:
        return ()
    told = ", ".join(f"{key} {asked} instead of {published}" for key, (asked, published) in found.items())
    keys = " and ".join(found) if len(found) < 3 else "these keys"
    return (
        f"the network is no {model[KEY]}, but one with {told}: what stands beside a preset overrules it. Leave {keys}"
        f" out of train.model for the published network",
    )
