"""Export a trained model with its tokenizer and model card to a folder that `transformers` loads."""

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
    """Write a model into a new folder: `config.json`, `model.safetensors`, two tokenizer files, and the model card.

    Returns the class of `transformers` that loads it. The folder appears complete or not at all. `licence` is the
    licence declared for the model. Raises InputError where the folder is not empty, and RecipeError where no class of
    `transformers` computes the network, or where the licence conflicts with those of the text.
    """
    from flows.reports.model_card import find_model_run, model_card
    from model.huggingface.io import export_network

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"export: {folder} exists and is not empty; nothing was written. Name a new folder.")
    trained = open_trained(root, model)
    config = trained.network.config
    if FINETUNED in trained.description and config.architecture == "bert":
        raise InputError(
            f"export: the model in {trained.folder} is a fine-tuned BERT, whose task head cannot be exported. Export"
            f" the model that it was fine-tuned from."
        )
    record = find_model_run(root, model, trained.folder)
    if licence is not None:
        _check_licence(root, record, model, licence)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        ids = special_ids(trained.tokenizer, with_decoder=config.architecture == "t5")
        chat = trained.description.get(FINETUNED, {}).get("chat")
        if chat is not None:
            ids["eos_token_id"] = chat["end"]
        settings = {**ids, **(_tasks_as_text(trained.description) if config.architecture == "t5" else {})}
        class_name = export_network(staged, config, trained.network.state_dict(), settings)
        _write_vocabulary(staged, trained.tokenizer, context=config.context, chat=chat)
        if record is not None:
            (staged / CARD).write_text(model_card(record, root, licence, class_name), encoding="utf-8")
        # mkdtemp gives access to the owner only.
        staged.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        staged.rename(folder)
    except BaseException:
        shutil.rmtree(staged)
        raise
    sync_directory(folder.parent)
    return class_name


def _check_licence(root: Path, record: dict[str, Any] | None, model: str, licence: str) -> None:
    """Raise RecipeError where the declared licence conflicts with those of the text, or these are unknown."""
    from flows.reports.model_card_facts import card_facts, check_licence

    if record is None:
        raise RecipeError(
            f"export --licence {licence}: no run under {root} trained {model}, so the licences of its text are not"
            f" known. Export it without --licence, which grants nothing, or name the run that trained it."
        )
    check_licence(licence, card_facts(record, root).sources)


def _tasks_as_text(description: dict[str, Any]) -> dict[str, Any]:
    """Return the input prefix of each task that a T5 was fine-tuned on, as published T5 models have it."""
    tasks = description.get(FINETUNED, {}).get("tasks", [])
    prefixes = {task["name"]: {"prefix": f"{task['name']} {task['fields'][0]}: "} for task in tasks}
    return {"task_specific_params": prefixes} if prefixes else {}


def _write_vocabulary(
    folder: Path, tokenizer: "Tokenizer", *, context: int, chat: dict[str, Any] | None = None
) -> None:
    """Write a vocabulary with its settings; `chat` is the chat template of a fine-tuned GPT."""
    from tasks.tokenizer.base import MODEL_FILE
    from tasks.vocab.output import fast_tokenizer

    if tokenizer.kind == SentencePieceTokenizer.kind:
        (folder / MODEL_FILE).write_bytes(tokenizer.model)
        (folder / VOCABULARY).write_bytes(fast_tokenizer(tokenizer.model))
    else:
        # The other kinds of vocabulary are stored as such a file.
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
    if chat is not None:
        settings["chat_template"] = chat["source"]
        settings |= {key: chat[key] for key in ("bos_token", "eos_token") if chat[key] in tokenizer.special_names}
    (folder / VOCABULARY_SETTINGS).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")


def special_ids(tokenizer: "Tokenizer", *, with_decoder: bool) -> dict[str, int]:
    """Return the entries of `config.json` that name special tokens; a T5 decoder starts with padding."""
    begin = tokenizer.bos if tokenizer.bos >= 0 else tokenizer.eos
    ids = {"bos_token_id": begin, "eos_token_id": tokenizer.eos, "pad_token_id": tokenizer.pad}
    return {**ids, "decoder_start_token_id": tokenizer.pad} if with_decoder else ids
