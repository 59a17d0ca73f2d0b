"""Write a recipe for a scanned folder: a short one with what follows from its text, or one in which every key is
explained and keys that are not set show their default.

In the second `#` comments out a setting that can be enabled as it is; `##` begins an explanation.
"""

import glob
import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from flows.inspection.file_head import StoredFile
from flows.inspection.scan import ROOT_GROUP, FolderScan, ScannedSource
from flows.inspection.sizes import EPOCHS, TOKENS_PER_PARAMETER, Sizes, sizes
from flows.inspection.unpack import INSTALLED
from flows.metrics.formatting import format_bytes, format_count
from flows.recipe.resolve import MIXTURE_KEYS, SHARED_KEYS
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from model.config.machine import narrow_products
from model.config.presets import KEY
from tasks.execution.machines import Machines
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import guess_format

ONE_LANGUAGE_SHARE = 0.9

WEIGHT_UNIT = 10_000
"""Weights are written as multiples of 1 / WEIGHT_UNIT, at least one each."""

LINE = 116

MOST_UNREADABLE = 20

MAX_NAMED_FILES = 50


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


def write_recipe(scan: FolderScan, name: str) -> str:
    """Return the recipe's TOML text, which `flows.recipe.load.load_recipe` accepts unchanged."""
    total, chosen = _sizes_of(scan)
    lines = [
        *_comment(
            f"A recipe for {scan.folder}: {sum(len(source.files) for source in scan.sources):,} files, about"
            f" {format_bytes(total)} of text. A line that begins with # and a key shows a setting at its default: take"
            " the #"
            f" away and change it. Lines that begin with ## explain. A recipe is code: a run of it reads the"
            f" files and addresses that it names and runs its extensions (docs/recipes.md; `bessemer run --untrusted`)."
        ),
        "format = 1                # version of the recipe format",
        f"name = {_toml(name)}    # shown with its runs",
        "seed = 1                  # every random choice follows from it",
        *_comment(
            f"Tokens that training reads, repetitions included. The text holds about {format_count(chosen.tokens)}"
            f" ({chosen.bytes_per_token:.1f} bytes per token, before cleaning); reading it up to {EPOCHS} times is"
            f" almost as good as new text (Muennighoff et al. 2023), and more than {TOKENS_PER_PARAMETER} tokens per"
            f" parameter (Hoffmann et al. 2022) would need a larger network."
        ),
        f"budget_tokens = {chosen.budget_tokens}",
    ]
    weights = _weights([source.text_bytes for source in scan.sources])
    names = _names(scan.sources)
    for key in MIXTURE_KEYS:
        lines += _explained("", SampleConfig, key, names)
    lines.append("")
    for source, weight, source_name in zip(scan.sources, weights, names, strict=True):
        lines += _source(scan, source, source_name, weight, explained=True)
    if scan.unreadable:
        lines += _comment(f"Not read, {len(scan.unreadable)} files:")
        lines += [
            f"##   {_in_comment(bad.path.relative_to(scan.folder))}: {bad.hint}"
            for bad in scan.unreadable[:MOST_UNREADABLE]
        ]
        lines.append("")
    for section, model in SECTIONS:
        lines += _section(section, model, chosen, names)
    return "\n".join(lines) + "\n"


def _weights(sizes: list[float]) -> list[float]:
    total = sum(sizes) or 1.0
    parts = [max(1, round(WEIGHT_UNIT * amount / total)) for amount in sizes]
    parts[parts.index(max(parts))] += WEIGHT_UNIT - sum(parts)
    return [part / WEIGHT_UNIT for part in parts]


