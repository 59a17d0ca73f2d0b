"""Write a short recipe for a scanned folder, with what follows from its text; `all_keys` writes every key."""

import textwrap
from collections import Counter
from typing import Any, get_args

from flows.inspection.scan import FolderScan
from flows.inspection.sizes import EPOCHS, PublishedModel, Sizes, sizes, sizes_with_base
from flows.inspection.source_tables import (
    LARGEST_FILE,
    LINE,
    document_bytes,
    in_comment,
    source_names,
    source_tables,
    toml_value,
)
from flows.metrics.formatting import format_bytes, format_count, format_share
from model.config.machine import narrow_products
from tasks.common.text import counted
from tasks.sample.config import SampleConfig
from tasks.vocab.config import Language

BENCHMARKS = {
    "code": ("humaneval",),
    "en": ("hellaswag", "arc_easy", "lambada", "piqa", "boolq"),
    "it": ("xcopa_it",),
    "ru": ("parus", "xquad_ru"),
    "zh": ("xcopa_zh", "cmrc2018", "xquad_zh"),
}
"""Benchmarks that ship, by the language of the text."""

EXAMPLE_FILE = "items.jsonl"

LITTLE_BYTES, FEWEST_BYTES = 200_000, 300
"""Text that teaches little, and text that gives no vocabulary of the smallest size."""

FEW_DOCUMENTS = 5
"""At most a fifth of a source is held out."""

MOST_NAMED = 3

MUON_WIDTH = 256
"""Largest width of a network for which Muon's rate was tried."""

MUON: dict[str, dict[str, Any]] = {"train.optimizer": {"kind": "muon"}, "train.schedule": {"peak_lr": 0.015}}
"""Section -> settings of small networks, which learn more from few tokens by it than by AdamW."""

NARROW_WIDTH, BFLOAT16_UNITS = 96, {"amx_bf16", "avx512_bf16"}
"""Smallest width of a network for which bfloat16 is written, where the processor has units for it: forward and backward
passes in float32 took 1.0, 1.4 and 1.6 times as long at widths 64, 96 and 128. The demo learns as much (2.172 bits per
byte, in float32 2.176)."""


MOSTLY_TEXT = 0.6
"""Share of text in pages from which on `sample.slack` covers the markup."""

BASE_RATE, BASE_ROWS = 1e-4, 1
"""Peak learning rate of a training that continues from a published model, and rows that it computes at once."""


def write_short_recipe(scan: FolderScan, name: str, base: PublishedModel | None = None) -> str:
    """Return a recipe with what follows from the folder, and nothing that has a default; it runs unchanged.

    `base` is a published model that the run trains further.
    """
    total, chosen = sizes_of(scan, base)
    lines = [
        *_remark(
            f"{in_comment(scan.folder)}: {counted(sum(len(source.files) for source in scan.sources), 'file')}, about"
            f" {format_bytes(total)} of text. `bessemer init --all` writes every key with its help."
        ),
        *(
            line
            for remark in [*scan_remarks(scan, base), *_unread(scan)]
            for line in _remark(f"NOTE: {in_comment(remark)}")
        ),
        "format = 1",
        f"name = {toml_value(name)}",
        f"budget_tokens = {chosen.budget_tokens:_}    # tokens to train on: of about {format_count(chosen.tokens)},"
        f" each at most {EPOCHS} times",
        "",
    ]
    lines += source_tables(scan, explained=False)
    bad = max((source.bad_share for source in scan.sources), default=0.0)
    lines += [
        "[sample]",
        f"max_reject_share = {max(0.05, min(0.9, round(2 * bad, 2))):g}    # a run stops if more cannot be read",
        *(
            f"{key} = {toml_value(value)}    # of pages, much of which is markup"
            for key, value in settings_of_pages(scan).items()
        ),
        "",
        *(_new_model_lines(chosen) if base is None else _base_model_lines(scan, base)),
        *_benchmark_lines(scan),
    ]
    return "\n".join(lines) + "\n"


def _base_model_lines(scan: FolderScan, base: PublishedModel) -> list[str]:
    found = Counter(code for source in scan.sources for code in source.languages.elements())
    scripts = [code for code, _ in found.most_common() if code in get_args(Language)]
    lines: list[str] = []
    if scripts:
        others = f"; others: {', '.join(scripts[1:])}" if scripts[1:] else ""
        why = f"new tokens for text that the model's vocabulary spells in many{others}"
        lines += ["[vocab]", f"# extend = {{ {scripts[0]} = 4000 }}    # {why}", ""]
    lines += [
        f"[train]    # from {base.folder.name}, {format_count(base.parameters)} parameters, with its vocabulary",
        f"base_model = {toml_value(str(base.folder))}",
        f"micro_batch_rows = {BASE_ROWS}    # more are faster on a GPU and need more memory",
        f"schedule.peak_lr = {BASE_RATE}    # a higher one would overwrite what the model has learned",
        "",
    ]
    if base.context < base.longest_row:
        longest = f"the base reads up to {base.longest_row:,}; memory grows with them"
        lines += ["[train.model]", f"context = {base.context}    # tokens of a row, also of an export; {longest}", ""]
    return [*lines, *(_gate_lines(scan) if base.architecture == "gpt" else [])]


def _new_model_lines(chosen: Sizes) -> list[str]:
    return [
        "[vocab]",
        f"vocab_size = {chosen.vocab_size}",
        "",
        *_train_lines(chosen),
        f"[train.model]    # about {format_count(chosen.parameters)} parameters",
        *(f"{key} = {value}" for key, value in chosen_settings("train.model", chosen).items()),
        "",
    ]


