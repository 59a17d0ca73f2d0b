"""A commented recipe for what a survey found: every key that is set is explained, others show their default.

`#` stands before a setting that may be switched on as it is, `##` before words.
"""

import glob
import json
import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from flows.inspection.fields import BYTES_PER_TOKEN, EPOCHS, TOKENS_PER_PARAMETER, Sizes, choose_sizes
from flows.inspection.scan import ROOT_GROUP, FolderSurvey, SourceFound
from flows.metrics.formatting import format_bytes, format_count
from flows.recipe.resolve import MIXTURE_KEYS
from model.config.network import GPTConfig
from model.config.options import (
    BatchWarmupConfig,
    ClipConfig,
    LengthWarmupConfig,
    LossScaleConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from model.config.presets import KEY
from tasks.chunk.config import ChunkConfig
from tasks.clean.config import CleanConfig
from tasks.decontaminate.config import DecontaminateConfig
from tasks.dedup.config import DedupConfig
from tasks.evaluate.config import EvaluateConfig
from tasks.execution.machines import Machines
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import guess_format
from tasks.train.config import TrainStageConfig
from tasks.vocab.config import VocabConfig

ONE_LANGUAGE_SHARE = 0.9

WEIGHT_UNIT = 10_000
"""Weights are written in so many parts, and none is less than one."""

LINE = 116

MOST_UNREADABLE = 20

MOST_FIELDS_CHARS = 60

MOST_NAMED_FILES = 50

SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("sample", SampleConfig),
    ("clean", CleanConfig),
    ("dedup", DedupConfig),
    ("decontaminate", DecontaminateConfig),
    ("vocab", VocabConfig),
    ("chunk", ChunkConfig),
    ("train", TrainStageConfig),
    ("train.model", GPTConfig),
    ("train.optimizer", OptimizerConfig),
    ("train.clip", ClipConfig),
    ("train.loss_scale", LossScaleConfig),
    ("train.batch_warmup", BatchWarmupConfig),
    ("train.length_warmup", LengthWarmupConfig),
    ("train.schedule", ScheduleConfig),
    ("evaluate", EvaluateConfig),
    ("machines", Machines),
)

SAID_ONCE = frozenset(
    {
        "sources",
        "seed",
        "budget_tokens",
        "limit",
        "weights",
        "priorities",
        "row_length",
        "input_length",
        *MIXTURE_KEYS,
    }
)
"""Keys that several stages need and that a recipe says at its top."""

EXAMPLES: dict[tuple[str, str], str] = {
    ("", "temperature"): "3.33, instead of the weights of all sources",
    ("clean", "edits"): '["mojibake", "nfc", "email"]',
    ("clean", "rules"): '["gopher_words_min", "gopher_stop_words"]',
    ("clean", "extensions"): '{ path = "{recipe}", rules = ["my_rules:too_loud"] }',
    ("clean", "quality"): '{ good = ["SOURCE"] }',
    ("dedup", "repeated_bytes"): "200",
    ("vocab", "base"): '"{recipe}/spiece.model", instead of vocab_size',
    ("train", "base_model"): '"{recipe}/model"',
    ("train", "max_seconds"): "3600.0",
    ("train", "memory_limit"): "8000000000",
    ("train", "pause_share"): "0.25",
    ("train", "validation_steps"): "100",
    ("train.model", KEY): '"gpt2-small"',
    ("train.model", "embedding_width"): "32",
    ("train.model", "ffn_width"): "256",
    ("train.model", "mup_base_width"): "64",
    ("train.model", "mup_base_head_size"): "16, beside mup_base_width",
    ("machines", "address"): '"tcp://10.0.0.1:8786"',
    ("evaluate", "stride"): "64",
    ("evaluate", "gate"): '{ sources = ["SOURCE"] }, beside base_model',
}
"""Section and key -> a value for what no value switches off; SOURCE stands for the name of the first source."""