def _names(sources: list[ScannedSource]) -> list[str]:
    groups = Counter(source.group for source in sources)
    names: list[str] = []
    for source in sources:
        base = source.format if source.group == ROOT_GROUP else source.group
        if source.is_apart:
            base = source.files[0].path.name.partition(".")[0]
        # A name has ASCII letters only; a folder named in another script is named by its language.
        language = "".join(code for code, _ in source.languages.most_common(1))
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", base).strip("_.-")[:50] or f"source_{language}".rstrip("_")
        if groups[source.group] > 1 and source.group != ROOT_GROUP and not source.is_apart:
            name = f"{name}_{source.format}"
        while name in names:
            name += "_2"
        names.append(name)
    return names


def _explained(section: str, model: type[BaseModel], key: str, names: list[str]) -> list[str]:
    """Return a key's help and its commented-out default, or an example where it has no default."""
    default = model.model_fields[key].get_default(call_default_factory=True)
    words = _comment(_help(model, key))
    if default not in (None, PydanticUndefined):
        return [*words, f"# {key} = {_toml(default)}"]
    return [*words, _example(section, key, names)]


def _help(model: type[BaseModel], key: str) -> str:
    return " ".join((model.model_fields[key].description or "").split())


def _example(section: str, key: str, names: list[str]) -> str:
    example = EXAMPLES[section, key].replace("SOURCE", names[0])
    return f"## {key} is not set by default; for example: {key} = {example}"


def _source(scan: FolderScan, source: ScannedSource, name: str, weight: float, *, explained: bool) -> list[str]:
    """Return the table of a source, with what each key means where `explained`."""

    def line(key: str, value: Any, why: str) -> str:
        return f"{key} = {_toml(value)}{f'    # {why}' if explained and why else ''}"

    about = "" if source.records.exact else "about "
    mean = source.text_bytes / max(1.0, source.records.records)
    kind = KINDS.get(source.content, KINDS.get(source.format, "short posts" if mean < SHORT_BYTES else "prose"))
    files, documents = _counted(len(source.files), "file"), _counted(source.records.records, "document")
    lines = [
        f"[[sources]]    # {files}, {about}{documents}, {format_bytes(source.text_bytes)}: {kind}",
        line("name", name, ""),
        line("paths", _paths(scan, source), ""),
        line("format", source.format, ""),
        f"weight = {weight:.4f}    # share of the training tokens, here by bytes of text; all sum to 1",
    ]
    if source.fields is not None and source.fields.text is not None:
        lines.append(line("text_field", source.fields.text, f"fields: {_in_comment(', '.join(source.fields.all))}"))
        if source.fields.id is not None:
            lines.append(line("id_field", source.fields.id, "names the documents however the files are split"))
        if explained and (nested := source.nested_remark()):
            lines += _comment(_in_comment(nested))
        if source.content != "text":
            lines.append(line("content", source.content, "clean extracts its main text"))
    if source.languages:
        listed = ", ".join(f"{code} {count}" for code, count in source.languages.most_common(5))
        code, count = source.languages.most_common(1)[0]
        if count >= ONE_LANGUAGE_SHARE * source.languages.total():
            lines.append(line("language", code, f"of the sampled texts: {listed}"))
        elif explained:
            lines.append(f"## language: mixed; of the sampled texts: {listed}")
    if excluded := _excluded(scan, source):
        lines.append(line("exclude", excluded, ""))
    largest = max(_unpacked(source, file) for file in source.files)
    if largest > LARGEST_FILE:
        lines.append(line("max_file_bytes", 1 << math.ceil(math.log2(2 * largest)), ""))
    if explained:
        lines.append("# priority = 1    # of equal copies, the one from the source with the smaller number stays")
        lines += _comment(
            "licence is not set: the licence of the text as an SPDX expression; the model card states it, and an export"
            ' whose own licence conflicts with it is refused. For example: licence = "CC-BY-SA-4.0"'
        )
    return [*lines, ""]


def _counted(number: float, noun: str) -> str:
    return f"{number:,.0f} {noun}{'' if round(number) == 1 else 's'}"


