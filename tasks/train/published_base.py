"""A published model to start from: which of its folder's files are its vocabulary, and whether the run's is that one.

Its weights know pieces by their numbers alone, so the run's vocabulary must be grown from a file that lies beside them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.config import StartingModel
from model.errors import InputError, RecipeError
from model.published.files import MOST_VOCABULARY_BYTES, read_bounded
from model.reading import digest_bytes
from model.same_shape import check_same_shape
from tasks.tokenizer import is_json

VOCABULARIES = ("tokenizer.model", "spiece.model", "tokenizer.json", "vocab.txt")
"""Files in which published models have their vocabularies."""


def network_in(folder: Path) -> Any:
    """The network that a folder's `config.json` describes; InputError for one that cannot be built here."""
    from model.published.folder import published_config

    return published_config(folder)[1]


def check_published_base(folder: Path, asked: Any, base: Path | None, pieces: int | None) -> int:
    """Rows of the published model in `folder`, all of whose tensors are there and of the right shapes.

    Raises RecipeError where it is not the network that the run asks for, or the vocabulary, which starts from the file
    `base` and has `pieces`, cannot be its own; InputError where its files do not fit each other.
    """
    from model.published.folder import open_published

    network = open_published(folder).config
    check_same_shape(folder, network, asked)
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
    content = read_bounded(path, MOST_VOCABULARY_BYTES)
    if path.name == "vocab.txt" and not is_json(content):
        from tasks.word_piece import of_lines

        content = of_lines(content.decode(), str(path))
    return digest_bytes(content)