def write_recipe(survey: FolderSurvey, name: str) -> str:
    """The recipe's TOML text; `flows.recipe.load.load.load_recipe` accepts it as it stands."""
    characters = set().union(*(source.characters for source in survey.sources))
    total = sum(source.text_bytes for source in survey.sources)
    sizes = choose_sizes(total, len(characters))
    lines = [
        *_comment(
            f"A recipe for {survey.folder}: {sum(len(source.files) for source in survey.sources):,} files, about"
            f" {format_bytes(total)} of text. A line that begins with # and a key shows a setting at its default: take"
            f" the # away and change it. Lines that begin with ## explain. A recipe is code: a run of it reads the"
            f" files and addresses that it names and runs its extensions (docs/recipes.md; `bessemer run --untrusted`)."
        ),
        "format = 1                # version of the recipe format",
        f"name = {_toml(name)}    # shown with its runs",
        "seed = 1                  # every random choice follows from it",
        *_comment(
            f"Tokens that training reads, repetitions included. The text holds about {format_count(sizes.tokens)}"
            f" ({BYTES_PER_TOKEN} bytes a token, before cleaning); reading it up to {EPOCHS} times is almost as good as"
            f" new text (Muennighoff et al. 2023), and more than {TOKENS_PER_PARAMETER} tokens a parameter (Hoffmann et"
            f" al. 2022) would want a larger network."
        ),
        f"budget_tokens = {sizes.budget_tokens}",
    ]
    weights = _weights([source.text_bytes for source in survey.sources])
    names = _names(survey.sources)
    for key in MIXTURE_KEYS:
        lines += _explained("", SampleConfig, key, names)
    lines.append("")
    for source, weight, source_name in zip(survey.sources, weights, names, strict=True):
        lines += _source(survey, source, source_name, weight)
    if survey.unreadable:
        lines += _comment(f"Not read, {len(survey.unreadable)} files:")
        lines += [
            f"##   {_in_comment(bad.path.relative_to(survey.folder))}: {bad.hint}" for bad in survey.unreadable[:20]
        ]
        lines.append("")
    for section, model in SECTIONS:
        lines += _section(section, model, sizes, names)
    return "\n".join(lines) + "\n"


def _source(survey: FolderSurvey, source: SourceFound, name: str, weight: float) -> list[str]:
    about = "about " if not source.records.exact else ""
    lines = [
        f"[[sources]] # {len(source.files):,} files, {about}{source.records.records:,.0f} documents,"
        f" {format_bytes(source.text_bytes)} of text",
        f"name = {_toml(name)}",
        f"paths = {_toml(_paths(survey, source))}",
        f"format = {_toml(source.format)}",
        f"weight = {weight:.4f}    # share of the training tokens; here by size. All weights sum to 1",
    ]
    if source.fields is not None and source.fields.text is not None:
        lines.append(
            f"text_field = {_toml(source.fields.text)}    # fields: {_in_comment(', '.join(source.fields.all))}"
        )
        if source.fields.id is not None:
            lines.append(f"id_field = {_toml(source.fields.id)}    # names the documents however the files are split")
        if source.content != "text":
            lines.append(f"content = {_toml(source.content)}    # clean extracts its main text")
    if source.languages:
        told = ", ".join(f"{code} {count}" for code, count in source.languages.most_common(5))
        code, count = source.languages.most_common(1)[0]
        if count >= ONE_LANGUAGE_SHARE * source.languages.total():
            lines.append(f"language = {_toml(code)}    # of the texts looked at: {told}")
        else:
            lines.append(f"## language: mixed; of the texts looked at: {told}")
    excluded = _excluded(survey, source)
    if excluded:
        lines.append(f"exclude = {_toml(excluded)}")
    lines.append("# priority = 1            # of equal copies, the one from the source with the smaller number stays")
    lines += _comment(
        "licence is not set: what the text may be used for, as an SPDX expression; the model card tells it, and an"
        ' export whose own licence it stands against is refused. For example: licence = "CC-BY-SA-4.0"'
    )
    return [*lines, ""]


def _paths(survey: FolderSurvey, source: SourceFound) -> list[str]:
    """The subfolder, read by suffix; files of suffixes that tell no format, and of the root itself, by name.

    Named files come first: a folder's walk would pass over them, and a file counts where it is met first.
    """
    top = _top(survey, source)
    beside_others = source.group == ROOT_GROUP and any(other.group != ROOT_GROUP for other in survey.sources)
    untold = [file for file in source.files if guess_format(file.path.name)[0] != source.format]
    named = source.files if beside_others else untold
    told_by_folder = [] if beside_others or len(untold) == len(source.files) else [str(top)]
    if len(named) <= MOST_NAMED_FILES:
        return [*(str(file.path) for file in named), *told_by_folder]
    suffixes = {"".join(file.path.suffixes[-2:] if file.compression else file.path.suffixes[-1:]) for file in named}
    middle = "*" if beside_others else "**/*"
    patterns = [f"{glob.escape(str(top))}/{middle}{suffix}" for suffix in sorted(suffixes - {""})]
    bare = [str(file.path) for file in named if not file.path.suffix]
    return [*bare, *patterns, *told_by_folder]


