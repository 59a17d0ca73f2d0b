"""A folder of somebody's text: which sources it falls into, how much there is of each, and what cannot be read.

Only the beginnings of some files are read; sizes come from the file system, so that a terabyte takes seconds.

The beginning of a file as readable bytes, without reading the rest.

How many records files hold: exact where that costs nothing, else estimated from the beginnings of some.

What files of text hold, learned from a little of each: formats, records, fields, languages, encodings.
"""

import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flows.inspection.fields import Fields, count_languages, judge_fields
from model.errors import InputError
from tasks.sample.byte_stream import DamagedStream, byte_blocks
from tasks.sample.discovery import guess_format

LOOKED_FILES = 40

LOOKED_RECORDS = 200

MOST_GROUPS = 40
"""More subfolders than this are not sources of their own; the files of a format are then one source."""

ROOT_GROUP = "."

RECORD_FORMATS = ("jsonl", "parquet", "csv")

_BINARY_HINTS = {
    ".pdf": "PDF: extract its text first",
    ".docx": "Word: save as text or Markdown",
    ".doc": "Word: save as text or Markdown",
    ".epub": "EPUB: convert to text or HTML",
    ".zip": "an archive: unpack it",
    ".tar": "an archive: unpack it",
    ".tgz": "an archive: unpack it",
    ".bz2": "bzip2: compress as .gz or .zst instead",
    ".xz": "xz: compress as .gz or .zst instead",
    ".json": "JSON in one piece: write one object a line, as .jsonl",
}


@dataclass(frozen=True)
class RecordCount:
    """Records, and whether that number is exact."""

    records: float
    exact: bool


@dataclass(frozen=True)
class StoredFile:
    """A file as it lies: its format, compression and stored bytes."""

    path: Path
    format: str
    compression: str | None
    size: int


