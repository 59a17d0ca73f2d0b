"""Check a recipe's sources on a sample of their text: fields, encodings, kinds, languages, what cleaning would drop.

Reads at most `MOST_BYTES` in all, counted after decompression, however large the sources are, from files spread evenly
over each source. The sample goes through the reader and the clean stage as in a run, so verdicts are theirs. Quality
filters and classifiers that a run trains itself are not part of it.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from flows.metrics.escaping import escaped, escaped_line
from flows.metrics.formatting import format_bytes, format_share
from flows.planning.preconditions import check_benchmarks, check_starting_points, export_remark, find_source_files
from flows.recipe.load import quoted
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from model.errors import BessemerError
from tasks.artifacts.results import CleanResult
from tasks.artifacts.tables.ledger import DROP
from tasks.clean.config import CleanConfig
from tasks.clean.edits.html import html_to_text
from tasks.clean.kernels.structure_counts import SHORT_LINE
from tasks.clean.pipeline import clean_part
from tasks.clean.stage import read_user_resources
from tasks.common.text import counted
from tasks.sample.bounded_reader import BoundedReader, Bounds
from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.document_columns import DocumentColumns, document_id
from tasks.sample.first_records import find_mismatch
from tasks.sample.formats import named_record
from tasks.sample.readers.records import BadRecord
from tasks.sample.rejects import is_record

MOST_BYTES = 64 * 1024**2
MOST_FILES = 256
"""Files of a source that are looked at."""
MOST_EXAMPLES = 3
"""Dropped documents that are shown for each rule."""
EXCERPT_CHARACTERS = 300
SHOWN_CHARACTERS = 100
"""Of an excerpt; `--json` has the whole."""
RULES_OF_PAGES = ("kind_content", "kind_page_words")
"""Rules that drop menus and titles, and verse that looks like them."""
MOST_REASONS = 10
"""Reasons of rejection that are printed for each source."""


@dataclass(frozen=True)
class Example:
    """A document that would be dropped: its file and record, what the rule measured, and how its text begins."""

    path: str
    record: int
    value: float | None
    limit: float | None
    excerpt: str


@dataclass
class RuleDrops:
    """What one rule drops of a sample."""

    rule: str
    documents: int = 0
    bytes: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass
class Unreadable:
    """Records that cannot be read for one reason, and where the first is."""

    reason: str
    first: str
    records: int = 1


@dataclass
class SourceCheck:
    """A source's sample: sizes in UTF-8 bytes of text, kinds and languages by bytes and documents."""

    source: str
    place: str
    """The file of the recipe, and the line where the source begins."""
    files: int
    files_read: int = 0
    documents: int = 0
    bytes: int = 0
    unseen_files: int = 0
    """Files whose first document is longer than what is read of a file."""
    problem: str = ""
    """Why no record can be read, or none has what the recipe names; empty where all is well."""
    unreadable: list[Unreadable] = field(default_factory=list)
    encodings: dict[str, int] = field(default_factory=dict)
    """Encoding -> documents, of files that are not UTF-8."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Kind of text -> bytes."""
    languages: dict[str, int] = field(default_factory=dict)
    """Language -> documents that are kept."""
    short_lined: int = 0
    """Documents of lines that are short, of which rules for menus and titles would drop `short_lined_drops`."""
    short_lined_drops: int = 0
    drops: list[RuleDrops] = field(default_factory=list)
    """The rule that drops most bytes first."""

    @property
    def unread_times(self) -> float:
        """How many times as many files there are as were read."""
        return self.files / max(1, self.files_read)

    @property
    def dropped_bytes(self) -> int:
        """Bytes of text that cleaning would drop."""
        return sum(rule.bytes for rule in self.drops)


@dataclass(frozen=True)
class RecipeCheck:
    """The checks of all sources, what is wrong with benchmarks, and why the network cannot be exported, if so."""

    sources: tuple[SourceCheck, ...]
    benchmark_problem: str = ""
    export_remark: str = ""
    losses: tuple[str, ...] = ()
    """Where so much would be lost that a run stops, or reads nothing of a source."""

    @property
    def is_well(self) -> bool:
        """Whether a run could read every source and benchmark."""
        return not self.benchmark_problem and not any(source.problem for source in self.sources)


