"""Export a trained model with its tokenizer and model card to a folder that `transformers` loads."""

import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.models.load import FINETUNED, open_stored
from model.digests import digest_file
from model.errors import InputError, RecipeError
from model.files import sync_directory
from model.model_files import read_json
from tasks.artifacts.manifest import MANIFEST
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer

if TYPE_CHECKING:
    from tasks.tokenizer.base import Tokenizer

CARD = "README.md"

RECORD = "export.json"
"""What was exported, with which options, and the digests of all files."""

VOCABULARY, VOCABULARY_SETTINGS = "tokenizer.json", "tokenizer_config.json"

_QWEN2_SPLITTER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)B", re.IGNORECASE)

_MULTIPLES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Exported:
    """An exported folder: the classes of `transformers` that load it, and whether it existed before."""

    class_name: str
    tokenizer_class: str
    reused: bool


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `5GB` or `500MB` (powers of ten, as in `transformers`); RecipeError for
    another form."""
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _MULTIPLES[match[2].upper()]) if match else 0
    if size < 1:
        raise RecipeError(f"--shard-size {text}: write a size such as 5GB or 500MB")
    return size


def export_transformers(
    root: Path, model: str, folder: Path, licence: str | None = None, shard_bytes: int | None = None
) -> Exported:
    """Write a model into a new folder: `config.json`, weights, two tokenizer files, the model card, and `export.json`.

    The folder appears complete or not at all. One that holds this export already, from the same weights with the same
    options, is left as it is. `licence` is the licence declared for the model; `shard_bytes` limits each file of
    weights. Raises InputError where the folder holds anything else, and RecipeError where no class of `transformers`
    computes the network, or where the licence conflicts with those of the text.
    """
    from flows.reports.model_card import find_model_run, model_card
    from model.code_digest import code_digest
    from model.huggingface.io import SHARD_BYTES, base_digest, export_network
    from model.huggingface.registry import fitting_family

    stored = open_stored(root, model)
    config = stored.config
    if FINETUNED in stored.description and config.architecture == "bert":
        raise InputError(
            f"export: the model in {stored.folder} is a fine-tuned BERT, whose task head cannot be exported. Export"
            f" the model that it was fine-tuned from."
        )
    record = find_model_run(root, model, stored.folder)
    if licence is not None:
        _check_licence(root, record, model, licence)
    class_name = fitting_family(config).class_name
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        chat = stored.description.get(FINETUNED, {}).get("chat")
        _write_vocabulary(staged, stored.tokenizer, context=config.context, chat=chat)
        tokenizer_class = _tokenizer_class(staged, class_name)
        if record is not None:
            card = model_card(record, root, licence, class_name, tokenizer_class)
            (staged / CARD).write_text(card, encoding="utf-8")
        asked: dict[str, Any] = {
            "model": base_digest(stored.folder),
            "class": class_name,
            "shard_bytes": shard_bytes or SHARD_BYTES,
            "code": code_digest(),
            "small_files": _digests(staged),
        }
        if folder.exists():
            if _is_export(folder, asked):
                return Exported(class_name, tokenizer_class, reused=True)
            if not folder.is_dir() or any(folder.iterdir()):
                raise InputError(
                    f"export: {folder} exists and is not empty; nothing was written, since it is not this model's"
                    f" export with these options. Name a new folder."
                )
        ids = special_ids(stored.tokenizer, with_decoder=config.architecture == "t5")
        if chat is not None:
            ids["eos_token_id"] = chat["end"]
        settings = {**ids, **(_tasks_as_text(stored.description) if config.architecture == "t5" else {})}
        export_network(staged, config, stored.weights, settings, asked["shard_bytes"])
        is_artifact = (stored.folder / MANIFEST).is_file()
        artifact = f"{stored.folder.parent.name}/{stored.folder.name}" if is_artifact else None
        written = {"artifact": artifact, "asked": asked, "files": _digests(staged)}
        (staged / RECORD).write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
        # mkdtemp gives access to the owner only.
        staged.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    sync_directory(folder.parent)
    return Exported(class_name, tokenizer_class, reused=False)


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: digest_file(path) for path in sorted(folder.iterdir())}


def _is_export(folder: Path, asked: dict[str, Any]) -> bool:
    """Return whether a folder holds the export that is asked for, with the bytes that were written."""
    if not (folder / RECORD).is_file():
        return False
    record = read_json(folder / RECORD)
    present = {path.name for path in folder.iterdir()}
    if record.get("asked") != asked or present != {RECORD, *record.get("files", ())}:
        return False
    return all(digest_file(folder / name) == digest for name, digest in record["files"].items())


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


def _tokenizer_class(folder: Path, class_name: str) -> str:
    """Return the class that gives the ids of the exported `tokenizer.json`.

    For a Qwen2 alone, `AutoTokenizer` of `transformers` 5 replaces the file's normaliser and splitter by Qwen's own.
    """
    parsed = read_json(folder / VOCABULARY)
    steps = (parsed.get("pre_tokenizer") or {}).get("pretokenizers") or [{}]
    of_qwen = steps[0].get("pattern") == {"Regex": _QWEN2_SPLITTER} and parsed.get("normalizer") == {"type": "NFC"}
    return "AutoTokenizer" if class_name != "Qwen2ForCausalLM" or of_qwen else "PreTrainedTokenizerFast"


def special_ids(tokenizer: "Tokenizer", *, with_decoder: bool) -> dict[str, int]:
    """Return the entries of `config.json` that name special tokens; a T5 decoder starts with padding."""
    begin = tokenizer.bos if tokenizer.bos >= 0 else tokenizer.eos
    ids = {"bos_token_id": begin, "eos_token_id": tokenizer.eos, "pad_token_id": tokenizer.pad}
    ids = {name: number for name, number in ids.items() if number >= 0}
    return {**ids, "decoder_start_token_id": tokenizer.pad} if with_decoder else ids
