"""Open a trained model with its tokenizer: an artifact, a fine-tuned folder, or a folder of `transformers`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.digests import digest_bytes
from model.errors import InputError
from model.finetune.description import FINETUNED
from model.model_files import SETTINGS, is_published, read_json
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.identity import canonical_json
from tasks.tokenizer.base import DESCRIPTION_FILE, MODEL_FILES
from tasks.tokenizer.open import load_tokenizer, open_tokenizer, tokenizer_of

if TYPE_CHECKING:
    from torch import Tensor

    from model.config.network import NetworkConfig
    from model.finetune.chat_template import ChatTemplate
    from model.nn.factory import Network
    from tasks.tokenizer.base import Tokenizer

CHAT_TEMPLATE, TOKENIZER_SETTINGS = "chat_template.jinja", "tokenizer_config.json"
"""Files of `transformers` beside a model."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model is: a folder, the artifact that it is of, and that of its vocabulary."""

    folder: Path
    artifact: Artifact | None = None
    vocab: Artifact | None = None
    """None for a model whose folder has its vocabulary."""

    @property
    def parents(self) -> dict[str, Artifact]:
        """The artifacts that what is made of the model has as parents."""
        found = {"model": self.artifact, "vocab": self.vocab}
        return {name: artifact for name, artifact in found.items() if artifact is not None}

    def external(self) -> dict[str, str]:
        """Return the digest of a model that is no artifact, with its vocabulary; nothing of others."""
        if self.artifact is not None:
            return {}
        found = {"model": self.digest(), "vocab": self.tokenizer().description()}
        if is_published(self.folder):
            found["settings"] = [_text_of(self.folder / name) or "" for name in (CHAT_TEMPLATE, TOKENIZER_SETTINGS)]
        return {"model": digest_bytes(canonical_json(found).encode())}

    def digest(self) -> str:
        """Return the digest of the model's settings and weights; InputError where the folder holds no model."""
        from model.huggingface.io import base_digest

        return base_digest(self.folder)

    def tokenizer(self) -> "Tokenizer":
        """Return the vocabulary; InputError where there is none."""
        if self.vocab is not None:
            return open_tokenizer(self.vocab)
        if is_published(self.folder):
            from model.huggingface.io import open_published

            return _vocabulary(self.folder, open_published(self.folder).config.vocab_size)
        files = [self.folder / name for name in MODEL_FILES.values() if (self.folder / name).is_file()]
        if len(files) != 1:
            raise InputError(
                f"{self.folder} has a {DESCRIPTION_FILE} and {len(files)} vocabularies, where one of"
                f" {', '.join(MODEL_FILES.values())} was expected; it is not a complete folder of `bessemer model"
                f" finetune`. Name such a folder, or a run"
            )
        return load_tokenizer(files[0], self.folder / DESCRIPTION_FILE)

    @property
    def files(self) -> list[Path]:
        """The files of settings and weights."""
        from model.huggingface.io import base_files

        return base_files(self.folder)


@dataclass(frozen=True)
class Trained:
    """A trained model with its vocabulary."""

    folder: Path
    network: "Network"
    tokenizer: "Tokenizer"
    description: dict[str, Any]
    """As `describe_source` returns it."""


@dataclass(frozen=True)
class StoredModel:
    """A trained model whose weights are not read yet; the other fields are those of `Trained`."""

    folder: Path
    config: "NetworkConfig"
    weights: "Mapping[str, Tensor]"
    tokenizer: "Tokenizer"
    description: dict[str, Any]


def describe_source(source: ModelSource) -> dict[str, Any]:
    """Return the contents of `model.json`; of a folder of `transformers`, the text-to-text tasks that a T5's
    `config.json` names, under `FINETUNED`."""
    from model.checkpoint.weights import describe_model

    if not is_published(source.folder):
        return describe_model(source.folder)
    tasks = read_json(source.folder / SETTINGS).get("task_specific_params")
    return {FINETUNED: tasks} if tasks else {}


def load_source(source: ModelSource) -> Trained:
    """Load a model; the errors are those of `open_source`."""
    from model.checkpoint.weights import network_of

    stored = open_source(source)
    network = network_of(stored.config, dict(stored.weights))
    return Trained(stored.folder, network, stored.tokenizer, stored.description)


def open_source(source: ModelSource) -> StoredModel:
    """Open a model. Weights of one trained here are checked, and read one by one when they are used.

    Raises InputError where a published network is not supported, where its folder has no vocabulary, and where the
    vocabulary has more entries than the model's embedding.
    """
    from model.checkpoint.weights import open_model

    folder, tokenizer = source.folder, source.tokenizer()
    if is_published(folder):
        from model.huggingface.io import open_published, read_published

        published = open_published(folder)
        return StoredModel(folder, published.config, read_published(published), tokenizer, describe_source(source))
    config, weights = open_model(folder, tokenizer.digest)
    return StoredModel(folder, config, weights, tokenizer, describe_source(source))