def check_recipe(recipe: Recipe, most_bytes: int = MOST_BYTES) -> RecipeCheck:
    """Return what a sample of at most `most_bytes` shows of each source.

    Raises InputError or RecipeError where files of a source, or of the clean stage, cannot be found, or a run could not
    start from its base vocabulary or model.
    """
    check_starting_points(recipe, STAGES)
    listings = find_source_files(recipe)
    share = most_bytes // max(1, len(listings))
    sources = tuple(_check_source(recipe, listing, share) for listing in listings)
    try:
        check_benchmarks(recipe)
        problem = ""
    except BessemerError as error:
        problem = str(error)
    return RecipeCheck(sources, problem, export_remark(recipe), tuple(_losses(sources, recipe)))


def _losses(sources: tuple[SourceCheck, ...], recipe: Recipe) -> Iterator[str]:
    readable = sum(source.documents * source.unread_times for source in sources)
    lost = sum(
        bad.records * source.unread_times for source in sources for bad in source.unreadable if is_record(bad.reason)
    )
    allowed = recipe.sample.max_reject_share
    if lost > allowed * (lost + readable):
        yield (
            f"about {lost / (lost + readable):.0%} of all records cannot be read, and a run stops above [sample]"
            f" max_reject_share = {allowed:g}. Repair or exclude their files, or raise it to go on without them."
        )
    for source in sources:
        dropped = sum(rule.documents for rule in source.drops)
        allowed_share = recipe.clean.wipe_out_overrides.get(source.source, recipe.clean.wipe_out_limit)
        if dropped > allowed_share * source.documents:
            main = max(source.drops, key=lambda rule: rule.documents)
            yield (
                f"cleaning would drop {dropped / source.documents:.0%} of the documents of {source.source}, most by"
                f" {main.rule}: a run would keep next to nothing of it, or stop. Look at the documents"
                f" above; another kind ([clean.kinds]) or preset ([clean.presets]) has other rules."
            )
        if source.short_lined_drops and 2 * source.short_lined > source.documents:
            yield (
                f"most documents of {source.source} consist of short lines, and cleaning would drop"
                f" {source.short_lined_drops:,} of them, for it takes them for menus or titles. If they are poems or"
                f' songs, write under [clean]: kinds = {{ {quoted(source.source)} = "verse" }}'
            )


def _check_source(recipe: Recipe, listing: SourceFiles, most_bytes: int) -> SourceCheck:
    name = listing.source.name
    checked = SourceCheck(name, recipe.place(("sources",), name, "name"), len(listing.files))
    mismatch = find_mismatch(listing)
    if mismatch is not None:
        place = recipe.place(("sources",), name, mismatch.setting)
        checked.problem = f"{place}: {mismatch.problem}"
    sample = DocumentColumns()
    reader = BoundedReader(listing.source, listing.files, Bounds(MOST_FILES, most_bytes))
    for file, records in reader.files():
        for found in records:
            if isinstance(found, BadRecord):
                _add_unreadable(checked, file, found)
                continue
            text = found.text.encode()
            doc_id = document_id(name, file.relative, found.number, found.key)
            sample.add(doc_id, listing.source, file, found, text)
            checked.documents += 1
            checked.bytes += len(text)
            if found.encoding is not None:
                checked.encodings[found.encoding] = checked.encodings.get(found.encoding, 0) + 1
    checked.files_read, checked.unseen_files = reader.files_read, len(reader.unseen)
    if checked.documents:
        _clean(checked, sample, recipe.clean)
    return checked


def _add_unreadable(checked: SourceCheck, file: InputFile, bad: BadRecord) -> None:
    for known in checked.unreadable:
        if known.reason == bad.reason:
            known.records += 1
            return
    place = f"{file.relative}, {named_record(file.relative, bad.number)}, byte {bad.byte}"
    checked.unreadable.append(Unreadable(bad.reason, place))


def _clean(checked: SourceCheck, sample: DocumentColumns, config: CleanConfig) -> None:
    """Add what the clean stage finds and drops."""
    documents = sample.table()
    resources, _ = read_user_resources(config)
    result = clean_part(config, documents, 0, resources=resources)
    found = CleanResult.of(result.report)
    checked.kinds, checked.languages = _largest_first(found.kind_bytes_read), _largest_first(found.languages)
    row_of = {doc_id: row for row, doc_id in enumerate(sample.doc_ids)}
    short_lined = [_has_short_lines(text.decode()) for text in sample.texts]
    checked.short_lined = sum(short_lined)
    drops: dict[str, RuleDrops] = {}
    for line in result.tables["ledger"].to_pylist():
        if line["action"] != DROP:
            continue
        row = row_of[line["doc_id"]]
        if line["rule"] in RULES_OF_PAGES:
            checked.short_lined_drops += short_lined[row]
        rule = drops.setdefault(line["rule"], RuleDrops(line["rule"]))
        rule.documents += 1
        rule.bytes += len(sample.texts[row])
        if len(rule.examples) < MOST_EXAMPLES:
            place = sample.paths[row], sample.records[row]
            excerpt = _readable(sample, row, config)[:EXCERPT_CHARACTERS]
            rule.examples.append(Example(*place, line["value"], line["limit"], excerpt))
    checked.drops = sorted(drops.values(), key=lambda rule: (-rule.bytes, rule.rule))