def _paths(scan: FolderScan, source: ScannedSource) -> list[str]:
    """Return the subfolder, which is read by suffix, and files of unknown suffixes or of the root itself by name.

    Named files come first, because a file belongs to the first path that matches it.
    """
    top = _top(scan, source)
    has_subfolders = source.group == ROOT_GROUP and any(other.group != ROOT_GROUP for other in scan.sources)
    unknown = [file for file in source.files if guess_format(file.path.name)[0] != source.format]
    named = source.files if has_subfolders or source.is_apart else unknown
    folders = [] if has_subfolders or source.is_apart or len(unknown) == len(source.files) else [str(top)]
    if len(named) <= MAX_NAMED_FILES or source.is_apart:
        return [*(str(file.path) for file in named), *folders]
    suffixes = {_suffix(file) for file in named}
    middle = "*" if has_subfolders else "**/*"
    patterns = [f"{glob.escape(str(top))}/{middle}{suffix}" for suffix in sorted(suffixes - {""})]
    bare = [str(file.path) for file in named if not file.path.suffix]
    return [*bare, *patterns, *folders]


def _suffix(file: StoredFile) -> str:
    return "".join(file.path.suffixes[-2:] if file.compression else file.path.suffixes[-1:])


def _top(scan: FolderScan, source: ScannedSource) -> Path:
    return scan.folder if source.group == ROOT_GROUP else scan.folder / source.group


def _in_comment(text: object) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(text))


def _excluded(scan: FolderScan, source: ScannedSource) -> list[str]:
    """Return patterns of files that the paths would match and that cannot be read, are of another source, or in folders
    of packages; `@2/` is the prefix of a second root."""
    if source.is_apart:
        return []
    top = _top(scan, source)
    apart = [file.path for other in scan.sources if other.is_apart for file in other.files]
    names = [
        glob.escape(path.relative_to(top).as_posix())
        for path in [*(bad.path for bad in scan.unreadable), *apart, *scan.unpacked]
        if path.is_relative_to(top) and guess_format(path.name)[0] == source.format
    ]
    packages = [f"*/{name}/*" for name in sorted(scan.installed) if name in INSTALLED]
    built = [scan.folder / name for name in sorted(scan.installed) if name not in INSTALLED]
    names += [f"{glob.escape(path.relative_to(top).as_posix())}/*" for path in built if path.is_relative_to(top)]
    return [*packages, *(mask for name in names for mask in (name, f"@*/{name}"))]


def _section(section: str, model: type[BaseModel], sizes: Sizes, names: list[str]) -> list[str]:
    chosen = _chosen(section, sizes)
    lines = [f"[{section}]"]
    if section == "train.model":
        lines += _comment("A published network by name (`bessemer model presets`); keys of this table override it.")
        lines.append(_example(section, KEY, names))
    for key, value in chosen.items():
        lines += [*_comment(_help(model, key)), f"{key} = {_toml(value)}"]
    for key, info in model.model_fields.items():
        if key in NOT_IN_TABLES or key in chosen or isinstance(info.default, BaseModel):
            continue
        lines += _explained(section, model, key, names)
    return [*lines, ""]


def _chosen(section: str, sizes: Sizes) -> dict[str, Any]:
    net = sizes.network
    if section == "vocab":
        return {"vocab_size": sizes.vocab_size}
    if section == "train.model":
        return {"context": net.context, "layers": net.layers, "heads": net.heads, "width": net.width}
    if section == "sample":
        return {"max_reject_share": 0.05}
    if section == "train" and net.width >= NARROW_WIDTH and BFLOAT16_UNITS & {*narrow_products({}).split("+")}:
        return {"dtype": "bfloat16"}
    if net.width <= MUON_WIDTH and section in MUON:
        return MUON[section]
    return {}


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, LINE, initial_indent="## ", subsequent_indent="## ")


def _toml(value: Any) -> str:
    """Return a value in TOML, whose notation is that of JSON except for tables."""
    if isinstance(value, dict) and value:
        return f"{{ {', '.join(f'{json.dumps(str(key))} = {_toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


