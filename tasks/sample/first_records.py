"""Check that a source has the fields that its recipe names, by the first records of some of its files.

Reads little, whatever the source's size: of at most 8 files, 64 records or 4 MiB after decompression.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.common.text import counted, none_of_first
from tasks.sample.bounded_reader import BoundedReader, Bounds
from tasks.sample.config import Source
from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.formats import named_record
from tasks.sample.readers.byte_stream import UNPACKS_TOO_MUCH
from tasks.sample.readers.records import BadRecord, Record
from tasks.sample.rejects import EMPTY_FILE, NO_FILE
from tasks.sample.remote import RemoteFile

MOST_FILES = 8
MOST_RECORDS = 64
MOST_BYTES = 4 * 1024**2
"""Bytes of a file, after decompression."""
BOUNDS = Bounds(MOST_FILES, MOST_FILES * MOST_BYTES, MOST_BYTES, MOST_RECORDS)
_NO_EVIDENCE = (EMPTY_FILE, NO_FILE, UNPACKS_TOO_MUCH, "empty text", "line longer", "row longer", "larger than")
"""Beginnings of reasons that say nothing about other records."""


@dataclass(frozen=True)
class Mismatch:
    """None of the first records could be read."""

    setting: str
    """The key of the source that names a missing field; `format` or `paths` if it is not about a field."""
    problem: str
    """What was found instead, as a sentence without a full stop."""


def find_mismatch(listing: SourceFiles) -> Mismatch | None:
    """Return what is wrong with all of a source's first records.

    None if one can be read and, if addresses are configured, one has an address, or if nothing is known.
    """
    for setting, source in _variants(listing.source):
        misfit = _mismatch(listing.files, source, setting)
        if misfit is not None:
            return misfit
    return _missing_addresses(listing.files, listing.source)


def _missing_addresses(files: Sequence[InputFile], source: Source) -> Mismatch | None:
    """Return a mismatch if no record has an address. A record without one is not rejected, but if all have none the
    name of the field is wrong."""
    if source.url_field is None or source.thread is not None:
        return None
    read = 0
    for _, record in _first_records(files, source):
        if isinstance(record, Record):
            if record.url is not None:
                return None
            read += 1
    if not read:
        return None
    looked = min(MOST_FILES, len(files))
    return Mismatch(
        "url_field",
        f"{none_of_first(read, 'record')} of {counted(looked, 'file')} has an address in `{source.url_field}`",
    )


def _variants(source: Source) -> Iterator[tuple[str, Source]]:
    """Yield (name of the setting checked as `id_field`, source to read).

    Messages become threads only at the end of a file, so their two required fields are checked one by one.
    """
    if source.thread is None:
        yield "id_field", source
        return
    for setting in ("thread_field", "id_field"):
        plain = {"thread": None, "id_field": getattr(source.thread, setting)}
        yield f"thread.{setting}", source.model_copy(update=plain)


def _mismatch(files: Sequence[InputFile], source: Source, id_setting: str) -> Mismatch | None:
    found: list[tuple[InputFile, BadRecord]] = []
    for file, record in _first_records(files, source):
        if isinstance(record, Record):
            return None
        if not record.reason.startswith(_NO_EVIDENCE):
            found.append((file, record))
    if not found:
        return None
    ((setting, _),) = Counter(bad.setting for _, bad in found).most_common(1)
    file, bad = next((file, bad) for file, bad in found if bad.setting == setting)
    shown = f" ({bad.excerpt[:120]})" if bad.excerpt else ""
    looked = min(MOST_FILES, len(files))
    setting = id_setting if setting == "id_field" else setting
    return Mismatch(
        setting or ("paths" if source.format == "auto" else "format"),
        f"{none_of_first(len(found), 'record')} of {counted(looked, 'file')} can be read as {file.format}; the"
        f" first, {named_record(file.relative, bad.number)} of {file.relative}: {bad.reason}{shown}",
    )


def _first_records(files: Sequence[InputFile], source: Source) -> Iterator[tuple[InputFile, Record | BadRecord]]:
    for file, records in BoundedReader(source, files, BOUNDS).files():
        try:
            for found in records:
                yield file, found
        except OSError:
            continue
        except Exception:
            if not isinstance(file.path, RemoteFile):
                raise  # errors of a store say nothing about the records