def _has_short_lines(text: str) -> bool:
    """Return whether a text has three lines or more, nine of ten of which are short."""
    lengths = [len(line) for line in map(str.strip, text.splitlines()) if line]
    return len(lengths) >= 3 and sum(length <= SHORT_LINE for length in lengths) >= 0.9 * len(lengths)


def _readable(sample: DocumentColumns, row: int, config: CleanConfig) -> str:
    """Return a document's text; of a web page the main text, since its first lines name scripts and styles."""
    text = sample.texts[row].decode()
    if json.loads(sample.metas[row] or "{}").get("format") != "html":
        return text
    return html_to_text(text, config.html_extractor)[0] or text


def _largest_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(Counter(counts).most_common())


def print_check(check: RecipeCheck, console: Console) -> None:
    """Print for each source what a sample shows, what cleaning would drop, and documents to read."""
    for source in check.sources:
        _print_source_check(source, console)
    if check.benchmark_problem:
        console.print(f"[red]benchmarks[/] {escape(check.benchmark_problem)}", soft_wrap=True)
    for remark in (*check.losses, *filter(None, [check.export_remark])):
        console.print(f"[yellow]![/] {escape(remark)}", soft_wrap=True)
    console.print("\nA run decides about every document: [bold]bessemer data peek clean[/] shows them afterwards.")


def _print_source_check(source: SourceCheck, console: Console) -> None:
    console.print(Text(f"{source.source}  ({source.place})", style="bold"), soft_wrap=True)
    if source.problem:
        console.print(f"  [red]cannot be read[/] {escape(source.problem)}", soft_wrap=True)
    size = format_bytes(source.bytes)
    files = f"{source.files_read:,} of {source.files:,} files" if source.files > 1 else "1 file"
    console.print(f"  {counted(source.documents, 'document')}, {size}, from {files}")
    if source.unseen_files:
        console.print(
            f"  [yellow]not looked at[/] {counted(source.unseen_files, 'file')}, whose first document is longer than"
            f" what this check reads of a file"
        )
    for bad in source.unreadable[:MOST_REASONS]:
        # A file without records loses none.
        count = counted(bad.records, "record" if is_record(bad.reason) else "file")
        where = escape(escaped_line(f"{count}: {bad.reason}; the first in {bad.first}"))
        console.print(f"  [yellow]rejected[/] {where}", soft_wrap=True)
    if source.encodings:
        names = ", ".join(f"{name} ({count:,})" for name, count in source.encodings.items())
        console.print(f"  [yellow]not UTF-8[/] documents decoded from {names}")
    if not source.documents:
        return
    console.print(f"  kinds      {_shares(source.kinds)}", soft_wrap=True)
    if source.languages:
        console.print(f"  languages  {_shares(source.languages)}", soft_wrap=True)
    dropped = sum(rule.documents for rule in source.drops)
    share = format_share(source.dropped_bytes, source.bytes, 1)
    lost = f"{counted(dropped, 'document')}, {share} of the text" if dropped else "nothing"
    console.print(f"  cleaning would drop {lost}")
    for rule in source.drops:
        share = format_share(rule.bytes, source.bytes, 1)
        console.print(f"    {rule.rule}: {counted(rule.documents, 'document')}, {share} of the text")
        for example in rule.examples:
            place = escaped_line(f"{example.path} {named_record(example.path, example.record)}{_measured(example)}")
            words = " ".join(example.excerpt.split())
            shown = escaped(words if len(words) <= SHOWN_CHARACTERS else f"{words[:SHOWN_CHARACTERS]}...")
            console.print(Text(f"      {place}: {shown}", style="dim"), soft_wrap=True)


def _measured(example: Example) -> str:
    if example.value is None or example.limit is None:
        return ""
    side = "below" if example.value < example.limit else "above"
    return f", {example.value:.3g} {side} {example.limit:.3g}"


def _shares(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    named = {"unknown" if name == "?" else name: count for name, count in list(counts.items())[:6]}
    return ", ".join(f"{escape(name)} {format_share(count, total, 0)}" for name, count in named.items())
