"""Weights on disk: safetensors and a JSON beside them, never pickles."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from model.config import GPTConfig
from model.errors import InputError
from model.transformer import GPT

WEIGHTS = "model.safetensors"
DESCRIPTION = "model.json"


def save_model(folder: Path, network: GPT, description: dict[str, Any]) -> None:
    """Write `model.safetensors` and `model.json` (its `config` entry and whatever else is known of the model)."""
    state = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, folder / WEIGHTS)
    text = json.dumps({"config": network.config.model_dump(mode="json"), **description}, indent=1, sort_keys=True)
    (folder / DESCRIPTION).write_text(text + "\n")


def describe_model(folder: Path) -> dict[str, Any]:
    """The contents of `model.json`; InputError where the folder holds no model."""
    path = folder / DESCRIPTION
    if not path.is_file() or not (folder / WEIGHTS).is_file():
        raise InputError(f"{folder} holds no model: expected {DESCRIPTION} and {WEIGHTS}")
    return json.loads(path.read_text())


def load_model(folder: Path, tokenizer_digest: str | None = None) -> GPT:
    """The network in `folder`, in evaluation mode.

    Raises InputError when `tokenizer_digest` is given and the model was trained with another tokenizer.
    """
    description = describe_model(folder)
    trained_with = description.get("tokenizer_digest")
    if tokenizer_digest is not None and trained_with != tokenizer_digest:
        raise InputError(
            f"the model in {folder} was trained with the tokenizer {trained_with}, not with {tokenizer_digest};"
            f" its token ids mean something else. Use the tokenizer of the model's own run."
        )
    config = GPTConfig.model_validate(description["config"])
    with torch.device("meta"):
        network = GPT(config)
    network.load_state_dict(load_file(folder / WEIGHTS), assign=True)
    fresh = GPT(config.model_copy(update={"layers": 1, "vocab_size": 2}))
    network.cos_TE, network.sin_TE = fresh.cos_TE, fresh.sin_TE
    return network.eval()
