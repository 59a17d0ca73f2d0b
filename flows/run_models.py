"""Which network a run trains: its architecture, and its parameters once they stand."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from flows.record import read_recipe, warn_once
from model.errors import IntegrityError
from tasks.train.base_model import DESCRIPTION, WEIGHTS


def model_of(record: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """`architecture` and `parameters` of a run's model; None for what is not known yet, or no longer stands."""
    trained = (entry["path"] for entry in record["stages"] if entry["stage"] == "train" and "path" in entry)
    path = Path(next(trained, ""))
    if (path / DESCRIPTION).is_file() and (path / WEIGHTS).is_file():
        try:
            config = json.loads((path / DESCRIPTION).read_text())["config"]
            return {"architecture": config.get("architecture", "gpt"), "parameters": stored_values(path / WEIGHTS)}
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            warn_once(f"{path} is damaged ({error}); `bessemer verify` names what, and how to set it aside")
    try:
        network = read_recipe(root / "runs" / record["run_id"]).get("train", {}).get("model", {})
    except IntegrityError as error:
        warn_once(str(error))
        network = {}
    return {"architecture": network.get("architecture"), "parameters": None}


def stored_values(path: Path) -> int:
    """Numbers in a file of safetensors, counted from its head."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  # no mapping