KINDS = {
    "code": "source code",
    "html": "web pages",
    "warc": "web pages",
    "mediawiki": "articles of a wiki",
    "wikitext": "articles of a wiki",
    "markdown": "Markdown",
}
"""Format, or content of a text field -> what its documents mostly are; clean decides for each document."""

SHORT_BYTES = 400
"""Mean size below which documents are called short posts."""

BENCHMARKS = {
    "code": ("humaneval",),
    "en": ("hellaswag", "arc_easy", "lambada", "piqa", "boolq"),
    "it": ("xcopa_it",),
    "ru": ("parus", "xquad_ru"),
    "zh": ("xcopa_zh", "cmrc2018", "xquad_zh"),
}
"""Benchmarks that ship, by the language of the text."""

LITTLE_BYTES, FEWEST_BYTES = 200_000, 300
"""Text that teaches little, and text that gives no vocabulary of the smallest size."""

MUON_WIDTH = 256
"""Largest width of a network for which Muon's rate was tried."""

MUON: dict[str, dict[str, Any]] = {"train.optimizer": {"kind": "muon"}, "train.schedule": {"peak_lr": 0.015}}
"""Section -> settings of small networks, which learn more from few tokens by it than by AdamW."""

NARROW_WIDTH, BFLOAT16_UNITS = 96, {"amx_bf16", "avx512_bf16"}
"""Smallest width of a network for which bfloat16 is written, where the processor has units for it: forward and backward
passes in float32 took 1.0, 1.4 and 1.6 times as long at widths 64, 96 and 128. The demo learns as much (2.172 bits per
byte, in float32 2.176)."""

EXAMPLE_FILE = "items.jsonl"


def write_short_recipe(scan: FolderScan, name: str) -> str:
    """Return a recipe with what follows from the folder, and nothing that has a default; it runs unchanged."""
    total, chosen = _sizes_of(scan)
    lines = [
        *_remark(
            f"{_in_comment(scan.folder)}: {_counted(sum(len(source.files) for source in scan.sources), 'file')}, about"
            f" {format_bytes(total)} of text. `bessemer init --all` writes every key with its help."
        ),
        *(line for remark in [*scan_remarks(scan), *_unread(scan)] for line in _remark(f"NOTE: {_in_comment(remark)}")),
        "format = 1",
        f"name = {_toml(name)}",
        f"budget_tokens = {chosen.budget_tokens:_}    # tokens to train on: of about {format_count(chosen.tokens)},"
        f" each at most {EPOCHS} times",
        "",
    ]
    weights, names = _weights([source.text_bytes for source in scan.sources]), _names(scan.sources)
    for source, weight, source_name in zip(scan.sources, weights, names, strict=True):
        lines += _source(scan, source, source_name, weight, explained=False)
    bad = max((source.bad_share for source in scan.sources), default=0.0)
    net = chosen.network
    lines += [
        "[sample]",
        f"max_reject_share = {max(0.05, min(0.9, round(2 * bad, 2))):g}    # a run stops if more cannot be read",
        "",
        "[vocab]",
        f"vocab_size = {chosen.vocab_size}",
        "",
        *_train_lines(chosen),
        f"[train.model]    # about {format_count(chosen.parameters)} parameters",
        *(f"{key} = {getattr(net, key)}" for key in ("context", "layers", "heads", "width")),
        "",
        *_benchmark_lines(scan),
    ]
    return "\n".join(lines) + "\n"


def _train_lines(sizes: Sizes) -> list[str]:
    settings = [
        f"{section.removeprefix('train.')}.{key} = {_toml(value)}"
        for section in MUON
        for key, value in _chosen(section, sizes).items()
    ]
    if settings:
        settings[0] += "    # it learns more from few tokens than the default, AdamW at 0.002"
    if narrow := _chosen("train", sizes):
        settings.append(f"dtype = {_toml(narrow['dtype'])}    # faster on this processor, which has units for it")
    return ["[train]", *settings, ""] if settings else []


