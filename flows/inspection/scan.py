"""Scan a folder of text: its sources, their sizes, formats, fields and languages, and the files that cannot be read.

Only the beginnings of some files are read, and sizes come from the file system, so a terabyte takes seconds.
"""

import itertools
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.inspection.fields import (
    Fields,
    NestedText,
    conversation_size,
    count_languages,
    find_nested_text,
    judge_fields,
    stored_size,
    text_size,
)
from flows.inspection.file_head import (
    MARKUP,
    PAGES,
    SNIFFED_RECORDS,
    RecordCount,
    StoredFile,
    arrow_records,
    count_records,
    decoded,
    json_records,
    lacks_header,
    looks_like_text,
    parquet_records,
    read_head,
    rejects,
    table_records,
)
from flows.inspection.unpack import (
    JSONL,
    SUFFIXES,
    UNPACKED,
    is_hidden,
    is_mailbox,
    is_recipe,
    is_unpacked,
    made_by_bessemer,
    package_of,
)
from model.digests import unreadable_reason
from model.errors import InputError
from tasks.clean.edits.wikitext import is_wikitext
from tasks.common.text import counted
from tasks.sample.bounded_reader import spread
from tasks.sample.formats import MAILBOX_HINT, NO_TEXT, guess_format

SNIFFED_FILES = 40
"""Files of a source that are opened."""


MAX_GROUPS = 40
"""Subfolders up to which each is a source; with more, all files of one format are one source."""

FEW_GROUPS, SMALL_GROUP = 10, 1_000_000
"""Subfolders above which they are one source where they hold fewer bytes on average: papers, chapters, days."""

ROOT_GROUP = "."

RECORD_FORMATS = ("jsonl", "parquet", "arrow", "csv")

CONVERSATIONS_HINT = (
    "conversations: `bessemer model finetune` trains a model further on them, as `messages` of `role` and `content`;"
    " to train on them from the start, write each as one text"
)

NO_HEADER_HINT = (
    "a table without a header: its first row is a record like the others; put a row with the names of the columns above"
    " it, for example `sed -i '1i label,text' FILE`, with tabs in a .tsv"
)

_MEDIAWIKI = re.compile(
    rb"\s*(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}\?>)?\s*(?:<!--[^>]{0,1000}-->)?\s*<mediawiki[\s>]"
)

_JSON = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{\s*\"[^\"\n]{0,100}\"\s*:")


MAX_COMPARED, COMPARED_BYTES = 200, 64 * 1024
"""Tables and JSON Lines of a subfolder up to which their fields are compared, and bytes that are read of each."""

SAMPLE_CHARS = 4000
"""Characters of a sampled text by which tokens of a vocabulary are counted."""

EXTRACTED_PAGES = 12
"""Pages from which text is extracted; trafilatura takes 0.3 s for some."""


@dataclass
class ScannedSource:
    """The files of one format in one subfolder."""

    group: str
    format: str
    files: list[StoredFile] = field(default_factory=list)
    text_bytes: float = 0.0
    """Estimated bytes after decompression, with markup."""
    text_share: float = 1.0
    """Estimated share of `text_bytes` that is left where clean removes the markup of pages."""
    records: RecordCount = field(default_factory=lambda: RecordCount(0, True))
    fields: Fields | None = None
    nested: NestedText | None = None
    content: str = "text"
    bad_share: float = 0.0
    """Share of the records looked at that cannot be read."""
    is_apart: bool = False
    """Whether its files have other fields than the others of their format and subfolder, and are named one by one."""
    languages: Counter[str] = field(default_factory=Counter)
    characters: set[str] = field(default_factory=set)
    samples: list[str] = field(default_factory=list)
    """Beginnings of some of its texts."""

    @property
    def plain_bytes(self) -> float:
        """Estimated bytes of text without markup."""
        return self.text_bytes * self.text_share

    @property
    def stored_bytes(self) -> int:
        """Bytes as stored."""
        return sum(file.size for file in self.files)

    def nested_remark(self) -> str:
        """Return which field that is not read holds most of the text, and what to do; empty where none does."""
        if self.nested is None:
            return ""
        can = all(file.path.suffix == JSONL and UNPACKED not in file.path.parts for file in self.files)
        return (
            f"{self.nested.share:.0%} of the text is in the field `{self.nested.field}`, in lists or objects, which are"
            f" not read: {'`bessemer init --unpack` writes' if can else 'write'} the text of each record in one field"
        )


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be read, and what to do about it."""

    path: Path
    hint: str


@dataclass
class FolderScan:
    """Everything found in a folder."""

    folder: Path
    sources: list[ScannedSource] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    installed: Counter[str] = field(default_factory=Counter)
    """Files in folders of packages and of what a tool made, by the folder's name or path."""
    made: Counter[str] = field(default_factory=Counter)
    """Files that Bessemer made, by the path of their root."""
    unpacked: list[Path] = field(default_factory=list)
    """Files that were unpacked, and are read from there."""
    empty: int = 0
    looked_files: int = 0
    looked_bytes: int = 0

    def unread(self) -> list[tuple[str, int, str]]:
        """Return the files that cannot be read, alike ones together: the first and how many more, number, hint of the
        first. The byte at which a file is damaged makes no difference."""
        alike: dict[tuple[str, str], list[Unreadable]] = {}
        for bad in self.unreadable:
            alike.setdefault((bad.path.suffix, re.sub(r"\d+", "", bad.hint)), []).append(bad)
        return [
            (
                str(files[0].path.relative_to(self.folder))
                + (f" and {len(files) - 1} more {suffix}".rstrip() if files[1:] else ""),
                len(files),
                files[0].hint,
            )
            for (suffix, _), files in alike.items()
        ]