def _train_lines(sizes: Sizes) -> list[str]:
    settings = [
        f"{section.removeprefix('train.')}.{key} = {toml_value(value)}"
        for section in MUON
        for key, value in chosen_settings(section, sizes).items()
    ]
    if settings:
        settings[0] += "    # it learns more from few tokens than the default, AdamW at 0.002"
    if narrow := chosen_settings("train", sizes):
        settings.append(f"dtype = {toml_value(narrow['dtype'])}    # faster on this processor, which has units for it")
    return ["[train]", *settings, ""] if settings else []


def chosen_settings(section: str, sizes: Sizes) -> dict[str, Any]:
    """Return the settings of a section that are not its defaults."""
    net = sizes.network
    if isinstance(net, PublishedModel):
        of_base: dict[str, dict[str, Any]] = {
            "sample": {"max_reject_share": 0.05},
            "train": {"base_model": str(net.folder), "micro_batch_rows": BASE_ROWS},
            "train.schedule": {"peak_lr": BASE_RATE},
            "train.model": {"context": net.context},
        }
        return of_base.get(section, {})
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


def settings_of_pages(scan: FolderScan) -> dict[str, dict[str, float]]:
    """Return `sample.tokens_per_byte` of the sources of which markup is a large part; empty where there are none.

    Sampling expects the same tokens of a byte in all others, and would leave pages out of which training then lacks the
    text.
    """
    bytes_per_token: float = SampleConfig.model_fields["bytes_per_token"].default
    yields = {
        name: float(f"{source.text_share / bytes_per_token:.3g}")
        for source, name in zip(scan.sources, source_names(scan.sources), strict=True)
        if source.text_share <= MOSTLY_TEXT
    }
    return {"tokens_per_byte": yields} if yields else {}


def sizes_of(scan: FolderScan, base: PublishedModel | None = None) -> tuple[float, Sizes]:
    """Return the bytes of text in a folder, and the sizes that follow from them and its characters, or from `base`."""
    total = sum(source.plain_bytes for source in scan.sources)
    if base is not None:
        return total, sizes_with_base(base, [(source.plain_bytes, source.samples) for source in scan.sources])
    characters = set().union(*(source.characters for source in scan.sources))
    return total, sizes(total, len(characters))


def _benchmark_lines(scan: FolderScan) -> list[str]:
    """Return a benchmark to switch on, with the names that suit the languages of the text."""
    languages: Counter[str] = Counter()
    for source in scan.sources:
        if source.format == "code":
            languages["code"] += round(source.plain_bytes)
        elif source.languages:
            languages[source.languages.most_common(1)[0][0]] += round(source.plain_bytes)
    known = [code for code, _ in languages.most_common() if code in BENCHMARKS] or ["en"]
    first, *others = BENCHMARKS[known[0]]
    more = f"; others: {', '.join(others)}" if others else ""
    return [
        "# [[benchmarks]]    # what it leaked into the text is cut out, and the model is scored on it",
        f"# task = {toml_value(first)}    # one that ships{more}",
        f'# path = {toml_value(EXAMPLE_FILE)}    # its items on this machine, or instead: source = "hub"',
    ]


def _gate_lines(scan: FolderScan) -> list[str]:
    """Return a gate to switch on, which compares a GPT with its base model."""
    return [
        "# [evaluate.gate]    # scores the base model too; a run whose model is worse by more than max_rise fails",
        f"# sources = {toml_value(source_names(scan.sources))}    # whose held-out text both are scored on",
        "# max_rise = 0.02    # share of the base model's bits per byte",
        "",
    ]


def scan_remarks(scan: FolderScan, base: PublishedModel | None = None) -> list[str]:
    """Return sentences about what may surprise in a run of the folder's recipe, each with what to do."""
    named = [*zip(scan.sources, source_names(scan.sources), strict=True)]
    remarks = [f"Of {name}, {nested}." for source, name in named if (nested := source.nested_remark())]
    total = sum(source.plain_bytes for source in scan.sources)
    count = sum(source.records.records for source in scan.sources)
    if total < LITTLE_BYTES:
        tried = "enough to try every stage, and too little to learn a language from"
        published = ", or continue training a published model (--base-model, docs/continue_training.md)"
        remarks.append(
            f"{format_bytes(total)} of text are {tried if total >= FEWEST_BYTES else 'too little for a run'}."
            f" Add text, megabytes at least{published if base is None else ''}."
        )
    if count < FEW_DOCUMENTS:
        remarks.append(
            f"There {'is one document' if count <= 1 else f'are {count:.0f} documents'}, so none can be held"
            f" out, and a run has no held-out figures. Split long files, for example:"
            f" split -C 100k --additional-suffix=.txt FILE PART-"
        )
    large = [
        file.path for source in scan.sources for file in source.files if document_bytes(source, file) > LARGEST_FILE
    ]
    if large:
        remarks.append(
            f"{large[0].name} is read as one document of more than {format_bytes(LARGEST_FILE)}, in memory as a whole,"
            f" which `max_file_bytes` of its source allows. Split it as above to have documents of it."
        )
    for source, name in named:
        if source.bad_share > 0:
            share = format_share(source.bad_share, 1, 0)
            remarks.append(f"{share} of the records of {name} that were looked at cannot be read.")
    return remarks


def _unread(scan: FolderScan) -> list[str]:
    names = [str(bad.path.relative_to(scan.folder)) for bad in scan.unreadable]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"Not read: {', '.join(names[:MOST_NAMED])}{more}; `bessemer init` shows why."] if names else []


def _remark(text: str) -> list[str]:
    return textwrap.wrap(text, LINE, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
