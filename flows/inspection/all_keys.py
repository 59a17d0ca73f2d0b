"""Write a recipe for a scanned folder in which every key is explained and keys that are not set show their default.

`#` comments out a setting that can be enabled as it is; `##` begins an explanation.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from flows.inspection.recipe_writer import chosen_settings, settings_of_pages, sizes_of
from flows.inspection.scan import FolderScan
from flows.inspection.sizes import EPOCHS, TOKENS_PER_PARAMETER, PublishedModel, Sizes
from flows.inspection.source_tables import comment, in_comment, source_names, source_tables, toml_value
from flows.metrics.formatting import format_bytes, format_count
from flows.recipe.resolve import MIXTURE_KEYS, SHARED_KEYS
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.recipe.tables import described_fields
from model.config.network import GPTConfig
from model.config.presets import KEY
from model.config.rules import INDEPENDENT_SETTINGS
from tasks.execution.machines import Machines
from tasks.sample.config import SampleConfig
from tasks.vocab.config import TRAINING_FIELDS

MOST_UNREADABLE = 20


def _sections(place: str, model: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a table of the recipe and those within it, by their paths, without those of several machines: `machines` is
    written once, for all stages, and `hosts` needs two settings at once."""
    yield place, model
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel) and name not in ("machines", "hosts"):
            yield from _sections(f"{place}.{name}", type(field.default))


SECTIONS = [
    *(table for stage in STAGES for table in _sections(stage, Recipe.model_fields[stage].annotation)),
    ("machines", Machines),
]

NOT_IN_TABLES = (*SHARED_KEYS, "seed", "keep", "limit", "weights", "priorities", "row_length", "input_length")
"""Keys of stages that a recipe sets once, at its top, or that follow from others."""

EXAMPLES: dict[tuple[str, str], str] = {
    ("", "temperature"): "3.33, instead of the weights of all sources",
    ("clean", "edits"): '["mojibake", "nfc", "email"]',
    ("clean", "rules"): '["gopher_words_min", "gopher_stop_words"]',
    ("clean", "extensions"): '{ path = "{recipe}", rules = ["my_rules:too_loud"] }',
    ("clean.deny", "path"): '"{recipe}/deny.txt"',
    ("clean", "quality"): '{ good = ["SOURCE"] }',
    ("dedup", "repeated_bytes"): "200",
    ("decontaminate", "keep_heldout"): '"20261121T101500Z-ab12cd"',
    ("vocab", "base"): '"{recipe}/spiece.model", instead of vocab_size',
    ("train", "base_model"): '"{recipe}/model"',
    ("train", "max_seconds"): "3600.0",
    ("train", "memory_limit"): "8000000000",
    ("train", "pause_share"): "0.25",
    ("train", "validation_steps"): "100",
    ("train.guard", "ladder"): "[{ lr_factor = 0.5 }, { lr_factor = 0.25 }]",
    ("train.model", KEY): '"gpt2-small"',
    ("train.model", "experts"): "4, instead of muon",
    ("train.model", "embedding_width"): "32",
    ("train.model", "ffn_width"): "256",
    ("train.model", "kv_heads"): "2",
    ("train.model", "head_size"): "32",
    ("train.model", "rotary_scaling"): '{ kind = "linear", factor = 2.0 }',
    ("train.model", "window"): "64",
    ("train.model", "qkv_biases"): "true",
    ("train.model", "init_std"): "0.02",
    ("train.model", "mup_base_width"): "64",
    ("train.model", "mup_base_head_size"): "16, beside mup_base_width",
    ("machines", "address"): '"tcp://10.0.0.1:8786"',
    ("evaluate", "gate"): '{ sources = ["SOURCE"] }, beside base_model',
}
"""Section and key -> example of a key without a default; SOURCE is replaced by the name of the first source."""


