"""How many records files hold: exact where that costs nothing, else estimated from the beginnings of some."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flows.survey.looking import look_at, spread

MOST_FILES = 16
"""Files of a kind that are looked into; the others count with their bytes."""


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
