"""Write the `[[sources]]` tables of a scanned folder: names, paths, weights, and what was found out about each."""

import glob
import json
import math
import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from flows.inspection.file_head import StoredFile
from flows.inspection.scan import ROOT_GROUP, FolderScan, ScannedSource
from flows.inspection.unpack import INSTALLED
from flows.metrics.formatting import format_bytes
from tasks.common.text import counted
from tasks.sample.config import ONE_DOCUMENT_A_FILE, Source
from tasks.sample.formats import guess_format

ONE_LANGUAGE_SHARE = 0.9

WEIGHT_UNIT = 10_000
"""Weights are written as multiples of 1 / WEIGHT_UNIT, at least one each."""

MAX_NAMED_FILES = 50

LINE = 116

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

LARGEST_FILE = Source.model_fields["max_file_bytes"].default


def source_tables(scan: FolderScan, *, explained: bool) -> list[str]:
    """Return the lines of the tables of all sources, with what each key means where `explained`."""
    weights = _weights([source.plain_bytes for source in scan.sources])
    tables = zip(scan.sources, source_names(scan.sources), weights, strict=True)
    return [line for table in tables for line in _source_table(scan, *table, explained=explained)]


def _source_table(scan: FolderScan, source: ScannedSource, name: str, weight: float, *, explained: bool) -> list[str]:
    def line(key: str, value: Any, why: str) -> str:
        return f"{key} = {toml_value(value)}{f'    # {why}' if explained and why else ''}"

    about = "" if source.records.exact else "about "
    mean = source.plain_bytes / max(1.0, source.records.records)
    kind = KINDS.get(source.content, KINDS.get(source.format, "short posts" if mean < SHORT_BYTES else "prose"))
    files, documents = counted(len(source.files), "file"), counted(round(source.records.records), "document")
    lines = [
        f"[[sources]]    # {files}, {about}{documents}, {format_bytes(source.plain_bytes)}: {kind}",
        line("name", name, ""),
        line("paths", _paths(scan, source), ""),
        line("format", source.format, ""),
        f"weight = {weight:.4f}    # share of the training tokens, here by bytes of text; all sum to 1",
    ]
    if source.fields is not None and source.fields.text is not None:
        lines.append(line("text_field", source.fields.text, f"fields: {in_comment(', '.join(source.fields.all))}"))
        if source.fields.id is not None:
            lines.append(line("id_field", source.fields.id, "names the documents however the files are split"))
        if explained and (nested := source.nested_remark()):
            lines += comment(in_comment(nested))
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
    largest = max(document_bytes(source, file) for file in source.files)
    if largest > LARGEST_FILE:
        lines.append(line("max_file_bytes", 1 << math.ceil(math.log2(2 * largest)), ""))
    if explained:
        lines.append("# priority = 1    # of equal copies, the one from the source with the smaller number stays")
        lines += comment(
            "licence is not set: the licence of the text as an SPDX expression; the model card states it, and an export"
            ' whose own licence conflicts with it is refused. For example: licence = "CC-BY-SA-4.0"'
        )
    return [*lines, ""]


def source_names(sources: list[ScannedSource]) -> list[str]:
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


def _weights(sizes: list[float]) -> list[float]:
    total = sum(sizes) or 1.0
    parts = [max(1, round(WEIGHT_UNIT * amount / total)) for amount in sizes]
    parts[parts.index(max(parts))] += WEIGHT_UNIT - sum(parts)
    return [part / WEIGHT_UNIT for part in parts]


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
    built = [scan.folder / name for name in sorted(scan.installed | scan.made) if name not in INSTALLED]
    names += [f"{glob.escape(path.relative_to(top).as_posix())}/*" for path in built if path.is_relative_to(top)]
    return [*packages, *(mask for name in names for mask in (name, f"@*/{name}"))]


def document_bytes(source: ScannedSource, file: StoredFile) -> float:
    """Return the estimated bytes of a file that is read as one document; 0 for files of records."""
    growth = source.text_bytes / source.stored_bytes if source.stored_bytes else 1.0
    return file.size * max(1.0, growth) if source.format in ONE_DOCUMENT_A_FILE else 0.0


def toml_value(value: Any) -> str:
    """Return a value in TOML, whose notation is that of JSON except for tables."""
    if isinstance(value, dict) and value:
        return f"{{ {', '.join(f'{json.dumps(str(key))} = {toml_value(item)}' for key, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def in_comment(text: object) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(text))


def comment(text: str) -> list[str]:
    return textwrap.wrap(text, LINE, initial_indent="## ", subsequent_indent="## ")