_SETTLED_BY_BASE = {
    "vocab": ("base", "embedding_rows", *TRAINING_FIELDS),
    "train.model": [key for key in GPTConfig.model_fields if key not in INDEPENDENT_SETTINGS],
}
"""Section -> keys that a base model decides."""


def write_recipe(scan: FolderScan, name: str, base: PublishedModel | None = None) -> str:
    """Return the recipe's TOML text, which `flows.recipe.load.load_recipe` accepts unchanged; `base` is a published
    model that the run trains further."""
    total, chosen = sizes_of(scan, base)
    lines = [
        *comment(
            f"A recipe for {scan.folder}: {sum(len(source.files) for source in scan.sources):,} files, about"
            f" {format_bytes(total)} of text. A line that begins with # and a key shows a setting at its default: take"
            " the #"
            f" away and change it. Lines that begin with ## explain. A recipe is code: a run of it reads the"
            f" files and addresses that it names and runs its extensions (docs/recipes.md; `bessemer run --untrusted`)."
        ),
        "format = 1                # version of the recipe format",
        f"name = {toml_value(name)}    # shown with its runs",
        "seed = 1                  # every random choice follows from it",
        *comment(
            f"Tokens that training reads, repetitions included. The text holds about {format_count(chosen.tokens)}"
            f" ({chosen.bytes_per_token:.1f} bytes per token, before cleaning); reading it up to {EPOCHS} times is"
            f" almost as good as new text (Muennighoff et al. 2023), and more than {TOKENS_PER_PARAMETER} tokens per"
            f" parameter (Hoffmann et al. 2022) would need a larger network."
        ),
        f"budget_tokens = {chosen.budget_tokens}",
    ]
    names = source_names(scan.sources)
    for key in MIXTURE_KEYS:
        lines += _explained("", SampleConfig, key, names)
    lines += ["", *source_tables(scan, explained=True)]
    if scan.unreadable:
        lines += comment(f"Not read, {len(scan.unreadable)} files:")
        lines += [
            f"##   {in_comment(bad.path.relative_to(scan.folder))}: {bad.hint}"
            for bad in scan.unreadable[:MOST_UNREADABLE]
        ]
        lines.append("")
    for section, model in SECTIONS:
        settings = chosen_settings(section, chosen) | (settings_of_pages(scan) if section == "sample" else {})
        lines += _section(section, model, settings, chosen, names)
    return "\n".join(lines) + "\n"


def _section(section: str, model: type[BaseModel], chosen: dict[str, Any], sizes: Sizes, names: list[str]) -> list[str]:
    lines = [f"[{section}]"]
    settled = _SETTLED_BY_BASE.get(section, ()) if isinstance(sizes.network, PublishedModel) else ()
    if section == "train.model" and not settled:
        lines += comment("A published network by name (`bessemer model presets`); keys of this table override it.")
        lines.append(_example(section, KEY, names))
    for key, value in chosen.items():
        lines += [*comment(_help(model, key)), f"{key} = {toml_value(value)}"]
    for key, info in model.model_fields.items():
        if key in (*NOT_IN_TABLES, *settled, *chosen) or isinstance(info.default, BaseModel):
            continue
        lines += _explained(section, model, key, names)
    return [*lines, ""]


def _explained(section: str, model: type[BaseModel], key: str, names: list[str]) -> list[str]:
    """Return a key's help and its commented-out default, or an example where it has no default."""
    default = model.model_fields[key].get_default(call_default_factory=True)
    words = comment(_help(model, key))
    if default not in (None, PydanticUndefined):
        return [*words, f"# {key} = {toml_value(default)}"]
    return [*words, _example(section, key, names)]


def _help(model: type[BaseModel], key: str) -> str:
    return " ".join((described_fields(model)[key].description or "").split())


def _example(section: str, key: str, names: list[str]) -> str:
    example = EXAMPLES[section, key].replace("SOURCE", names[0])
    return f"## {key} is not set by default; for example: {key} = {example}"
