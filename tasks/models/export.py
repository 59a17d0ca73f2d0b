"""The stage export: a trained model in, a folder that `transformers` loads out."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from model.config.fields import WeightDtype
from model.digests import digest_bytes
from model.errors import InputError
from model.file_content import require_unchanged
from model.finetune.description import FINETUNED, ChatDescription, TemplateDescription
from model.model_files import MAX_VOCABULARY_BYTES, SHARD_BYTES, read_json
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.identity import PYTHON, UNICODE, canonical_json
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import ExportResult
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.models.load import (
    TOKENIZER_SETTINGS,
    ModelSource,
    StoredModel,
    open_source,
    published_origin,
    published_template,
)
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer

if TYPE_CHECKING:
    from tasks.tokenizer.base import Tokenizer

UNIT = "exported"

CARD = "README.md"

VOCABULARY = "tokenizer.json"

GENERATION = "generation_config.json"

_QWEN2_SPLITTER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

EXPORT = Stage(
    "export",
    roots=("tasks.models.export:build_export",),
    libraries=("numpy", "safetensors", "sentencepiece", "tokenizers", "torch", PYTHON, UNICODE),
)


@dataclass(frozen=True)
class OfPublished:
    """What an export takes over from the published model that training went on from."""

    template: TemplateDescription | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    """The content of `generation_config.json`; empty without one."""
    left_out: tuple[str, ...] = ()
    """What it has and the export does not, and why: sentences without full stop."""


class ExportConfig(StrictConfig):
    """Settings of an export."""

    shard_bytes: int = Field(default=SHARD_BYTES, ge=1)
    """Largest file of weights; a tensor that is larger has one to itself."""
    dtype: WeightDtype = "float32"
    """Type of the weights; 16 bits halve the files and round the weights."""


def build_export(
    context: RunContext,
    source: ModelSource,
    config: ExportConfig,
    card: str | None,
    published: OfPublished = OfPublished(),
) -> Artifact:
    """Build the files of `transformers` for the model of `source`, with the model card `card` if there is one, and what
    is taken over from the `published` model that its training went on from.

    Raises RecipeError where no class of `transformers` computes the network, or its type of weights cannot hold them.
    """

    def run(workspace: Workspace) -> StageReport:
        from model.huggingface.io import export_network

        finished = workspace.finished(UNIT)
        if finished is not None:
            return finished
        for sentence in published.left_out:
            context.note(EXPORT.name, f"left out: {sentence}")
        with require_unchanged(source.files), workspace.unit(UNIT) as unit:
            folder, stored = unit.folder, open_source(source)
            chat = chat_of(stored)
            write_tokenizer(folder, stored.tokenizer, context=stored.config.context, chat=chat or published.template)
            if published.generation:
                (folder / GENERATION).write_text(json.dumps(published.generation, indent=1, sort_keys=True) + "\n")
            if card is not None:
                (folder / CARD).write_text(card, encoding="utf-8")
            ids = special_ids(stored.tokenizer, with_decoder=stored.config.architecture == "t5")
            if chat is not None:
                ids["eos_token_id"] = chat["end"]
            tasks = _tasks_as_text(stored.description) if stored.config.architecture == "t5" else {}
            class_name = export_network(
                folder, stored.config, stored.weights, {**ids, **tasks}, config.shard_bytes, config.dtype
            )
            for path in sorted(folder.iterdir()):
                unit.add_file(path.name)
            loaded_by = tokenizer_class(folder, class_name)
            unit.report.facts = ExportResult(
                {"model": source.digest(), "class": class_name, "tokenizer_class": loaded_by}
            ).facts()
        return unit.report

    external = {**source.external(), **({"card": digest_bytes(card.encode())} if card is not None else {})}
    if published.template is not None or published.generation:
        taken_over = {"template": published.template, "generation": published.generation}
        external["published"] = digest_bytes(canonical_json(taken_over).encode())
    return build_artifact(context, EXPORT, config, source.parents, run, external)


def chat_of(stored: StoredModel) -> ChatDescription | None:
    """Return the chat template of a fine-tuned GPT, with the id that ends answers; None for other models."""
    return stored.description.get(FINETUNED, {}).get("chat")


def of_published(source: ModelSource) -> OfPublished:
    """Return what an export of a model takes over; nothing where it goes back to no published model."""
    try:
        folder = published_origin(source.folder)
    except InputError as error:
        return OfPublished(left_out=(f"chat template and {GENERATION} of the base model: {error}",))
    if folder is None:
        return OfPublished()
    tokenizer, left_out = source.tokenizer(), list[str]()
    template = published_template(folder, tokenizer)
    if template is not None and (other := _other_tokens(folder, tokenizer)):
        left_out.append(f"the chat template of {folder}, whose special tokens {other} have no or another id here")
        template = None
    generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    if missing := sorted(number for number in _token_ids(generation) if not 0 <= number < tokenizer.vocab_size):
        left_out.append(f"{folder / GENERATION}, whose token {missing[0]} does not exist")
        generation = {}
    return OfPublished(None if template is None else template.description(), generation, tuple(left_out))


def _other_tokens(folder: Path, tokenizer: "Tokenizer") -> str:
    """Return the names of special tokens of a folder of `transformers` that have no or another id in a vocabulary."""
    file, names = folder / VOCABULARY, tokenizer.special_names
    added = read_json(file, MAX_VOCABULARY_BYTES).get("added_tokens", []) if file.is_file() else []
    listed = read_json(folder / TOKENIZER_SETTINGS).get("added_tokens_decoder", {})
    added = [*added, *({"id": int(number), **token} for number, token in listed.items())]
    return ", ".join(
        sorted({one["content"] for one in added if one["special"] and names.get(one["content"]) != one["id"]})
    )


def _token_ids(generation: dict[str, Any]) -> Iterator[int]:
    """Yield the ids in a `generation_config.json`: those of named tokens, and of lists."""
    for name, value in generation.items():
        if isinstance(value, int) and name.endswith("_token_id"):
            yield value
        elif isinstance(value, list):
            yield from _numbers(value)


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int):
        yield value


def _tasks_as_text(description: dict[str, Any]) -> dict[str, Any]:
    """Return the input prefix of each task that a T5 was fine-tuned on, as published T5 models have it."""
    tasks = description.get(FINETUNED, {}).get("tasks", [])
    prefixes = {task["name"]: {"prefix": f"{task['name']} {task['fields'][0]}: "} for task in tasks}
    return {"task_specific_params": prefixes} if prefixes else {}


def write_tokenizer(
    folder: Path, tokenizer: "Tokenizer", *, context: int, chat: TemplateDescription | None = None
) -> None:
    """Write a vocabulary with its settings and chat template."""
    from tasks.tokenizer.base import MODEL_FILE
    from tasks.vocab.output import fast_tokenizer

    vocabulary = tokenizer.model  # All kinds but SentencePiece's are stored as such a file.
    if tokenizer.kind == SentencePieceTokenizer.kind:
        (folder / MODEL_FILE).write_bytes(tokenizer.model)
        vocabulary = fast_tokenizer(tokenizer.model, tokenizer.begin)
    (folder / VOCABULARY).write_bytes(vocabulary)
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
        named = {"bos_token": chat["bos_token"], "eos_token": chat["eos_token"]}
        settings |= {key: token for key, token in named.items() if token in tokenizer.special_names}
    (folder / TOKENIZER_SETTINGS).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")


def tokenizer_class(folder: Path, class_name: str) -> str:
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