def chat_template(trained: Trained) -> "ChatTemplate | None":
    """Return the chat template of a fine-tuned model, or of the tokenizer of a folder of `transformers`; else None."""
    from model.finetune.chat_template import ChatTemplate

    fine_tuned = trained.description.get(FINETUNED, {})
    if "chat" in fine_tuned:
        return ChatTemplate.of_description(fine_tuned["chat"])
    return published_template(trained.folder, trained.tokenizer) if is_published(trained.folder) else None


def published_template(folder: Path, tokenizer: "Tokenizer") -> "ChatTemplate | None":
    """Return the chat template in a folder of `transformers`; None without one."""
    from model.finetune.chat_template import ChatTemplate

    file = folder / TOKENIZER_SETTINGS
    if not file.is_file():
        return None
    settings, own_file = read_json(file), _text_of(folder / CHAT_TEMPLATE)
    source = settings.get("chat_template") if own_file is None else own_file
    if isinstance(source, list):  # Several, by name.
        source = next((one.get("template") for one in source if one.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    names = {number: name for name, number in tokenizer.special_names.items()}

    def name_of(key: str, default: int) -> str:
        value = settings.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        return value if isinstance(value, str) else names.get(default, "")

    return ChatTemplate(source, name_of("bos_token", tokenizer.bos), name_of("eos_token", tokenizer.eos))


def published_origin(folder: Path) -> Path | None:
    """Return the folder of the published model that the model in `folder` is, or that its training went on from, at
    once or through other trainings; None without one.

    Raises InputError where a model on the way is not there any more, or has changed.
    """
    from model.train.reproduction import REPRODUCTION

    while not is_published(folder):
        record = folder / REPRODUCTION
        base = read_json(record)["run"].get("base") if record.is_file() else None
        if base is None:
            return None
        folder = Path(base["folder"])
        if ModelSource(folder).digest() != base["digest"]:
            raise InputError(f"{folder} holds another model now")
    return folder


def _text_of(path: Path) -> str | None:
    """Return the text of a file beside a published model; None without it. Raises InputError if it is not UTF-8."""
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8. Take an untouched copy of the model.") from error


def write_vocabulary(folder: Path, tokenizer: "Tokenizer") -> None:
    """Write the two files of a tokenizer, so that the model in `folder` needs no artifact of its run."""
    (folder / MODEL_FILES[tokenizer.kind]).write_bytes(tokenizer.model)
    description = json.dumps(tokenizer.description(), indent=1, sort_keys=True) + "\n"
    (folder / DESCRIPTION_FILE).write_text(description)


def _vocabulary(folder: Path, rows: int) -> "Tokenizer":
    from tasks.tokenizer.base import json_model_type
    from tasks.tokenizer.released import read_base, texts_begin
    from tasks.train.base_model import VOCABULARY_FILES
    from tasks.vocab.base import prepare_base
    from tasks.vocab.config import VocabConfig
    from tasks.vocab.extenders import vocabulary_size

    files = [folder / name for name in VOCABULARY_FILES if (folder / name).is_file()]
    if not files:
        raise InputError(f"{folder} has no vocabulary ({', '.join(VOCABULARY_FILES)}). Copy the whole folder again.")
    # WordPiece needs its normaliser to match its tokens; other vocabularies encode the text unchanged.
    released = read_base(files[0])
    if vocabulary_size(released) > rows:
        raise InputError(
            f"{folder}: {files[0].name} has {vocabulary_size(released)} tokens, and the model has {rows} embedding"
            f" rows: they do not belong together. Copy the whole folder again."
        )
    normaliser = "keep" if json_model_type(released) == "WordPiece" else "none"
    config, begins = VocabConfig(base=files[0], normaliser=normaliser), texts_begin(files[0])
    # The published table has a row for a padding token only where the model has such a token.
    tokenizer = tokenizer_of(prepare_base(config, pads=False), pads=False, begins=begins)
    if tokenizer.vocab_size < rows:
        config = config.model_copy(update={"embedding_rows": rows})
        tokenizer = tokenizer_of(prepare_base(config, pads=False), pads=False, begins=begins)
    if tokenizer.vocab_size > rows:
        raise InputError(
            f"{folder}: {files[0].name} with all tokens that exact text needs has {tokenizer.vocab_size}, and the model"
            f" has {rows} embedding rows. Continue its training with train.base_model, which adds rows for new tokens"
            f" (docs/continue_training.md), and name that run."
        )
    return tokenizer
