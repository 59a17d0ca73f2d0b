"""The base model of a training: one trained here, or a published one; its digest, its checks, and what the trainer
gets.

A base model is a parent by content. Its weights know tokens by their ids alone, so the run's vocabulary must be the
model's own, or extended from it: of a model trained here by the digest of its tokenizer, of a published one by a
vocabulary file in its folder.
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
from tasks.tokenizer.base import ADDED_PIECES, BASE, DESCRIPTION_FILE, Tokenizer
from tasks.train.config import TrainStageConfig

VOCABULARY_FILES = ("tokenizer.model", "spiece.model", "tokenizer.json", "vocab.txt")
"""Files in which published models have their vocabularies."""


def base_model_digest(root: Path, folder: Path | None) -> dict[str, str]:
    """Return `base_model` -> digest of the model's description, which includes that of its weights, or of all files of
    a published model; nothing without a folder.

    The trainer checks the weights against it before it uses them.
    """
    if folder is None:
        return {}
    _check_exists(folder)
    digests = InputDigests(root / INPUTS)
    published = is_published(folder)
    digest = published_digest(folder, digests.digest) if published else digests.digest(folder / DESCRIPTION)
    digests.save()
    return {"base_model": digest}


def settings_of_base(folder: Path) -> dict[str, Any]:
    """Return the network settings of the model in a folder, except those that may differ in a run that continues
    from it; nothing where no description can be read."""
    try:
        found = network_in(folder) if is_published(folder) else read_network_config(_description(folder)["config"])
    except (OSError, InputError, KeyError, TypeError, ValidationError):
        return {}
    return {name: getattr(found, name) for name in type(found).model_fields if name not in INDEPENDENT_SETTINGS}


def vocabulary_of_base(folder: Path) -> tuple[Path, int] | None:
    """Return the vocabulary's file of the published model in a folder, and the rows of its embedding; None where the
    folder has no such model, which the checks of `train.base_model` report."""
    files = [folder / name for name in VOCABULARY_FILES if (folder / name).is_file()]
    if not files or not is_published(folder):
        return None
    try:
        return files[0], network_in(folder).vocab_size
    except (InputError, ValidationError):
        return None


def check_base_model(
    config: TrainStageConfig,
    pieces: int | None,
    base: Path | None = None,
    base_rows: int | None = None,
    trained_anew: int | None = None,
    unextended: str | None = None,
) -> None:
    """Check `config.base_model` without reading its weights.

    `pieces` is the size of a vocabulary that is extended from the file `base`, whose own tokens and placeholders are
    `base_rows`; None for one that is trained anew, of `trained_anew` tokens, of which only the size is checked: whether
    it is the model's vocabulary shows when it is made (`make_starting_model`). `unextended` is the digest of a
    vocabulary that is `base` without new tokens. Raises InputError where the folder has no model, or one of another
    vocabulary; RecipeError where the model is not `config.model`, or where only new rows are trainable and there are
    none.
    """
    folder = config.base_model
    if folder is None:
        return
    _check_exists(folder)
    if is_published(folder):
        rows = check_published_base(folder, config.model, base, pieces, base_rows)
    else:
        own = {_vocabulary_digest(base), unextended} if base is not None else None
        rows = _check_trained_here(folder, config, own)
    if config.trainable == "new_rows" and (pieces is None or pieces <= rows):
        vocabulary = "is trained anew" if pieces is None else f"has {pieces} tokens"
        raise RecipeError(
            f"train.trainable = new_rows, and there are none: the model in {folder} has {rows} rows, and this run's"
            f" vocabulary {vocabulary}. Set vocab.base to the model's vocabulary and add tokens with vocab.extend, or"
            f" leave train.trainable out."
        )
    if pieces is None and trained_anew not in (None, rows):
        raise RecipeError(
            f"train.base_model: the model in {folder} has {rows} rows, and this run trains a vocabulary of its own"
            f" with {trained_anew} tokens, in which the same ids mean other text. Set vocab.base to the model's"
            f" vocabulary: the file in artifacts/vocab/... of its run (current/tokenizer for current/model)."
        )


def _check_exists(folder: Path) -> None:
    if is_published(folder):
        weight_files(folder)
        return
    missing = next((name for name in (DESCRIPTION, WEIGHTS) if not (folder / name).is_file()), None)
    if missing is not None:
        problem = f"has no {missing}" if folder.is_dir() else "is not a folder"
        raise InputError(
            f"train.base_model: {folder} {problem}. Set it to the folder of a trained model, with {DESCRIPTION} and"
            f" {WEIGHTS}: the train artifact of a run, or a copy of these two files; or to that of a published one,"
            f" with {SETTINGS}."
        )


def _check_trained_here(folder: Path, config: TrainStageConfig, vocabularies: set[str | None] | None) -> int:
    description = _description(folder)
    try:
        found = read_network_config(description["config"])
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(
            f"train.base_model: {folder / DESCRIPTION} does not describe a network that this program can train"
            f" further ({str(error).splitlines()[0]}). Take an untouched copy of a model that was trained here."
        ) from error
    check_compatible_architecture(folder, found, config.model)
    trained_with = description.get("tokenizer_digest")
    if vocabularies is not None and trained_with not in vocabularies - {None}:
        raise InputError(
            f"train.base_model: the model in {folder} was trained with the tokenizer {trained_with}, and vocab.base is"
            f" another; the same ids mean other text. Set vocab.base to the vocabulary that the model was trained with:"
            f" the file in artifacts/vocab/... of its run (current/tokenizer for current/model)."
        )
    return found.vocab_size


def _description(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / DESCRIPTION)
    except InputError as error:
        raise InputError(f"train.base_model: {error}") from error


def check_published_base(
    folder: Path, requested: Any, base: Path | None, pieces: int | None, base_rows: int | None = None
) -> int:
    """Return the embedding rows of the published model in `folder`, after checking that all its tensors exist with the
    right shapes.

    Raises RecipeError where it is not the network `requested`, or the vocabulary, which is extended from the
    `base_rows` tokens and placeholders of the file `base` to `pieces` tokens, cannot be its own; InputError where its
    files do not agree.
    """
    from model.huggingface.io import open_published

    network = open_published(folder).config
    check_compatible_architecture(folder, network, requested)
    if base is None or pieces is None:
        raise RecipeError(
            f"train.base_model: {folder} is a published model, and this run trains a vocabulary of its own, in which"
            f" the same ids mean other text. Set vocab.base to {_name_vocabularies(folder)}."
        )
    _check_vocabulary(folder, _vocabulary_digest(base), str(base))
    rows = network.vocab_size
    # New tokens get the rows after the base's, so that its own must fill all of them.
    own = pieces if base_rows is None or pieces <= rows else base_rows
    if own < rows:
        raise RecipeError(_too_few_tokens(folder, rows, own))
    if base_rows is not None and base_rows > rows:
        raise RecipeError(
            f"train.base_model: the embedding of the model in {folder} has {rows} rows, and {base} with"
            f" vocab.embedding_rows has {base_rows} tokens. Take vocabulary and weights of one model, and set"
            f" vocab.embedding_rows to {rows}, or leave it out."
        )
    return rows


def network_in(folder: Path) -> Any:
    """Return the network that a folder's `config.json` describes; raise InputError for one that cannot be built
    here."""
    from model.huggingface.io import published_config

    return published_config(folder)[1]


def make_starting_model(
    folder: Path | None, vocab: Artifact, tokenizer: Tokenizer, digest: str | None = None
) -> StartingModel | None:
    """Return what the trainer needs of the model in `folder`, whose digest was `digest` when the run was planned; None
    without a folder.

    Raises InputError where the run's tokenizer is neither the model's own nor extended from it.
    """
    if folder is None:
        return None
    origin = json.loads(vocab.file(DESCRIPTION_FILE).read_text()).get(BASE)
    tables = vocab.files(ADDED_PIECES)
    if is_published(folder):
        return start_from_published(folder, tokenizer.vocab_size, origin, tables[0] if tables else None, digest)
    trained_with = _description(folder).get("tokenizer_digest")
    if trained_with == tokenizer.digest:
        return StartingModel(folder=folder.resolve(), digest=digest, tokenizer_digest=tokenizer.digest)
    if trained_with is None or origin is None or origin["digest"] != trained_with:
        extended = f"extended from {origin['digest']}" if origin else "extended from no other"
        raise InputError(
            f"train.base_model: the model in {folder} was trained with the tokenizer {trained_with}, and this run's is"
            f" {tokenizer.digest}, {extended}; the same ids mean other text. Set vocab.base to the vocabulary that the"
            f" model was trained with, and run again from vocab."
        )
    if not tables:
        raise InputError(
            f"train.base_model: this run's vocabulary was extended from that of the model in {folder}, and does not map"
            f" its new tokens to old ids. It was made by an earlier version; run again from vocab."
        )
    return StartingModel(
        folder=folder.resolve(), digest=digest, tokenizer_digest=trained_with, added_pieces=tables[0].resolve()
    )


def start_from_published(
    folder: Path, pieces: int, origin: Mapping[str, Any] | None, added_pieces: Path | None, planned: str | None
) -> StartingModel:
    """Return what the trainer needs of the published model in `folder`, for a vocabulary of `pieces` tokens that was
    extended from `origin`; `added_pieces` maps its new tokens to old ids, and `planned` is the model's digest when the
    run was planned.

    Raises InputError where the vocabulary is not the model's own.
    """
    digest = "" if origin is None else str(origin["digest"])
    _check_vocabulary(folder, digest, "the file that it was extended from" if digest else "no file")
    rows = network_in(folder).vocab_size
    if pieces < rows:
        raise InputError(_too_few_tokens(folder, rows, pieces))
    return StartingModel(
        folder=folder.resolve(),
        digest=planned,
        tokenizer_digest=digest,
        added_pieces=added_pieces.resolve() if added_pieces is not None and pieces > rows else None,
    )


def _check_vocabulary(folder: Path, digest: str, named: str) -> None:
    known = {name: _vocabulary_digest(folder / name) for name in VOCABULARY_FILES if (folder / name).is_file()}
    if not known:
        raise InputError(
            f"train.base_model: {folder} has no vocabulary ({', '.join(VOCABULARY_FILES)}), so that the meaning of its"
            f" token ids is unknown. Copy the whole published folder."
        )
    if digest not in known.values():
        raise InputError(
            f"train.base_model: the vocabulary of the model in {folder} is {' or '.join(known)}, and this run's comes"
            f" from {named}, which differs; the same ids mean other text. Set vocab.base to"
            f" {_name_vocabularies(folder)}."
        )


def _vocabulary_digest(path: Path) -> str:
    """Return the digest by which an extended vocabulary names its base: of what `read_base` makes of the file."""
    from tasks.tokenizer.released import read_base

    try:
        return digest_bytes(read_base(path))
    except InputError:
        # Of several files in a folder one may be no base; the run's is another.
        return digest_bytes(read_bounded(path, MAX_VOCABULARY_BYTES))


def _name_vocabularies(folder: Path) -> str:
    return " or ".join(str(folder / name) for name in VOCABULARY_FILES if (folder / name).is_file()) or "its vocabulary"


def _too_few_tokens(folder: Path, rows: int, pieces: int) -> str:
    return (
        f"train.base_model: the embedding of the model in {folder} has {rows} rows, and this run's vocabulary has"
        f" {pieces} tokens before new ones. The last rows are padding, which the vocabulary's file does not include:"
        f" set vocab.embedding_rows = {rows}, and new tokens get the rows after them."
    )
