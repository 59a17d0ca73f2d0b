"""A trained model to start from: a parent by content, whose vocabulary is the one of the run or of the run's base.

A published model to start from: which of its folder's files are its vocabulary, and whether the run's is that one.

Its weights know pieces by their numbers alone, so the run's vocabulary must be grown from a file that lies beside them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from model.checkpoint.run_folder import DESCRIPTION, WEIGHTS
from model.config.network import read_network_config
from model.config.rules import INDEPENDENT_SETTINGS, check_compatible_architecture
from model.config.train import StartingModel
from model.digests import digest_bytes
from model.errors import InputError, RecipeError
from model.model_files import (
    MAX_VOCABULARY_BYTES,
    SETTINGS,
    is_published,
    published_digest,
    read_bounded,
    read_json,
    weight_files,
)
from tasks.artifacts.artifact import Artifact
from tasks.common.digests import INPUTS, InputDigests
from tasks.tokenizer.base import ADDED_PIECES, BASE, DESCRIPTION_FILE, Tokenizer, is_json
from tasks.train.config import TrainStageConfig

"""Files of a trained model, as the trainer writes them."""


def base_model_digest(root: Path, folder: Path | None) -> dict[str, str]:
    """`base_model` -> digest of the model's description, which names that of its weights, or of all files of a
    published one; nothing without a folder.

    The trainer holds the weights against it before it computes anything from them.
    """
    if folder is None:
        return {}
    _check_stands(folder)
    digests = InputDigests(root / INPUTS)
    published = is_published(folder)
    digest = published_digest(folder, digests.digest) if published else digests.digest(folder / DESCRIPTION)
    digests.save()
    return {"base_model": digest}


def settings_of_base(folder: Path) -> dict[str, Any]:
    """What the network in a folder is, but for what may differ in a run that goes on from it; nothing where no
    description can be read."""
    try:
        found = network_in(folder) if is_published(folder) else read_network_config(_description(folder)["config"])
    except (OSError, InputError, KeyError, TypeError, ValidationError):
        return {}
    return {name: getattr(found, name) for name in type(found).model_fields if name not in INDEPENDENT_SETTINGS}


def check_base_model(config: TrainStageConfig, pieces: int | None, base: Path | None = None) -> None:
    """Raise InputError where there is no model in `config.base_model`, RecipeError where it is not `config.model`, or
    where new rows alone shall learn and a vocabulary of `pieces` gives it none; None is one that grows from no other,
    and `base` the file from which it grows.

    Weights are not read. Whether it is the vocabulary of the model is asked of a published one alone.
    """
    folder = config.base_model
    if folder is None:
        return
    _check_stands(folder)
    if is_published(folder):
        rows = check_published_base(folder, config.model, base, pieces)
    else:
        rows = _check_trained_here(folder, config)
    if config.trainable == "new_rows" and (pieces is None or pieces <= rows):
        told = "is trained anew" if pieces is None else f"has {pieces}"
        raise RecipeError(
            f"train.trainable = new_rows, and there are none: the model in {folder} has {rows} rows, and this run's"
            f" vocabulary {told}. Name the model's vocabulary in vocab.base and add rows with vocab.extend, or leave"
            f" train.trainable out."
        )


def _check_trained_here(folder: Path, config: TrainStageConfig) -> int:
    description = _description(folder)
    try:
        found = read_network_config(description["config"])
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(
            f"train.base_model: {folder / DESCRIPTION} does not describe a network that this program could train"
            f" further ({str(error).splitlines()[0]}). Take an untouched copy of a model that was trained here."
        ) from error
    check_compatible_architecture(folder, found, config.model)
    return found.vocab_size


def _check_stands(folder: Path) -> None:
    if is_published(folder):
        weight_files(folder)
        return
    missing = next((name for name in (DESCRIPTION, WEIGHTS) if not (folder / name).is_file()), None)
    if missing is not None:
        found = f"has no {missing}" if folder.is_dir() else "is no folder"
        raise InputError(
            f"train.base_model: {folder} {found}. Set it to the folder of a trained model, which holds {DESCRIPTION}"
            f" and {WEIGHTS}: the train artifact of a run, or a copy of these two files; or to that of a published one,"
            f" with {SETTINGS}."
        )


def starting_model(
    folder: Path | None, vocab: Artifact, tokenizer: Tokenizer, digest: str | None = None
) -> StartingModel | None:
    """What the trainer is told of the model in `folder`, which had the `digest` when the run was planned; None without
    one.

    Raises InputError where the run's tokenizer is neither the model's own nor grown from it.
    """
    if folder is None:
        return None
    origin = json.loads(vocab.file(DESCRIPTION_FILE).read_text()).get(BASE)
    tables = vocab.files(ADDED_PIECES)
    if is_published(folder):
        return published_start(folder, tokenizer.vocab_size, origin, tables[0] if tables else None, digest)
    trained_with = _description(folder).get("tokenizer_digest")
    if trained_with == tokenizer.digest:
        return StartingModel(folder=folder.resolve(), digest=digest, tokenizer_digest=tokenizer.digest)
    if trained_with is None or origin is None or origin["digest"] != trained_with:
        grown = f"grown from {origin['digest']}" if origin else "grown from no other"
        raise InputError(
            f"train.base_model: the model in {folder} was trained with the tokenizer {trained_with}, and this run's is"
            f" {tokenizer.digest}, {grown}; the same ids mean other text. Set vocab.base to the vocabulary that the"
            f" model was trained with, and run again from vocab."
        )
    if not tables:
        raise InputError(
            f"train.base_model: this run's vocabulary was grown from that of the model in {folder}, and does not say"
            f" what its new pieces were before. It comes from an earlier version; run again from vocab."
        )
    return StartingModel(
        folder=folder.resolve(), digest=digest, tokenizer_digest=trained_with, added_pieces=tables[0].resolve()
    )


def _description(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / DESCRIPTION)
    except InputError as error:
        raise InputError(f"train.base_model: {error}") from error


VOCABULARIES = ("tokenizer.model", "spiece.model", "tokenizer.json", "vocab.txt")
"""Files in which published models have their vocabularies."""


def network_in(folder: Path) -> Any:
    """The network that a folder's `config.json` describes; InputError for one that cannot be built here."""
    from model.huggingface.io import published_config

    return published_config(folder)[1]


