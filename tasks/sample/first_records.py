"""Whether a source holds at all what its recipe asks for, by the first records of some of its files.

Little is read, whatever the source's size: at most 8 files, of each 64 records or 4 MiB as stored.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tasks.sample.byte_stream import UNPACKS_TOO_MUCH
from tasks.sample.config import Source
from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.readers import EMPTY_FILE, NO_FILE, read_records
from tasks.sample.records import BadRecord, Record
from tasks.sample.remote import RangedFile, RemoteFile

MOST_FILES = 8
MOST_RECORDS = 64
MOST_STORED = 4 * 1024**2
MOST_UNPACKED = 64 * 1024**2
_NO_EVIDENCE = (EMPTY_FILE, NO_FILE, UNPACKS_TOO_MUCH, "empty text", "line longer", "row longer", "larger than")
"""What is wrong with one record and tells nothing about the others."""


@dataclass(frozen=True)
class Mismatch:
    """Not one of the first records could be read."""

    setting: str
    """The key of the source that asks for what is not there; `format` or `paths` where it is not about a field."""
    problem: str
    """What was found instead, as a sentence without a stop."""


class _LimitReached(Exception):
    """As much was read as may be."""


def find_mismatch(listing: SourceFiles) -> Mismatch | None:
    """What is wrong with all of a source's first records; None where one can be read and one has an address where
    addresses are asked for, or nothing is known."""
    for setting, source in _looks(listing.source):
        misfit = _mismatch(listing.files, source, setting)
        if misfit is not None:
            return misfit
    return _without_addresses(listing.files, listing.source)


def _without_addresses(files: Sequence[InputFile], source: Source) -> Mismatch | None:
    """An address may be missing from a record, and so is no reason to reject it; from all, its field is another."""
    if source.url_field is None or source.thread is not None:
        return None
    read = 0
    for file in _some(files):
        for record in _first_records(file, source):
            if isinstance(record, Record):
                if record.url is not None:
                    return None
                read += 1
    if not read:
        return None
    told = f"none of the first {read} records of {len(_some(files))} files has an address in `{source.url_field}`"
    return Mismatch("url_field", told)


def _some(files: Sequence[InputFile]) -> list[InputFile]:
    """A few of them, evenly spread."""
    looked = min(MOST_FILES, len(files))
    return [files[number * len(files) // looked] for number in range(looked)]


def _looks(source: Source) -> Iterator[tuple[str, Source]]:
    """What is called `id_field` in each look at the source, and the source to read: of messages, which become threads
    at the end of their file, the two fields that each must have are looked for one by one."""
    if source.thread is None:
        yield "id_field", source
        return
    for setting in ("thread_field", "id_field"):
        plain = {"thread": None, "id_field": getattr(source.thread, setting)}
        yield f"thread.{setting}", source.model_copy(update=plain)


def _mismatch(files: Sequence[InputFile], source: Source, id_setting: str) -> Mismatch | None:
    found: list[tuple[InputFile, BadRecord]] = []
    for file in _some(files):
        for record in _first_records(file, source):
            if isinstance(record, Record):
                return None
            if not record.reason.startswith(_NO_EVIDENCE):
                found.append((file, record))
    if not found:
        return None
    ((asked, _),) = Counter(bad.setting for _, bad in found).most_common(1)
    file, bad = next((file, bad) for file, bad in found if bad.setting == asked)
    shown = f" ({bad.excerpt[:120]})" if bad.excerpt else ""
    setting = id_setting if asked == "id_field" else asked
    return Mismatch(
        setting or ("paths" if source.format == "auto" else "format"),
        f"none of the first {len(found)} records of {len(_some(files))} files can be read as {file.format}; the first,"
        f" record {bad.number} of {file.relative}: {bad.reason}{shown}",
    )


def _first_records(file: InputFile, source: Source) -> Iterator[Record | BadRecord]:
    read = 0

    def hear(count: int) -> None:
        nonlocal read
        if read > MOST_STORED:
            raise _LimitReached
        read += count

    if isinstance(file.path, RemoteFile):
        file = replace(file, path=RangedFile(file.path.uri, file.path.mark))
    if file.compression is not None:
        source = source.model_copy(update={"max_unpacked_bytes": min(MOST_UNPACKED, source.max_unpacked_bytes)})
    try:
        for count, found in enumerate(read_records(file, source, 0, hear), start=1):
            if isinstance(found, Record | BadRecord):
                yield found
            if count == MOST_RECORDS:
                return
    except (_LimitReached, OSError):
        return
    except Exception:
        if not isinstance(file.path, RemoteFile):
            raise  # A store that does not answer, or gives no stretches, tells nothing about the records.
