"""Read some records of a source, within bounds that do not depend on the source's size.

Files are spread evenly over the source. Bytes count after decompression, so that a small file that unpacks to much is
no way around the bounds. Of a remote table only the ranges that are needed are fetched.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from tasks.sample.config import Source
from tasks.sample.discovery import InputFile
from tasks.sample.readers.byte_stream import EnoughRead, ReadingLimit
from tasks.sample.readers.files import read_records
from tasks.sample.readers.records import BadRecord, Record
from tasks.sample.remote import RangedFile, RemoteFile

LEAST_SHARE = 256 * 1024
"""Bytes of a file below which fewer files are read instead: an encoding is recognised in the first 64 KiB."""


@dataclass(frozen=True)
class Bounds:
    """How much of a source may be read; bytes are counted after decompression."""

    files: int
    bytes: int
    """Of all files together."""
    file_bytes: int | None = None
    """Of one file; None for an even share of what is left."""
    file_records: int | None = None
    """Records of one file, readable or not; None for all."""


@dataclass
class BoundedReader:
    """The records of some files of a source."""

    source: Source
    listed: Sequence[InputFile]
    bounds: Bounds
    files_read: int = 0
    bytes_read: int = 0
    unseen: list[InputFile] = field(default_factory=list)
    """Files whose first record is longer than what may be read of them."""

    def files(self) -> Iterator[tuple[InputFile, Iterator[Record | BadRecord]]]:
        """Yield each file with its records, which are read as they are taken.

        The records of remote files may raise the errors of their store.
        """
        most = max(1, min(self.bounds.files, self.bounds.bytes // LEAST_SHARE))
        chosen = spread(self.listed, most)
        for number, file in enumerate(chosen):
            share = (self.bounds.bytes - self.bytes_read) // (len(chosen) - number)
            if share <= 0:
                return
            limit = ReadingLimit(share if self.bounds.file_bytes is None else min(share, self.bounds.file_bytes))
            self.files_read += 1
            yield file, self._records(file, limit)
            self.bytes_read += limit.read

    def _records(self, file: InputFile, limit: ReadingLimit) -> Iterator[Record | BadRecord]:
        opened = file
        if isinstance(file.path, RemoteFile):
            opened = replace(file, path=RangedFile(file.path.uri, file.path.mark))
        any_found = False
        try:
            for count, found in enumerate(read_records(opened, self.source, 0, lambda _: None, limit), start=1):
                if isinstance(found, Record | BadRecord):
                    any_found = True
                    yield found
                if count == self.bounds.file_records:
                    return
        except EnoughRead:
            if not any_found:
                self.unseen.append(file)


Item = TypeVar("Item")

_GOLDEN_RATIO = 40503
"""The fraction of the golden ratio in 65,536ths."""


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` of the items in order, evenly spread, including the first.

    The items are divided into as many equal pieces, and the place within a piece follows the golden ratio: a fixed step
    would take the same kind again and again where kinds alternate.
    """
    count = min(most, len(items))
    bounds = [number * len(items) // count for number in range(count)] + [len(items)]
    return [
        items[begin + (end - begin) * (number * _GOLDEN_RATIO % 2**16) // 2**16]
        for number, (begin, end) in enumerate(pairwise(bounds))
    ]