def scan_folder(folder: Path) -> FolderScan:
    """Scan a folder; raise InputError where it does not exist, is empty, or has nothing readable."""
    check_folder(folder)
    scan = FolderScan(folder.resolve())
    found: dict[tuple[str, str], ScannedSource] = {}
    paths: list[Path] = []
    made = made_by_bessemer(scan.folder)
    for path in sorted(scan.folder.rglob("*")):
        inside = path.relative_to(scan.folder)
        if is_hidden(inside):
            continue
        if path.is_dir() and not path.is_symlink():
            if _is_closed(path):
                scan.unreadable.append(Unreadable(path, "a folder that this user may not read: ask for permission"))
            continue
        if root := made.intersection(path.parents):
            scan.made[root.pop().relative_to(scan.folder).as_posix()] += 1
        elif name := package_of(scan.folder, inside):
            scan.installed[name] += 1
        elif path.is_file():
            paths.append(path)
        else:
            scan.unreadable.append(Unreadable(path, _why_no_file(path)))
    if not paths and not scan.unreadable:
        packages = "".join(f", nor do files in {name}" for name in scan.installed | scan.made)
        raise InputError(f"init {folder}: the folder is empty (hidden files do not count{packages})")
    groups = _groups(scan.folder, paths)
    for path in paths:
        _consider(scan, found, path, groups)
    scan.sources = [
        source for of_format in found.values() for source in _by_fields(of_format) if _look_into(scan, source)
    ]
    scan.sources.sort(key=lambda source: (-source.plain_bytes, source.group, source.format))
    if not scan.sources:
        hints = "; ".join(f"{names}: {hint}" for names, _, hint in scan.unread()[:5])
        raise InputError(f"init {folder}: nothing in it can be read ({hints or counted(scan.empty, 'empty file')})")
    return scan


def check_folder(folder: Path) -> None:
    """Raise InputError where a folder does not exist or may not be read."""
    if not folder.is_dir():
        state = "is a file, not a folder" if folder.exists() else "does not exist"
        raise InputError(f"init {folder}: {state}; name the folder that holds your text")
    if _is_closed(folder):
        raise InputError(f"init {folder}: this user may not read the folder; ask for permission")


