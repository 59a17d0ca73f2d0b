"""Some records of a source are read within bounds, whatever its files hold, and evenly over its files."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.sample.bounded_reader import LEAST_SHARE, BoundedReader, Bounds, spread
from tasks.sample.config import SampleConfig, Source, Thread
from tasks.sample.discovery import find_files
from tasks.sample.readers.records import BadRecord, Record

MIB = 1 << 20


def lines(first: int, count: int, size: int = 1000) -> str:
    return "".join(json.dumps({"text": f"{number:07d} " + "x" * (size - 8)}) + "\n" for number in range(first, count))


Found = dict[str, list[Record | BadRecord]]


def read(paths: object, bounds: Bounds, **settings: object) -> tuple[BoundedReader, Found]:
    source = Source.model_validate({"name": "s", "paths": str(paths), "weight": 1, **settings})
    (listing,) = find_files(SampleConfig(sources=(source,), budget_tokens=1))
    reader = BoundedReader(source, listing.files, bounds)
    return reader, {file.relative: list(records) for file, records in reader.files()}


def bytes_of(found: Found) -> int:
    return sum(len(record.text) for records in found.values() for record in records if isinstance(record, Record))


def test_bytes_count_after_decompression(tmp_path: Path) -> None:
    text = lines(0, 20_000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode(), 1))
    assert (tmp_path / "a.jsonl.gz").stat().st_size < MIB < len(text) // 16
    reader, found = read(tmp_path, Bounds(8, MIB))
    assert reader.bytes_read == MIB
    records = found["a.jsonl.gz"]
    # A line has 1,013 bytes, so that the 1,036th is cut: it is left out, not rejected.
    assert len(records) == MIB // 1013 == 1035
    assert all(isinstance(record, Record) and record.number == place for place, record in enumerate(records))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_of_a_huge_file_its_beginning_is_read(tmp_path: Path, suffix: str) -> None:
    texts = [f"{number:07d} " + "x" * 992 for number in range(20_000)]
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text(lines(0, 20_000))
    elif suffix == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema({"text": pa.string()})) as writer:
            writer.write_table(pa.table({"text": texts}))
    reader, found = read(path, Bounds(8, MIB))
    assert 0.9 * MIB < bytes_of(found) <= reader.bytes_read <= MIB
    assert not reader.unseen


def test_a_huge_document_is_named_as_unseen(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("word " * MIB)
    (tmp_path / "page.txt").write_text("word")
    reader, found = read(tmp_path, Bounds(8, 2 * MIB))
    assert {name: len(records) for name, records in found.items()} == {"book.txt": 0, "page.txt": 1}
    assert [file.relative for file in reader.unseen] == ["book.txt"]
    _, found = read(tmp_path, Bounds(8, 2 * MIB), max_file_bytes=MIB)
    (bad,) = found["book.txt"]
    assert isinstance(bad, BadRecord)
    assert "larger than max_file_bytes" in bad.reason


def test_files_are_spread_evenly_and_a_small_one_leaves_its_share_to_the_next(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02d}.jsonl").write_text(lines(0, 1 if number < 20 else 2000))
    reader, found = read(tmp_path, Bounds(8, 8 * MIB))
    numbers = [int(name.removesuffix(".jsonl")) for name in found]
    assert numbers == [0, 8, 11, 19, 22, 25, 33, 36]
    assert [number // 5 for number in numbers] == list(range(8)), "one of each five"
    sizes = [len(records) for records in found.values()]
    assert sizes[:4] == [1] * 4
    assert min(sizes[4:]) > 1900
    assert reader.bytes_read <= 8 * MIB
    reader, found = read(tmp_path, Bounds(8, 2 * LEAST_SHARE))
    assert len(found) == reader.files_read == 2


@pytest.mark.parametrize("period", [2, 3, 4, 5])
def test_kinds_that_alternate_are_all_among_the_items_that_are_spread(period: int) -> None:
    """At least half of what a kind would have in an even share."""
    chosen = spread(range(40 * period), 40)
    assert chosen == sorted(set(chosen))
    kinds = [sum(item % period == kind for item in chosen) for kind in range(period)]
    assert sum(kinds) == 40
    assert min(kinds) >= 40 // period // 2
    assert spread("abc", 5) == ["a", "b", "c"]
    assert spread("", 5) == []


def test_a_file_has_bounds_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(0, 2000))
    _, found = read(tmp_path, Bounds(8, 8 * MIB, file_records=64))
    assert len(found["a.jsonl"]) == 64
    reader, _ = read(tmp_path, Bounds(8, 8 * MIB, file_bytes=300_000))
    assert reader.bytes_read == 300_000


def test_threads_are_made_of_what_was_read(tmp_path: Path) -> None:
    messages = [{"text": "x" * 1000, "id": str(number), "thread_id": str(number % 7)} for number in range(5000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(message) + "\n" for message in messages))
    _, found = read(tmp_path, Bounds(8, MIB), thread=Thread(paths="all"))
    assert len(found["a.jsonl"]) == 7
    assert 0.9 * MIB < bytes_of(found) < MIB
