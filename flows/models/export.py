"""A trained model with its vocabulary in a folder that `transformers` loads."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.models.load import FINETUNED, open_trained
from model.errors import InputError, RecipeError
from model.files import sync_directory
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer

if TYPE_CHECKING:
    from tasks.tokenizer.base import Tokenizer


CARD = "README.md"

VOCABULARY, VOCABULARY_SETTINGS = "tokenizer.json", "tokenizer_config.json"


def export_transformers(root: Path, model: str, folder: Path, licence: str | None = None) -> str:
    """Write the model into a new folder as `config.json`, `model.safetensors`, its tokenizer's two files, and the card
    of its run as `README.md`.

    Returns the class of `transformers` that loads it. The folder appears whole or not at all. `licence` is what is
    declared for the model. Raises InputError where the folder holds something, RecipeError where no class computes the
    network, or where the licence conflicts with those of the text.
    """
    from flows.reports.model_card import find_model_run, model_card
    from model.huggingface.io import export_network

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"export: {folder} is there and not empty; nothing was written. Name a new folder.")
    trained = open_trained(root, model)
    config = trained.network.config
    if FINETUNED in trained.description and config.architecture == "bert":
        raise InputError(
            f"export: the model in {trained.folder} is a BERT that was fine-tuned, whose head no class is written for."
            f" Export the model that it was fine-tuned from."
        )
    record = find_model_run(root, model, trained.folder)
    if licence is not None:
        _check_terms(root, record, model, licence)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        ids = special_ids(trained.tokenizer, with_decoder=config.architecture == "t5")
        settings = {**ids, **_tasks_as_text(trained.description)}
        class_name = export_network(staged, config, trained.network.state_dict(), settings)
        _write_vocabulary(staged, trained.tokenizer, context=config.context)
        if record is not None:
            (staged / CARD).write_text(model_card(record, root, licence, class_name), encoding="utf-8")
        # A temporary folder is for its owner alone.
        staged.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        staged.rename(folder)
    except BaseException:
        shutil.rmtree(staged)
        raise
    sync_directory(folder.parent)
    return class_name


def _check_terms(root: Path, record: dict[str, Any] | None, model: str, licence: str) -> None:
    """Before anything is written: whether the declared licence goes with those of the text."""
    from flows.reports.model_card_facts import card_facts, check_licence

    if record is None:
        raise RecipeError(
            f"export --licence {licence}: {model} is a model of no run under {root}, so that the licences of its text"
            f" are not known. Export it without --licence, which grants nothing, or name the run that trained it."
        )
    check_licence(licence, card_facts(record, root).sources)


def special_ids(tokenizer: "Tokenizer", *, with_decoder: bool) -> dict[str, int]:
    """The entries of `config.json` that name special tokens; a decoder beside an encoder starts with padding."""
    begin = tokenizer.bos if tokenizer.bos >= 0 else tokenizer.eos
    ids = {"bos_token_id": begin, "eos_token_id": tokenizer.eos, "pad_token_id": tokenizer.pad}
    return {**ids, "decoder_start_token_id": tokenizer.pad} if with_decoder else ids


def _tasks_as_text(description: dict[str, Any]) -> dict[str, Any]:
    """How a text begins for each task that a T5 was taught, where its published models say so."""
    tasks = description.get(FINETUNED, {}).get("tasks", [])
    told = {task["name"]: {"prefix": f"{task['name']} {task['fields'][0]}: "} for task in tasks}
    return {"task_specific_params": told} if told else {}


def _write_vocabulary(folder: Path, tokenizer: "Tokenizer", *, context: int) -> None:
    from tasks.tokenizer.base import MODEL_FILE
    from tasks.vocab.output import fast_tokenizer

    if tokenizer.kind == SentencePieceTokenizer.kind:
        (folder / MODEL_FILE).write_bytes(tokenizer.model)
        (folder / VOCABULARY).write_bytes(fast_tokenizer(tokenizer.model))
    else:
        # Vocabularies of the other kinds are such files themselves.
        (folder / VOCABULARY).write_bytes(tokenizer.model)
    names = {number: name for name, number in tokenizer.special_names.items()}
    roles = ("unk", "bos", "eos", "pad", "cls", "sep", "mask")
    tokens = {f"{role}_token": names[getattr(tokenizer, role)] for role in roles if getattr(tokenizer, role) in names}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        **tokens,
    }
    (folder / VOCABULARY_SETTINGS).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