def _top(survey: FolderSurvey, source: SourceFound) -> Path:
    return survey.folder if source.group == ROOT_GROUP else survey.folder / source.group


def _excluded(survey: FolderSurvey, source: SourceFound) -> list[str]:
    """Files that the paths would find and that cannot be read, as patterns; `@2/` marks those of a second root."""
    top = _top(survey, source)
    names = [
        glob.escape(bad.path.relative_to(top).as_posix())
        for bad in survey.unreadable
        if bad.path.is_relative_to(top) and guess_format(bad.path.name)[0] == source.format
    ]
    return [mask for name in names for mask in (name, f"@*/{name}")]


def _weights(sizes: list[float]) -> list[float]:
    total = sum(sizes) or 1.0
    parts = [max(1, round(WEIGHT_UNIT * amount / total)) for amount in sizes]
    parts[parts.index(max(parts))] += WEIGHT_UNIT - sum(parts)
    return [part / WEIGHT_UNIT for part in parts]


def _names(sources: list[SourceFound]) -> list[str]:
    groups = Counter(source.group for source in sources)
    names: list[str] = []
    for source in sources:
        base = source.format if source.group == ROOT_GROUP else source.group
        # A name has ASCII letters only; a folder named in another script is known by its language.
        language = "".join(code for code, _ in source.languages.most_common(1))
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", base).strip("_.-")[:50] or f"source_{language}".rstrip("_")
        if groups[source.group] > 1 and source.group != ROOT_GROUP:
            name = f"{name}_{source.format}"
        while name in names:
            name += "_2"
        names.append(name)
    return names


def _section(section: str, model: type[BaseModel], sizes: Sizes, names: list[str]) -> list[str]:
    chosen = _chosen(section, sizes)
    lines = [f"[{section}]"]
    if section == "train.model":
        lines += _comment(
            "A published network by name (`bessemer model presets`); keys of this table overrule its own."
        )
        lines.append(_example(section, KEY, names))
    for key, value in chosen.items():
        lines += [*_comment(_help(model, key)), f"{key} = {_toml(value)}"]
    for key, info in model.model_fields.items():
        if key in SAID_ONCE or key in chosen or _is_table(info.default):
            continue
        lines += _explained(section, model, key, names)
    return [*lines, ""]


def _explained(section: str, model: type[BaseModel], key: str, names: list[str]) -> list[str]:
    """What a key means, and its default behind a #; an example, in words, of a key that has none."""
    default = model.model_fields[key].get_default(call_default_factory=True)
    words = _comment(_help(model, key))
    if default not in (None, PydanticUndefined):
        return [*words, f"# {key} = {_toml(default)}"]
    return [*words, _example(section, key, names)]


def _example(section: str, key: str, names: list[str]) -> str:
    example = EXAMPLES[section, key].replace("SOURCE", names[0])
    return f"## {key} is not set by default; for example: {key} = {example}"


def _is_table(default: Any) -> bool:
    return isinstance(default, BaseModel)


def _chosen(section: str, sizes: Sizes) -> dict[str, Any]:
    net = sizes.network
    if section == "vocab":
        return {"vocab_size": sizes.vocab_size}
    if section == "train.model":
        return {"context": net.context, "layers": net.layers, "heads": net.heads, "width": net.width}
    if section == "sample":
        return {"max_reject_share": 0.05}
    return {}


def _help(model: type[BaseModel], key: str) -> str:
    return " ".join((model.model_fields[key].description or "").split())


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, LINE, initial_indent="## ", subsequent_indent="## ")


def _in_comment(text: object) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(text))


def _toml(value: Any) -> str:
    """A value in TOML: JSON's notation is TOML's for text, numbers, booleans and lists; tables need their own."""
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{json.dumps(str(key))} = {_toml(item)}" for key, item in value.items()) + " }"
            if value
            else "{}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