def _sizes_of(scan: FolderScan) -> tuple[float, Sizes]:
    """Return the bytes of text in a folder, and the sizes that follow from them and from its characters."""
    characters = set().union(*(source.characters for source in scan.sources))
    total = sum(source.text_bytes for source in scan.sources)
    return total, sizes(total, len(characters))


def _remark(text: str) -> list[str]:
    return textwrap.wrap(text, LINE, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def scan_remarks(scan: FolderScan) -> list[str]:
    """Return sentences about what may surprise in a run of the folder's recipe, each with what to do."""
    named = [*zip(scan.sources, _names(scan.sources), strict=True)]
    remarks = [f"Of {name}, {nested}." for source, name in named if (nested := source.nested_remark())]
    total = sum(source.text_bytes for source in scan.sources)
    documents = sum(source.records.records for source in scan.sources)
    if total < LITTLE_BYTES:
        tried = "enough to try every stage, and too little to learn a language from"
        remarks.append(
            f"{format_bytes(total)} of text are {tried if total >= FEWEST_BYTES else 'too little for a run'}."
            f" Add text, megabytes at least, or continue training a released model (train.base_model,"
            f" docs/continue_training.md)."
        )
    if documents < FEW_DOCUMENTS:
        remarks.append(
            f"There {'is one document' if documents <= 1 else f'are {documents:.0f} documents'}, so none can be held"
            f" out, and a run has no held-out figures. Split long files, for example:"
            f" split -C 100k --additional-suffix=.txt FILE PART-"
        )
    large = [file.path for source in scan.sources for file in source.files if _unpacked(source, file) > LARGEST_FILE]
    if large:
        remarks.append(
            f"{large[0].name} is read as one document of more than {format_bytes(LARGEST_FILE)}, in memory as a whole,"
            f" which `max_file_bytes` of its source allows. Split it as above to have documents of it."
        )
    for source, name in named:
        if source.bad_share > 0:
            remarks.append(f"{source.bad_share:.0%} of the records of {name} that were looked at cannot be read.")
    return remarks


def _unread(scan: FolderScan) -> list[str]:
    names = [str(bad.path.relative_to(scan.folder)) for bad in scan.unreadable]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"Not read: {', '.join(names[:MOST_NAMED])}{more}; `bessemer init` shows why."] if names else []


MOST_NAMED = 3

FEW_DOCUMENTS = 5
"""At most a fifth of a source is held out."""

LARGEST_FILE = Source.model_fields["max_file_bytes"].default

ONE_DOCUMENT_FORMATS = ("text", "markdown", "wikitext", "html", "code")


def _unpacked(source: ScannedSource, file: StoredFile) -> float:
    """Return the estimated bytes of a file that is read as one document; 0 for files of records."""
    growth = source.text_bytes / source.stored_bytes if source.stored_bytes else 1.0
    return file.size * max(1.0, growth) if source.format in ONE_DOCUMENT_FORMATS else 0.0


def _benchmark_lines(scan: FolderScan) -> list[str]:
    """Return a benchmark to switch on, with the names that suit the languages of the text."""
    languages: Counter[str] = Counter()
    for source in scan.sources:
        if source.format == "code":
            languages["code"] += round(source.text_bytes)
        elif source.languages:
            languages[source.languages.most_common(1)[0][0]] += round(source.text_bytes)
    known = [code for code, _ in languages.most_common() if code in BENCHMARKS] or ["en"]
    first, *others = BENCHMARKS[known[0]]
    more = f"; others: {', '.join(others)}" if others else ""
    return [
        "# [[benchmarks]]    # what it leaked into the text is cut out, and the model is scored on it",
        f"# task = {_toml(first)}    # one that ships{more}",
        f'# path = {_toml(EXAMPLE_FILE)}    # its items on this machine, or instead: source = "hub"',
    ]