def _is_closed(folder: Path) -> bool:
    """Return whether this user may not list a folder, or not open what is in it."""
    return not os.access(folder, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _why_no_file(path: Path) -> str:
    if path.is_dir():
        return "a link to a folder, which is not followed: add a source with its path, or copy the folder"
    if not path.exists() and path.is_symlink():
        return f"a link to {path.readlink()}, which cannot be reached"
    return unreadable_reason(path).removeprefix("is ")


def _groups(folder: Path, paths: list[Path]) -> set[str]:
    inside = [path for path in paths if path.parent != folder]
    tops = {path.relative_to(folder).parts[0] for path in inside}
    if len(tops) <= FEW_GROUPS:
        return tops
    small = sum(path.stat().st_size for path in inside) < SMALL_GROUP * len(tops)
    return set() if small or len(tops) > MAX_GROUPS else tops


def _consider(scan: FolderScan, found: dict[tuple[str, str], ScannedSource], path: Path, groups: set[str]) -> None:
    try:
        size = path.stat().st_size
        if size == 0:
            scan.empty += 1
            return
        format, compression = guess_format(path.name)
        suffix = (path.with_suffix("") if compression else path).suffix.lower()
        hint = NO_TEXT.get(suffix) if format is None else None
        # Only files whose name does not determine the format are opened, because a corpus may have millions of files.
        if format is None and hint is None:
            format, hint = _format_by_content(scan, path, compression)
        if path.suffix == ".toml" and is_recipe(path):
            hint = "a recipe of Bessemer"
        if format is None and compression and not path.name.lower().endswith(SUFFIXES):
            hint = f"decompress it first; {hint}"
    except OSError as error:
        hint, format, compression, size = f"cannot be read: {error.strerror}", "text", None, 0
    if format in (None, "jsonl") and is_unpacked(scan.folder, path):
        scan.unpacked.append(path)
        return
    if hint is not None or format is None:
        scan.unreadable.append(Unreadable(path, hint or "its format is unknown"))
        return
    top = path.relative_to(scan.folder).parts[0]
    group = top if top in groups else ROOT_GROUP
    found.setdefault((group, format), ScannedSource(group, format)).files.append(
        StoredFile(path, format, compression, size)
    )


def _format_by_content(scan: FolderScan, path: Path, compression: str | None) -> tuple[str | None, str | None]:
    """Return the format of a file whose name does not show it, and a hint where it cannot be read."""
    # A block of bzip2 unpacks as a whole, 900 kB at once.
    head = read_head(path, compression, 1 << 20 if compression == "bzip2" else 4096)
    scan.looked_files += 1
    scan.looked_bytes += head.stored
    raw = head.raw[:4096]
    if is_mailbox(raw):
        return None, MAILBOX_HINT
    text, hint = decoded(head.raw, head.whole, "text")
    if head.damage or "\0" in raw.decode("latin-1") or not looks_like_text((text or raw.decode("latin-1"))[:4096]):
        return "text", "binary, or damaged"
    if hint is not None:
        return "text", hint
    if _JSON.match(raw):
        return None, "JSON: name it .jsonl if each line is a record, or .json, for `bessemer init --unpack`"
    if _MEDIAWIKI.match(raw):
        return "mediawiki", None
    return "text", None


def _by_fields(source: ScannedSource) -> list[ScannedSource]:
    """Return tables and JSON Lines whose text is in another field, and conversations, as sources of their own, since a
    source has one text field; the most frequent field comes first, and has the files that could not be compared."""
    if source.format not in ("csv", "jsonl") or not 1 < len(source.files) <= MAX_COMPARED:
        return [source]
    alike: dict[frozenset[str], tuple[list[StoredFile], list[dict[str, Any]]]] = {}
    for file in source.files:
        records = _first_records(file)
        files, of_files = alike.setdefault(frozenset().union(*records), ([], []))
        files.append(file)
        of_files += records
    unknown, _ = alike.pop(frozenset(), ([], []))
    by_field: dict[str | None, list[StoredFile]] = {}
    for files, records in alike.values():
        by_field.setdefault(_judged(records).text, []).extend(files)
    first, *others = sorted(by_field.values(), key=len, reverse=True) or [[]]
    apart = [ScannedSource(source.group, source.format, files, is_apart=True) for files in others]
    return [ScannedSource(source.group, source.format, [*first, *unknown]), *apart]


def _first_records(file: StoredFile) -> list[dict[str, Any]]:
    with suppress(OSError):
        head = read_head(file.path, file.compression, COMPARED_BYTES)
        text, _ = decoded(head.raw, head.whole, file.format)
        if file.format == "jsonl":
            return json_records(text, head.whole)
        return list(itertools.islice(table_records(file.path, text), SNIFFED_RECORDS))
    return []


def _look_into(scan: FolderScan, source: ScannedSource) -> bool:
    """Read some files of a source and fill in what they contain; return False where none can be read."""
    records: list[dict[str, Any]] = []
    texts: list[str] = []
    raw = stored = 0
    bad: set[Path] = set()
    looked = spread(source.files, SNIFFED_FILES)
    for file in looked:
        try:
            if source.format in ("parquet", "arrow"):
                records += parquet_records(file.path) if source.format == "parquet" else arrow_records(file.path)
                continue
            head = read_head(file.path, file.compression)
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            scan.unreadable.append(Unreadable(file.path, f"cannot be read: {str(error).splitlines()[0]}"))
            bad.add(file.path)
            continue
        scan.looked_files += 1
        scan.looked_bytes += head.stored
        text, hint = decoded(head.raw, head.whole, source.format)
        hint = f"damaged: {head.damage}" if head.damage else hint
        if hint is None and source.format == "csv" and lacks_header(file.path, text):
            hint = NO_HEADER_HINT
        if hint is not None:
            scan.unreadable.append(Unreadable(file.path, hint))
            bad.add(file.path)
            continue
        raw, stored = raw + text_size(text), stored + head.stored
        if source.format == "jsonl":
            records += json_records(text, head.whole)
        elif source.format in PAGES:
            texts += PAGES[source.format](head.raw)
        elif source.format == "csv":
            records += itertools.islice(table_records(file.path, text), SNIFFED_RECORDS)
        else:
            texts.append(text)
    source.files = [file for file in source.files if file.path not in bad]
    if source.format in RECORD_FORMATS and source.files:
        source.fields = _judged(records[: SNIFFED_FILES * SNIFFED_RECORDS])
        source.nested = find_nested_text(records[: SNIFFED_FILES * SNIFFED_RECORDS])
        if source.fields.text is None:
            hint = source.nested_remark() or f"no field holds text (fields: {', '.join(source.fields.all) or 'none'})"
            if any(map(conversation_size, records)):
                hint = CONVERSATIONS_HINT
            scan.unreadable += [Unreadable(file.path, hint) for file in source.files]
            return False
        name = source.fields.text
        texts = [record[name] for record in records if isinstance(record.get(name), str)]
        reasons, count = rejects(source.files, SNIFFED_FILES, name, source.fields.id)
        if reasons and len(reasons) == count:
            hint = f"none of its first records can be read as {source.format}: {reasons[0]}"
            scan.unreadable += [Unreadable(file.path, hint) for file in source.files]
            return False
        source.bad_share = len(reasons) / max(1, count)
    if not source.files:
        return False
    if len(looked) < len(source.files) + len(bad) and source.format not in RECORD_FORMATS:
        source.bad_share = len(bad) / len(looked)  # as likely among the files that were not opened
    source.records = count_records(source.files)
    source.text_bytes = source.stored_bytes * (raw / stored if stored else 1.0)
    if source.format in ("parquet", "arrow"):  # whose files may be compressed
        source.text_bytes = source.records.records * sum(map(text_size, texts)) / len(records)
    elif source.format in ("jsonl", "csv"):
        all_bytes = sum(stored_size(record, source.format) for record in records)
        source.text_bytes *= sum(map(text_size, texts)) / max(1, all_bytes)
    source.characters = set().union(*(text[:100_000] for text in texts)) if texts else set()
    chosen = spread(texts, SNIFFED_FILES)
    if source.format != "code":
        source.languages = count_languages(chosen)
        pages = sum(text.lstrip()[:200].lower().startswith(("<!doctype html", "<html")) for text in chosen)
        if source.fields and pages * 2 > len(chosen):
            source.content = "html"
        elif source.fields and sum(map(is_wikitext, chosen)) * 2 > len(chosen):
            source.content = "wikitext"
    if extract := MARKUP.get(source.content, MARKUP.get(source.format)):
        marked_up = spread(texts, EXTRACTED_PAGES)
        chosen = [extract(page) for page in marked_up]
        # Where none has text, clean drops them, and no share is known for those that were not looked at.
        source.text_share = sum(map(text_size, chosen)) / max(1, sum(map(text_size, marked_up))) or 1.0
    source.samples = [text[:SAMPLE_CHARS] for text in chosen]
    return True


def _judged(records: list[dict[str, Any]]) -> Fields:
    """Return the roles of fields, without a text where conversations hold more of it than the text."""
    fields = judge_fields(records)
    chosen = sum(len(str(record.get(fields.text) or "")) for record in records) if fields.text else 0
    return fields if sum(map(conversation_size, records)) <= chosen else replace(fields, text=None)
