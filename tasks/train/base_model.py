"""A trained model to start from: a parent by content, whose vocabulary is the one of the run or of the run's base."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from model.architecture import read_network_config
from model.config import StartingModel
from model.errors import InputError, RecipeError
from model.same_shape import MAY_DIFFER, check_same_shape
from tasks.artifact import Artifact
from tasks.digests import InputDigests
from tasks.tokenizer import BASE, DESCRIPTION_FILE, Tokenizer
from tasks.train.config import TrainStageConfig

DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
"""Files of a trained model, as the trainer writes them."""
ADDED_PIECES = "added_pieces"
"""The vocabulary's table of pieces that its base lacks."""


def base_model_digest(root: Path, folder: Path | None) -> dict[str, str]:
    """`base_model` -> digest of the model's description, which names that of its weights; nothing without a folder.

    The trainer holds the weights against it before it computes anything from them.
    """
    if folder is None:
        return {}
    _check_stands(folder)
    digests = InputDigests(root / "inputs.json")
    digest = digests.digest(folder / DESCRIPTION)
    digests.save()
    return {"base_model": digest}


def settings_of_base(folder: Path) -> dict[str, Any]:
    """What the network in a folder is, but for what may differ in a run that goes on from it; nothing where no
    description can be read."""
    try:
        found = read_network_config(_description(folder)["config"])
    except (OSError, InputError, KeyError, TypeError, ValidationError):
        return {}
    return {name: getattr(found, name) for name in type(found).model_fields if name not in MAY_DIFFER}


def check_base_model(config: TrainStageConfig, pieces: int | None) -> None:
    """Raise InputError where there is no model in `config.base_model`, RecipeError where it is not `config.model`, or
    where new rows alone shall learn and a vocabulary of `pieces` gives it none; None is one that grows from no other.

    Weights are not opened, and whether it is the vocabulary of the model is not asked.
    """
    folder = config.base_model
    if folder is None:
        return
    _check_stands(folder)
    description = _description(folder)
    try:
        found = read_network_config(description["config"])
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(
            f"train.base_model: {folder / DESCRIPTION} does not describe a network that this program could train"
            f" further ({str(error).splitlines()[0]}). Take an untouched copy of a model that was trained here."
        ) from error
    check_same_shape(folder, found, config.model)
    if config.trainable == "new_rows" and (pieces is None or pieces <= found.vocab_size):
        told = "is trained anew" if pieces is None else f"has {pieces}"
        raise RecipeError(
            f"train.trainable = new_rows, and there are none: the model in {folder} has {found.vocab_size} rows, and"
            f" this run's vocabulary {told}. Name the model's vocabulary in vocab.base and add rows with vocab.extend,"
            f" or leave train.trainable out."
        )


def _check_stands(folder: Path) -> None:
    missing = next((name for name in (DESCRIPTION, WEIGHTS) if not (folder / name).is_file()), None)
    if missing is not None:
        found = f"has no {missing}" if folder.is_dir() else "is no folder"
        raise InputError(
            f"train.base_model: {folder} {found}. Set it to the folder of a trained model, which holds {DESCRIPTION}"
            f" and {WEIGHTS}: the train artifact of a run, or a copy of these two files."
        )


def starting_model(folder: Path | None, vocab: Artifact, tokenizer: Tokenizer) -> StartingModel | None:
    """What the trainer is told of the model in `folder`; None without one.

    Raises InputError where the run's tokenizer is neither the model's own nor grown from it.
    """
    if folder is None:
        return None
    trained_with = _description(folder).get("tokenizer_digest")
    if trained_with == tokenizer.digest:
        return StartingModel(folder=folder.resolve(), tokenizer_digest=tokenizer.digest)
    origin = json.loads(vocab.file(DESCRIPTION_FILE).read_text()).get(BASE)
    if trained_with is None or origin is None or origin["digest"] != trained_with:
        grown = f"grown from {origin['digest']}" if origin else "grown from no other"
        raise InputError(
            f"train.base_model: the model in {folder} was trained with the tokenizer {trained_with}, and this run's is"
            f" {tokenizer.digest}, {grown}; the same ids mean other text. Set vocab.base to the vocabulary that the"
            f" model was trained with, and run again from vocab."
        )
    tables = vocab.files(ADDED_PIECES)
    if not tables:
        raise InputError(
            f"train.base_model: this run's vocabulary was grown from that of the model in {folder}, and does not say"
            f" what its new pieces were before. It comes from an earlier version; run again from vocab."
        )
    return StartingModel(folder=folder.resolve(), tokenizer_digest=trained_with, added_pieces=tables[0].resolve())


def _description(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / DESCRIPTION).read_text())
    except ValueError as error:
        raise InputError(
            f"train.base_model: {folder / DESCRIPTION} is no JSON ({error}). Take an untouched copy of the model."
        ) from error
