"""Load a trained model with its tokenizer, from a run, an artifact, a fine-tuned folder, or a `transformers` folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runs.lineage import open_run, run_artifacts
from model.errors import InputError
from model.model_files import is_published
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.manifest import MANIFEST
from tasks.tokenizer.open import load_tokenizer, open_tokenizer, tokenizer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from model.config.network import NetworkConfig
    from model.finetune.chat_template import ChatTemplate
    from model.nn.factory import Network
    from tasks.tokenizer.base import Tokenizer

FINETUNED = "finetuned"
"""Entry of `model.json` that only a fine-tuned model has."""


@dataclass(frozen=True)
class Trained:
    """A trained model with its vocabulary."""

    folder: Path
    network: "Network"
    tokenizer: "Tokenizer"
    description: dict[str, Any]
    """The contents of `model.json`; of a folder of `transformers`, the tasks that it names under `FINETUNED`."""


def find_model(root: Path, model: str) -> tuple[Artifact, Artifact]:
    """Return the MODEL and TOKENIZER artifacts of a run, or of a MODEL folder under the same root."""
    folder = Path(model)
    if (folder / MANIFEST).exists():
        trained = Artifact.open(folder)
        parent = trained.manifest["parents"].get("vocab")
        if parent is None:
            raise InputError(f"model {model}: this is an artifact of the stage `{trained.stage}`, not a model")
        return trained, Artifact.open(folder.parent.parent / parent["stage"] / parent["identity"])
    artifacts = run_artifacts(open_run(root, model, needs="train"))
    if "train" not in artifacts:
        raise InputError(f"model {model}: this run ended before training; choose another with `bessemer runs list`")
    return artifacts["train"], artifacts["vocab"]


@dataclass(frozen=True)
class Stored:
    """A trained model whose weights are not read yet; the other fields are those of `Trained`."""

    folder: Path
    config: "NetworkConfig"
    weights: "Mapping[str, Tensor]"
    tokenizer: "Tokenizer"
    description: dict[str, Any]


def open_trained(root: Path, model: str) -> Trained:
    """Load the model of a run, of an artifact, or of a folder with its tokenizer, be it of `transformers`."""
    from model.checkpoint.weights import network_of

    stored = open_stored(root, model)
    network = network_of(stored.config, dict(stored.weights))
    return Trained(stored.folder, network, stored.tokenizer, stored.description)


def open_stored(root: Path, model: str) -> Stored:
    """Open a model as `open_trained` does. Weights of a model trained here are checked, and read one by one when they
    are used.

    Raises InputError where a published network is not supported, where its folder has no vocabulary, and where the
    vocabulary has more entries than the model's embedding.
    """
    from model.checkpoint.run_folder import DESCRIPTION
    from model.checkpoint.weights import WEIGHTS, describe_model, open_model
    from tasks.tokenizer.base import DESCRIPTION_FILE, MODEL_FILES

    folder = Path(model)
    if os.sep in model and not folder.exists():
        raise InputError(
            f"there is no folder {model}. Name a model's folder, or a run; `bessemer runs list` lists runs"
        )
    if is_published(folder):
        from model.huggingface.io import open_published, read_published

        published = open_published(folder)
        tokenizer = _vocabulary(folder, published.config.vocab_size)
        tasks = tasks_in(folder)
        description = {FINETUNED: tasks} if tasks else {}
        return Stored(folder, published.config, read_published(published), tokenizer, description)
    if (folder / DESCRIPTION_FILE).is_file() and not (folder / MANIFEST).exists():
        files = [folder / name for name in MODEL_FILES.values() if (folder / name).is_file()]
        if len(files) != 1:
            raise InputError(
                f"{folder} has a {DESCRIPTION_FILE} and {len(files)} vocabularies, where one of"
                f" {', '.join(MODEL_FILES.values())} was expected; it is not a complete folder of `bessemer model"
                f" finetune`. Name such a folder, or a run"
            )
        tokenizer = load_tokenizer(files[0], folder / DESCRIPTION_FILE)
    else:
        trained, vocab = find_model(root, model)
        trained.file(DESCRIPTION)
        folder, tokenizer = trained.file(WEIGHTS).parent, open_tokenizer(vocab)
    config, weights = open_model(folder, tokenizer.digest)
    return Stored(folder, config, weights, tokenizer, describe_model(folder))


def chat_template(trained: Trained) -> "ChatTemplate | None":
    """Return the chat template of a fine-tuned model, or of the tokenizer of a folder of `transformers`; else None."""
    from model.finetune.chat_template import ChatTemplate
    from model.model_files import read_json

    fine_tuned = trained.description.get(FINETUNED, {})
    if "chat" in fine_tuned:
        return ChatTemplate.of_description(fine_tuned["chat"])
    file = trained.folder / "tokenizer_config.json"
    if not is_published(trained.folder) or not file.is_file():
        return None
    settings, own_file = read_json(file), trained.folder / "chat_template.jinja"
    source = own_file.read_text(encoding="utf-8") if own_file.is_file() else settings.get("chat_template")
    if isinstance(source, list):  # Several, by name.
        source = next((one.get("template") for one in source if one.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    names = {number: name for name, number in trained.tokenizer.special_names.items()}

    def name_of(key: str, default: int) -> str:
        value = settings.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        return value if isinstance(value, str) else names.get(default, "")

    return ChatTemplate(
        source, name_of("bos_token", trained.tokenizer.bos), name_of("eos_token", trained.tokenizer.eos)
    )


def write_vocabulary(folder: Path, tokenizer: "Tokenizer") -> None:
    """Write the two files of a tokenizer, so that the model in `folder` needs no artifact of its run."""
    from tasks.tokenizer.base import DESCRIPTION_FILE, MODEL_FILES

    (folder / MODEL_FILES[tokenizer.kind]).write_bytes(tokenizer.model)
    description = json.dumps(tokenizer.description(), indent=1, sort_keys=True) + "\n"
    (folder / DESCRIPTION_FILE).write_text(description)


def _vocabulary(folder: Path, rows: int) -> "Tokenizer":
    from tasks.tokenizer.base import json_model_type
    from tasks.train.base_model import VOCABULARY_FILES
    from tasks.vocab.base import prepare_base, read_base
    from tasks.vocab.config import VocabConfig

    files = [folder / name for name in VOCABULARY_FILES if (folder / name).is_file()]
    if not files:
        raise InputError(f"{folder} has no vocabulary ({', '.join(VOCABULARY_FILES)}). Copy the whole folder again.")
    # WordPiece needs its normaliser to match its tokens; other vocabularies encode the text unchanged.
    normaliser = "keep" if json_model_type(read_base(files[0])) == "WordPiece" else "none"
    config = VocabConfig(base=files[0], normaliser=normaliser)
    # The published table has a row for a padding token only where the model has such a token.
    tokenizer = tokenizer_of(prepare_base(config, pads=False), pads=False)
    if tokenizer.vocab_size < rows:
        config = config.model_copy(update={"embedding_rows": rows})
        tokenizer = tokenizer_of(prepare_base(config, pads=False), pads=False)
    if tokenizer.vocab_size > rows:
        raise InputError(
            f"{folder}: {files[0].name} with all tokens that exact text needs has {tokenizer.vocab_size}, and the model"
            f" has {rows} embedding rows. Continue its training with train.base_model, which adds rows for new tokens"
            f" (docs/continue_training.md), and name that run."
        )
    return tokenizer


def tasks_in(folder: Path) -> dict[str, dict[str, str]]:
    """Return the text-to-text tasks that a T5's `config.json` names; empty for most models."""
    from model.model_files import SETTINGS, read_json

    return read_json(folder / SETTINGS).get("task_specific_params") or {}
