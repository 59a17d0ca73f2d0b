"""The trained model that a run's training went on from, as its artifact tells it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.record import read_recipe
from flows.wording import SHORT_ID
from tasks.artifact import Artifact

STARTS = {
    "mean": "the mean of the rows that wrote them before",
    "mean_noise": "the mean of the rows that wrote them before and some noise",
    "random": "noise, like those of a new network",
}
"""How new rows began, in words."""


def base_model(record: Mapping[str, Any], artifacts: Mapping[str, Artifact]) -> dict[str, Any]:
    """What training told of its base model, with the folder that the recipe names and what was `trainable`; nothing
    where it began with a new network."""
    if "train" not in artifacts:
        return {}
    train = artifacts["train"]
    told = train.report.facts.get("base_model")
    if told is None:
        return {}
    asked = read_recipe(Path(record["root"]) / "runs" / record["run_id"]).get("train", {})
    trainable = train.manifest["identity_parts"]["params"].get("trainable", "all")
    return {**told, "folder": asked.get("base_model"), "trainable": trainable}


def base_model_told(found: Mapping[str, Any]) -> str:
    """One sentence without its full stop; empty where there was no base model."""
    if not found:
        return ""
    named = f"{found['folder']} (" if found.get("folder") else "a trained model ("
    told = f"Training went on from {named}weights {found['weights'][:SHORT_ID]})"
    rows = found.get("new_rows")
    if rows is None:
        return f"{told}, under its own vocabulary; all weights were trained"
    told += f" with {rows:,} new rows, which began as {STARTS.get(found['start'], found['start'])}"
    if found["without_meaning"] and found["start"] != "random":
        told += f"; {found['without_meaning']:,} of them, to which the base's ids give no meaning, near the mean of all"
    alone = found["trainable"] == "new_rows"
    return f"{told}; {'only the new rows were' if alone else 'all weights were'} trained"
