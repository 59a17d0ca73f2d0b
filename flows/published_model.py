"""A model in the form of `transformers`, such as `bessemer export` writes, opened together with its vocabulary."""

from pathlib import Path
from typing import TYPE_CHECKING

from model.errors import InputError
from tasks.open_tokenizer import tokenizer_of

if TYPE_CHECKING:
    from model.networks import Network
    from tasks.tokenizer import Tokenizer


def open_published_model(folder: Path) -> tuple["Network", "Tokenizer"]:
    """The network in evaluation mode, and the vocabulary that lies beside it.

    Raises InputError where no network here computes it, where it has no vocabulary, and where that has pieces for which
    the model has no rows.
    """
    from model.published.folder import open_published, read_published
    from model.weights import network_of

    published = open_published(folder)
    tokenizer = _vocabulary(folder, published.config.vocab_size)
    return network_of(published.config, read_published(published)), tokenizer


def tasks_in(folder: Path) -> dict[str, dict[str, str]]:
    """The tasks that the model was taught as text, by name, as T5's `config.json` tells them; mostly none."""
    from model.published.files import SETTINGS, read_json

    return read_json(folder / SETTINGS).get("task_specific_params") or {}


def _vocabulary(folder: Path, rows: int) -> "Tokenizer":
    from tasks.tokenizer import json_model_type
    from tasks.train.published_base import VOCABULARIES
    from tasks.vocab.base import prepared_base, read_base
    from tasks.vocab.config import VocabConfig

    files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
    if not files:
        raise InputError(f"{folder} holds no vocabulary ({', '.join(VOCABULARIES)}). Copy the whole folder again.")
    # WordPiece's pieces are written as its normaliser leaves text; of other vocabularies the text itself is wanted.
    normaliser = "keep" if json_model_type(read_base(files[0])) == "WordPiece" else "none"
    asked = VocabConfig(base=files[0], normaliser=normaliser)
    tokenizer = tokenizer_of(prepared_base(asked))
    if tokenizer.vocab_size < rows:
        tokenizer = tokenizer_of(prepared_base(asked.model_copy(update={"embedding_rows": rows})))
    if tokenizer.vocab_size > rows:
        raise InputError(
            f"{folder}: {files[0].name} with all pieces that exact text needs has {tokenizer.vocab_size}, and the model"
            f" has {rows} rows for them. Go on from it with train.base_model, which gives new pieces rows"
            f" (docs/base_models.md), and name that run."
        )
    return tokenizer
