"""A trained model to start from: a parent by content, whose vocabulary is the one of the run or of the run's base."""

import json
from pathlib import Path
from typing import Any

from model.config import StartingModel
from model.errors import InputError
from tasks.artifact import Artifact
from tasks.digests import InputDigests
from tasks.tokenizer import BASE, DESCRIPTION_FILE, Tokenizer

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
    missing = next((name for name in (DESCRIPTION, WEIGHTS) if not (folder / name).is_file()), None)
    if missing is not None:
        raise InputError(
            f"train.base_model: {folder} has no {missing}. Set it to the folder of a trained model, which holds"
            f" {DESCRIPTION} and {WEIGHTS}: the train artifact of a run, or a copy of these two files."
        )
    digests = InputDigests(root / "inputs.json")
    digest = digests.digest(folder / DESCRIPTION)
    digests.save()
    return {"base_model": digest}


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
