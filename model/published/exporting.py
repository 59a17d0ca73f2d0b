"""A network of ours written as `transformers` reads it: `config.json` and `model.safetensors`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from model.architecture import BERTConfig, GPTConfig, T5Config
from model.durable import sync_file, write_atomically
from model.published.families import fitting_family, settings_of
from model.published.files import ONE_FILE, SETTINGS
from model.published.origin import give_back


def export_network(
    folder: Path,
    config: GPTConfig | BERTConfig | T5Config,
    weights: Mapping[str, Tensor],
    settings: Mapping[str, Any],
) -> str:
    """Write the network into an existing folder; returns the class that loads it.

    `settings` are more entries of `config.json`, such as `eos_token_id`. Raises RecipeError where no class computes
    such a network.
    """
    family = fitting_family(config)
    # `transformers` reads the format of the tensors from here.
    save_file(give_back(weights, family.origins(config)), folder / ONE_FILE, metadata={"format": "pt"})
    # The library writes for its owner alone.
    (folder / ONE_FILE).chmod(0o644)
    sync_file(folder / ONE_FILE)
    written = {**settings_of(config, family), **settings, "dtype": "float32"}
    write_atomically(folder / SETTINGS, (json.dumps(written, indent=1, sort_keys=True) + "\n").encode())
    return family.class_name