def check_published_base(folder: Path, asked: Any, base: Path | None, pieces: int | None) -> int:
    """Rows of the published model in `folder`, all of whose tensors are there and of the right shapes.

    Raises RecipeError where it is not the network that the run asks for, or the vocabulary, which starts from the file
    `base` and has `pieces`, cannot be its own; InputError where its files do not fit each other.
    """
    from model.huggingface.io import open_published

    network = open_published(folder).config
    check_compatible_architecture(folder, network, asked)
    if base is None or pieces is None:
        raise RecipeError(
            f"train.base_model: {folder} is a published model, and this run trains a vocabulary of its own, in which"
            f" the same ids mean other text. Set vocab.base to {_named(folder)}."
        )
    _check_vocabulary(folder, _digest(base), str(base))
    if pieces < network.vocab_size:
        raise RecipeError(_too_few(folder, network.vocab_size, pieces))
    return network.vocab_size


def published_start(
    folder: Path, pieces: int, origin: Mapping[str, Any] | None, added_pieces: Path | None, planned: str | None
) -> StartingModel:
    """What the trainer is told of the published model in `folder`, for a vocabulary of `pieces` that was grown from
    `origin`; `added_pieces` says what its new pieces were before, and `planned` is the model's digest when the run was
    planned.

    Raises InputError where that is not the model's own.
    """
    digest = "" if origin is None else str(origin["digest"])
    _check_vocabulary(folder, digest, "the file that this run's vocabulary was grown from" if digest else "no file")
    rows = network_in(folder).vocab_size
    if pieces < rows:
        raise InputError(_too_few(folder, rows, pieces))
    return StartingModel(
        folder=folder.resolve(),
        digest=planned,
        tokenizer_digest=digest,
        added_pieces=added_pieces.resolve() if added_pieces is not None and pieces > rows else None,
    )


def _check_vocabulary(folder: Path, digest: str, named: str) -> None:
    known = {name: _digest(folder / name) for name in VOCABULARIES if (folder / name).is_file()}
    if not known:
        raise InputError(
            f"train.base_model: {folder} holds no vocabulary ({', '.join(VOCABULARIES)}), so that what its weights call"
            f" a piece cannot be known. Copy the whole published folder."
        )
    if digest not in known.values():
        raise InputError(
            f"train.base_model: the vocabulary of the model in {folder} is {' or '.join(known)} there, and this run's"
            f" comes from {named}, which is another; the same ids mean other text. Set vocab.base to {_named(folder)}."
        )


def _too_few(folder: Path, rows: int, pieces: int) -> str:
    return (
        f"train.base_model: the embedding of the model in {folder} has {rows} rows, and this run's vocabulary has"
        f" {pieces} pieces. The last rows are padding, which the vocabulary's file does not know: set"
        f" vocab.embedding_rows = {rows}, and new pieces get rows behind them."
    )


def _named(folder: Path) -> str:
    return " or ".join(str(folder / name) for name in VOCABULARIES if (folder / name).is_file()) or "its vocabulary"


def _digest(path: Path) -> str:
    """As the vocabulary that is grown from a file names it: BERT's vocab.txt by the `tokenizer.json` that says the
    same."""
    content = read_bounded(path, MAX_VOCABULARY_BYTES)
    if path.name == "vocab.txt" and not is_json(content):
        from tasks.tokenizer.wordpiece import from_vocab_txt

        content = from_vocab_txt(content.decode(), str(path))
    return digest_bytes(content)