@dataclass
class SourceFound:
    """The files of one format in one subfolder."""

    group: str
    format: str
    files: list[StoredFile] = field(default_factory=list)
    text_bytes: float = 0.0
    """Estimated bytes after decompression."""
    records: RecordCount = field(default_factory=lambda: RecordCount(0, True))
    fields: Fields | None = None
    content: str = "text"
    languages: Counter[str] = field(default_factory=Counter)
    characters: set[str] = field(default_factory=set)

    @property
    def stored_bytes(self) -> int:
        """Bytes as stored."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Unreadable:
    """A file that no source may list, and what to do about it."""

    path: Path
    hint: str


@dataclass
class FolderSurvey:
    """Everything found in a folder."""

    folder: Path
    sources: list[SourceFound] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    empty: int = 0
    looked_files: int = 0
    looked_bytes: int = 0


def survey_folder(folder: Path) -> FolderSurvey:
    """Look through a folder; raises InputError where it does not exist, is empty, or holds nothing readable."""
    if not folder.is_dir():
        state = "is a file, not a folder" if folder.exists() else "does not exist"
        raise InputError(f"init {folder}: {state}; name the folder that holds your text")
    survey = FolderSurvey(folder.resolve())
    found: dict[tuple[str, str], SourceFound] = {}
    paths = sorted(path for path in survey.folder.rglob("*") if path.is_file() and not _is_hidden(path, survey.folder))
    if not paths:
        raise InputError(f"init {folder}: the folder is empty (hidden files do not count)")
    groups = _groups(survey.folder, paths)
    for path in paths:
        _consider(survey, found, path, groups)
    survey.sources = [source for source in found.values() if _look_into(survey, source)]
    survey.sources.sort(key=lambda source: (-source.text_bytes, source.group, source.format))
    if not survey.sources:
        hints = "; ".join(f"{bad.path.name}: {bad.hint}" for bad in survey.unreadable[:5])
        raise InputError(f"init {folder}: nothing in it can be read ({hints or f'{survey.empty} empty files'})")
    return survey


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _groups(folder: Path, paths: list[Path]) -> set[str]:
    tops = {path.relative_to(folder).parts[0] for path in paths if len(path.relative_to(folder).parts) > 1}
    return tops if len(tops) <= MOST_GROUPS else set()


def _consider(survey: FolderSurvey, found: dict[tuple[str, str], SourceFound], path: Path, groups: set[str]) -> None:
    try:
        size = path.stat().st_size
        if size == 0:
            survey.empty += 1
            return
        format, compression = guess_format(path.name)
        hint = (
            _BINARY_HINTS.get((path.with_suffix("") if compression else path).suffix.lower())
            if format is None
            else None
        )
        # Only what its name leaves open, and small texts, are opened here: a big corpus has millions of files.
        if format is None and hint is None:
            hint = _not_text(survey, path, compression)
            format = "text"
    except OSError as error:
        hint, format, compression, size = f"cannot be read: {error.strerror}", "text", None, 0
    if hint is not None or format is None:
        survey.unreadable.append(Unreadable(path, hint or "its format is unknown"))
        return
    top = path.relative_to(survey.folder).parts[0]
    group = top if top in groups else ROOT_GROUP
    found.setdefault((group, format), SourceFound(group, format)).files.append(
        StoredFile(path, format, compression, size)
    )


def _not_text(survey: FolderSurvey, path: Path, compression: str | None) -> str | None:
    look = look_at(path, compression, 4096)
    survey.looked_files += 1
    survey.looked_bytes += look.stored
    if b"\0" in look.raw or look.damage:
        return "binary"
    try:
        look.raw.decode("utf-8") if look.whole else look.raw[:-4].decode("utf-8")
    except UnicodeDecodeError as error:
        return None if error.start >= len(look.raw) - 8 else "not UTF-8: convert it with iconv"
    return None


def _look_into(survey: FolderSurvey, source: SourceFound) -> bool:
    """Learn what a source holds from some of its files; False where none of them can be read."""
    records: list[dict[str, Any]] = []
    texts: list[str] = []
    raw = stored = 0
    bad: set[Path] = set()
    for index in spread(len(source.files), LOOKED_FILES):
        file = source.files[index]
        try:
            if source.format == "parquet":
                records += _parquet_records(file.path)
                raw, stored = raw + file.size, stored + file.size
                continue
            look = look_at(file.path, file.compression)
        except (OSError, pa.ArrowException) as error:
            survey.unreadable.append(Unreadable(file.path, f"cannot be read: {str(error).splitlines()[0]}"))
            bad.add(file.path)
            continue
        survey.looked_files += 1
        survey.looked_bytes += look.stored
        text, hint = _decoded(look.raw, look.whole)
        hint = f"damaged: {look.damage}" if look.damage else hint
        if hint is not None:
            survey.unreadable.append(Unreadable(file.path, hint))
            bad.add(file.path)
            continue
        raw, stored = raw + len(look.raw), stored + look.stored
        if source.format == "jsonl":
            records += _json_records(text, look.whole)
        elif source.format == "csv":
            reader = csv.DictReader(io.StringIO(text), delimiter="\t" if ".tsv" in file.path.name.lower() else ",")
            records += itertools.islice(reader, LOOKED_RECORDS)
        else:
            texts.append(text)
    source.files = [file for file in source.files if file.path not in bad]
    if source.format in RECORD_FORMATS and source.files:
        source.fields = judge_fields(records[: LOOKED_FILES * LOOKED_RECORDS])
        if source.fields.text is None:
            names = ", ".join(source.fields.all) or "none"
            for file in source.files:
                survey.unreadable.append(Unreadable(file.path, f"no field holds text (fields: {names})"))
            return False
        name = source.fields.text
        texts = [record[name] for record in records if isinstance(record.get(name), str)]
    if not source.files:
        return False
    source.records = count_records(source.files)
    source.text_bytes = source.stored_bytes * (raw / stored if stored else 1.0)
    source.characters = set().union(*(text[:100_000] for text in texts)) if texts else set()
    if source.format != "code":
        chosen = [texts[index] for index in spread(len(texts), LOOKED_FILES)]
        source.languages = count_languages(chosen)
        pages = sum(text.lstrip()[:200].lower().startswith(("<!doctype html", "<html")) for text in chosen)
        source.content = "html" if source.fields and pages * 2 > len(chosen) else "text"
    return True


def _decoded(raw: bytes, whole: bool) -> tuple[str, str | None]:
    if b"\0" in raw[:4096]:
        return "", "binary in spite of its name"
    try:
        return raw.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        if not whole and error.start >= len(raw) - 4:
            return raw[: error.start].decode("utf-8-sig"), None
        return "", f"not UTF-8 (byte {error.start}): convert it with iconv"


def _json_records(text: str, whole: bool) -> list[dict[str, Any]]:
    lines = text.split("\n")
    records: list[dict[str, Any]] = []
    for line in lines[: LOOKED_RECORDS if whole else max(1, min(LOOKED_RECORDS, len(lines) - 1))]:
        try:
            value = json.loads(line)
        except ValueError:
            continue  # The sample stage rejects it by number; here the good ones tell the fields.
        if isinstance(value, dict):
            records.append(value)
    return records


def _parquet_records(path: Path) -> list[dict[str, Any]]:
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(LOOKED_RECORDS, use_threads=False):
            return batch.to_pylist()
    return []


LOOK_BYTES = 256 * 1024
"""Stored bytes that are read of a file at most."""


@dataclass(frozen=True)
class Look:
    """What stands at the beginning of a file, decompressed."""

    raw: bytes
    stored: int
    """Stored bytes that `raw` came from."""
    whole: bool
    """Whether that was all of the file."""
    damage: str = ""
    """What is wrong with the compressed stream, where something is."""


def look_at(path: Path, compression: str | None, limit: int = LOOK_BYTES) -> Look:
    """The first `limit` stored bytes of a file; raises OSError where it cannot be read."""
    with path.open("rb") as stream:
        stored = stream.read(limit)
        whole = not stream.read(1)
    raw = bytearray()
    damage = ""
    try:
        for block in byte_blocks(io.BytesIO(stored), compression, lambda count: None):
            raw += block
    except DamagedStream as error:
        # A stream that was cut here ends early, of course; any other damage is the file's.
        damage = str(error) if whole or "ends early" not in str(error) else ""
    return Look(bytes(raw), len(stored), whole, damage)


def spread(count: int, most: int) -> list[int]:
    """At most `most` indexes of `count`, evenly spread, the first among them."""
    if count <= most:
        return list(range(count))
    return sorted({index * count // most for index in range(most)})


MOST_FILES = 16
"""Files of a kind that are looked into; the others count with their bytes."""


def count_records(files: Sequence[StoredFile]) -> RecordCount:
    """Records of all files: one a file, rows of parquet by their footers, lines of jsonl by their beginnings."""
    lines = [file for file in files if file.format == "jsonl"]
    parquet = [file for file in files if file.format == "parquet"]
    counts = [_count_lines(lines), _count_rows(parquet), RecordCount(len(files) - len(lines) - len(parquet), True)]
    return RecordCount(sum(count.records for count in counts), all(count.exact for count in counts))


def _count_lines(files: Sequence[StoredFile]) -> RecordCount:
    found, stored, exact = 0.0, 0, True
    for index in spread(len(files), MOST_FILES):
        file = files[index]
        try:
            look = look_at(file.path, file.compression)
        except OSError:
            continue  # What cannot be read holds no record; who reads it for real tells why.
        ends = look.raw.count(b"\n")
        found += max(1, ends + (1 if look.whole and not look.raw.endswith(b"\n") else 0)) if look.raw else 0
        stored += look.stored
        exact = exact and look.whole
    everything = sum(max(0, file.size) for file in files)
    if not stored or (exact and len(files) <= MOST_FILES):
        return RecordCount(found, True)
    return RecordCount(found * everything / stored, False)


def _count_rows(files: Sequence[StoredFile]) -> RecordCount:
    rows, looked = 0, 0
    for index in spread(len(files), MOST_FILES):
        try:
            rows += pq.read_metadata(files[index].path).num_rows
            looked += files[index].size
        except (OSError, pa.ArrowException):
            continue  # As above.
    everything = sum(max(0, file.size) for file in files)
    exact = len(files) <= MOST_FILES
    return RecordCount(rows if exact or not looked else rows * everything / looked, exact)
