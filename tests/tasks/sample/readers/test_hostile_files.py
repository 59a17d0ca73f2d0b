"""Files that block, never end, unpack without end, or say two things: each is reported, and the others are read."""

import gzip
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from model.digests import open_file, unreadable_reason
from model.errors import GuardError, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.clean.config import CleanConfig, DenyConfig, SpellingConfig, WordListConfig
from tasks.clean.stage import read_user_resources
from tasks.decontaminate.config import Benchmark, DecontaminateConfig
from tasks.decontaminate.stage import benchmark_contents
from tasks.sample.config import SampleConfig, Source, Thread
from tasks.sample.discovery import InputFile, find_files
from tasks.sample.formats import guess_format
from tasks.sample.readers import byte_stream as byte_blocks
from tasks.sample.readers import parquet_reader as columns
from tasks.sample.readers.files import read_records
from tasks.sample.readers.parquet_reader import DamagedHeader, pages
from tasks.sample.readers.records import BadRecord, Record
from tasks.sample.stage import build_sample
from tasks.vocab.stage import check_base_exists

DOCUMENTS = 40


class Late(BaseException):
    """Raised where a read blocks or does not end; no reader takes it for a fault of its file."""


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 60, 1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of 40 good documents."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(DOCUMENTS):
        (folder / f"good{number:02}.txt").write_text(f"Document {number} about the making of steel.\n")
    return folder


def sampled(folder: Path | str, **settings: Any) -> Artifact:
    source = Source(name="s", paths=(str(folder),), weight=1, **settings.pop("source", {}))
    config = SampleConfig(sources=(source,), **{"budget_tokens": 10**9, **settings})
    root = Path(str(folder)).parent / "root"
    return build_sample(RunContext(root, "run"), config)


def rejects(artifact: Artifact) -> dict[str, str]:
    return {row["path"]: row["reason"] for row in artifact.table("rejects").to_pylist()}


def read(path: Path, begin: int = 0, **fields: Any) -> list[Any]:
    source = Source(name="s", paths=(str(path),), weight=1, **fields)
    format, compression = guess_format(path.name)
    file = InputFile("s", path, path.name, format or "text", compression, path.stat().st_size)
    return list(read_records(file, source, begin, lambda count: None))


def test_what_is_no_file_is_reported_loses_nothing_and_the_others_are_read(folder: Path) -> None:
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "zero.parquet").symlink_to("/dev/zero")
    (folder / "empty.txt").write_bytes(b"")
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(folder / "end.txt"))
        artifact = sampled(folder)
    assert artifact.rows("documents") == DOCUMENTS
    assert rejects(artifact) == {
        "pipe.jsonl": "not a file but a FIFO",
        "zero.parquet": "not a file but a character device",
        "end.txt": "not a file but a socket",
        "empty.txt": "empty file",
    }
    named = {file["path"] for file in artifact.report.facts["rejected_files"]["s"]}
    assert named == {"pipe.jsonl", "zero.parquet", "end.txt"}


def test_a_source_of_nothing_but_a_fifo_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    config = SampleConfig(sources=(Source(name="s", paths=(str(tmp_path),), weight=1),), budget_tokens=1)
    with pytest.raises(InputError, match="1 that is a FIFO"):
        find_files(config)
    named = config.model_copy(update={"sources": (Source(name="s", paths=(f"{tmp_path}/pipe.txt",), weight=1),)})
    with pytest.raises(InputError, match="is a FIFO, not a file"):
        find_files(named)


def test_links_to_nothing_and_in_a_circle_are_reported(folder: Path) -> None:
    (folder / "gone.txt").symlink_to(folder / "nothing")
    (folder / "circle.txt").symlink_to(folder / "circle.txt")
    (folder / "elsewhere").symlink_to(folder)
    os.rename(folder / "good00.txt", os.fsencode(folder) + b"/b\xe4d.txt")
    artifact = sampled(folder, max_reject_share=0.1)
    assert artifact.rows("documents") == DOCUMENTS
    assert rejects(artifact) == {
        "gone.txt": "unreadable: No such file or directory",
        "circle.txt": "unreadable: Too many levels of symbolic links",
    }
    assert artifact.report.facts["files"]["s"]["links to folders, which are not followed"] == 1


@pytest.mark.parametrize("path", ["", "/*/*.txt", "/**/*.txt", "/**", "/**/*/*.txt"])
def test_folders_that_nobody_may_read_are_counted(path: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        for inner in ("open", "closed"):
            (Path(name) / inner).mkdir()
            (Path(name) / inner / "a.txt").write_text("Words.")
        os.chmod(f"{name}/closed", 0)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)  # root may read everything
        try:
            (listing,) = find_files(
                SampleConfig(sources=(Source(name="s", paths=(name + path,), weight=1),), budget_tokens=1)
            )
        finally:
            os.seteuid(before)
            os.chmod(f"{name}/closed", 0o700)
    assert [file.relative for file in listing.files] == ["open/a.txt"]
    assert listing.skipped == {"folders that cannot be read (Permission denied)": 1}


def test_a_pattern_reads_a_folder_that_a_link_leads_back_to_once(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "more.txt").write_text("One more.\n")
    (folder / "deep" / "up").symlink_to(folder)
    (folder / "deep" / "here").symlink_to(folder / "deep")
    config = SampleConfig(sources=(Source(name="s", paths=(f"{folder}/**/*.txt",), weight=1),), budget_tokens=1)
    (listing,) = find_files(config)
    assert len(listing.files) == DOCUMENTS + 1


def test_a_large_file_that_is_rejected_does_not_count_as_text(folder: Path) -> None:
    alone = sampled(folder, budget_tokens=10_000).rows("documents")
    with (folder / "huge.txt").open("wb") as stream:
        stream.truncate(1 << 30)
    with (folder / "line.jsonl").open("wb") as stream:
        stream.truncate(1 << 28)
    pq.write_table(pa.table({"body": ["x" * 1000] * 1000}), folder / "other.parquet")
    artifact = sampled(folder, budget_tokens=10_000, max_reject_share=0.1)
    assert artifact.rows("documents") == alone == DOCUMENTS
    assert {path: reason[:17] for path, reason in rejects(artifact).items()} == {
        "huge.txt": "larger than max_f",
        "line.jsonl": "line longer than ",
        "other.parquet": "no column `text`",
    }


def arrow_file(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv"])
@pytest.mark.parametrize("twice", ["text", "id"])
def test_a_column_name_that_occurs_twice_is_one_reject(folder: Path, name: str, twice: str) -> None:
    table = pa.table([pa.array(["one"]), pa.array(["two"]), pa.array(["three"])], ["text", "id", twice])
    if name == "a.csv":
        (folder / name).write_text(f"text,id,{twice}\none,two,three\n")
    else:
        (pq.write_table if name == "a.parquet" else arrow_file)(table, folder / name)
    artifact = sampled(folder, max_reject_share=0.1, source={"id_field": "id"} if twice == "id" else {})
    assert rejects(artifact) == {name: f"2 columns are named `{twice}`"}
    assert artifact.rows("documents") == DOCUMENTS


def test_another_column_that_occurs_twice_does_no_harm(tmp_path: Path) -> None:
    table = pa.table([pa.array(["one"]), pa.array([1]), pa.array([2])], ["text", "x", "x"])
    for write, name in ((pq.write_table, "a.parquet"), (arrow_file, "a.arrow")):
        write(table, tmp_path / name)
        assert read(tmp_path / name) == [Record(0, 0, "one")]


def packed(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else zstandard.compress(raw))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "a.warc"])
def test_what_unpacks_to_a_multiple_of_its_bytes_is_read_up_to_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, suffix: str
) -> None:
    monkeypatch.setattr(byte_blocks, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    packed(folder / f"{name}{suffix}", b'text\n{"text": "first"}\n' + b"\0" * (32 << 20))
    artifact = sampled(folder, max_reject_share=1.0)
    reported = rejects(artifact)[f"{name}{suffix}"]
    assert reported.startswith("unpacks to more than 200 times its") or name in ("a.jsonl", "a.warc")
    assert "(max_unpacked_ratio)" in "".join(row["reason"] for row in artifact.table("rejects").to_pylist())
    assert artifact.rows("documents") >= DOCUMENTS


def test_records_before_the_limit_are_kept_and_threads_too(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{number} {os.urandom(40).hex()}", "id": number, "thread_id": number})
             for number in range(1000)]  # fmt: skip
    path = tmp_path / "a.jsonl.gz"
    packed(path, "\n".join(lines).encode())
    limit = len("\n".join(lines)) // 2
    several: tuple[dict[str, Any], ...] = ({}, {"thread": Thread()})
    for fields in several:
        found = read(path, 0, max_unpacked_bytes=limit, **fields)
        bad = [one for one in found if isinstance(one, BadRecord)]
        assert [one.reason for one in bad] == [f"unpacks to more than max_unpacked_bytes ({limit:,}) allows"]
        assert len(found) > 300
        assert len(read(path, 0, max_unpacked_bytes=10**6, **fields)) == 1000


def test_an_honest_ratio_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    packed(path, (json.dumps({"text": "the same line"}) + "\n").encode() * 100_000)
    assert len(read(path)) == 100_000


def test_a_parquet_column_that_unpacks_to_a_multiple_of_its_bytes_is_rejected_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_blocks, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["x" * (4 << 20), "y" * (4 << 20)]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    found = read(path)
    assert [one.number for one in found] == [0, 1]
    assert all("row group 0 unpacks to more than 200 times its" in one.reason for one in found)
    assert [one.text[0] for one in read(path, max_unpacked_ratio=10**6)] == ["x", "y"]


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_page_headers_are_read_as_they_were_written(tmp_path: Path, use_dictionary: bool, version: str) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"{number % 50} " + "word " * 200 for number in range(3000)]
    pq.write_table(
        pa.table({"n": range(3000), "text": texts}),
        path,
        use_dictionary=use_dictionary,
        data_page_version=version,
        data_page_size=1 << 16,
        write_batch_size=64,
        compression="snappy",
    )
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(1)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    found = list(pages(io.BytesIO(path.read_bytes()), begin, begin + chunk.total_compressed_size))
    assert sum(page.values for page in found if not page.is_dictionary) == 3000
    assert [page.values for page in found if page.is_dictionary] == ([50] if use_dictionary else [])
    assert len(found) > 2 or use_dictionary
    headers = chunk.total_uncompressed_size - sum(page.unpacked for page in found)
    assert 0 < headers < 100 * len(found) + 2 * 1100 * len(found)


@pytest.mark.parametrize(
    "header",
    [
        b"\x15" + b"\xff" * (1 << 22),  # a number of four million bytes
        b"\x19\xf1" + b"\xff" * 8 + b"\x01",  # a list of 2^57 booleans that are not there
        b"\x19\xf3" + b"\xff" * 8 + b"\x01",  # of bytes
        b"\x15\x02\x15\x02\x15\x02\x25\x02\x00",  # a number where the header of a data page belongs
        b"\x11\x11\x15\x02\x2c\x15\x02\x00\x00",  # sizes that are booleans
        b"\x15\x02\x15\x01\x15\x02\x2c\x15\x02\x00\x00",  # -1 byte unpacked
        b"\x15\x02\x15\x02\x15\x01\x2c\x15\x02\x00\x00",  # -1 byte stored
        b"\x15\x02\x15\x02\x15\x02\x2c\x15\x01\x00\x00",  # -1 values
        b"\x1c" * 100_000,  # structures in structures
        b"\x1b\x01\x55\x02\x02\x00",  # a map
        b"",
    ],
)
def test_bytes_that_are_no_page_header_are_damage_at_once(header: bytes) -> None:
    signal.setitimer(signal.ITIMER_REAL, 5)
    with pytest.raises(DamagedHeader):
        list(pages(io.BytesIO(header), 0, max(1, len(header))))


def test_a_page_offset_below_zero_is_damage() -> None:
    with pytest.raises(DamagedHeader):
        list(pages(io.BytesIO(b"\x00" * 100), -5, 95))


def test_a_row_group_of_one_large_page_is_rejected_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_BATCH_BYTES", 1 << 16)
    monkeypatch.setattr(columns, "LARGEST_PAGE", 1 << 18)
    path = tmp_path / "a.parquet"
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        writer.write_table(pa.table({"text": [os.urandom(1000).hex() for _ in range(1000)]}))
        writer.write_table(pa.table({"text": ["short"] * 3}))
    found = read(path)
    assert [type(one) for one in found] == [BadRecord] * 1000 + [Record] * 3
    assert found[0].reason.startswith("row group 0 has a page of ")
    assert "smaller row groups" in found[0].reason


def test_long_rows_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BATCH_BYTES", 1 << 20)
    asked: list[int] = []
    read_batches = pq.ParquetFile.iter_batches

    def heard(self: Any, rows: int, **more: Any) -> Any:
        asked.append(rows)
        return read_batches(self, rows, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", heard)
    texts = ["short"] * 2000 + [character * (200 << 10) for character in "abcdefgh"]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts}), path, use_dictionary=False, write_batch_size=1, data_page_size=1 << 16)
    assert [one.text for one in read(path)] == texts
    pq.write_table(pa.table({"text": ["a" * (500 << 10)] * 100}), path)
    assert len(read(path)) == 100
    assert asked == [5, 2]


WRITE_TWO_GIGABYTES = """
import os, sys, pyarrow as pa, pyarrow.parquet as pq
texts = pa.array([os.urandom(1 << 20).hex()] * 1000)
pq.write_table(pa.table({"text": texts}), sys.argv[1], use_dictionary=False, write_batch_size=int(sys.argv[2]))
"""
READ_IN_MEMORY = """
import resource, sys
from pathlib import Path
from tests.tasks.sample.readers.test_hostile_files import *
source = Source(name="s", paths=("a",), weight=1)
file = InputFile("s", Path(sys.argv[1]), "a.parquet", "parquet", None, 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kinds = {type(found).__name__ for found in read_records(file, source, 0, lambda count: None)}
print(*kinds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.prove
@pytest.mark.parametrize(("rows_a_page", "expected"), [(1, "Record"), (1024, "BadRecord")])
def test_a_row_group_of_two_gigabytes_takes_little_memory(tmp_path: Path, rows_a_page: int, expected: str) -> None:
    signal.setitimer(signal.ITIMER_REAL, 600)
    path = tmp_path / "a.parquet"
    subprocess.run([sys.executable, "-c", WRITE_TWO_GIGABYTES, path, str(rows_a_page)], check=True)
    assert pq.ParquetFile(path).metadata.row_group(0).total_byte_size > 2 * 10**9
    words = [sys.executable, "-c", READ_IN_MEMORY, path]
    kind, megabytes = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert kind == expected
    assert int(megabytes) < 600


def test_dictionaries_and_large_types_are_read(tmp_path: Path) -> None:
    texts = ["one", "two", None, "one"]
    for kind in (
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int64(), pa.large_string()),
        pa.large_string(),
        pa.large_binary(),
        pa.string_view(),
    ):
        arrow_file(pa.table({"text": pa.array(texts, pa.string()).cast(kind)}), tmp_path / "a.arrow")
        found = read(tmp_path / "a.arrow")
        assert [getattr(one, "text", None) for one in found] == texts, kind


def test_a_dictionary_is_not_written_out_for_every_row(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * (8 << 20)]))
    arrow_file(pa.table({"text": column}), tmp_path / "a.arrow")
    before = pa.total_allocated_bytes()
    source = Source(name="s", paths=("a",), weight=1)
    file = InputFile("s", tmp_path / "a.arrow", "a.arrow", "arrow", None, 1)
    records = read_records(file, source, 0, lambda count: None)
    assert isinstance(next(records), Record)
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_offsets_and_places_that_lead_outside_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    arrow_file(pa.table({"text": ["first text", "second text"]}), path)
    raw = path.read_bytes()
    offsets = (0).to_bytes(4, "little") + (10).to_bytes(4, "little") + (21).to_bytes(4, "little")
    wrong = (0).to_bytes(4, "little") + (2**30).to_bytes(4, "little") + (21).to_bytes(4, "little")
    assert raw.count(offsets) == 1
    path.write_bytes(raw.replace(offsets, wrong))
    found = read(path)
    assert [f"{bad.number} {bad.reason[:20]}" for bad in found] == ["0 damaged record batch", "1 damaged record batch"]
    places = pa.DictionaryArray.from_arrays(pa.array([0, 7, 0], pa.int8()), pa.array(["one"]), safe=False)
    arrow_file(pa.table({"text": places}), path)
    first, bad, last = read(path)
    assert [(one.number, one.text) for one in (first, last)] == [(0, "one"), (2, "one")]
    assert (bad.number, bad.reason) == (1, "place 7 of a dictionary of 1 values")


def test_damaged_names_of_other_columns_cost_nothing_but_in_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", "two"], "other": [{"inner": 1}, {"inner": 2}]}), path, row_group_size=1)
    raw = path.read_bytes()
    in_schema, *in_row_groups = (found.start() for found in re.finditer(b"inner", raw))
    assert len(in_row_groups) == 2
    for at in in_row_groups:
        path.write_bytes(raw[:at] + b"\xff" + raw[at + 1 :])
        assert read(path) == [Record(0, 0, "one"), Record(1, 0, "two")]
    path.write_bytes(raw[:in_schema] + b"\xff" + raw[in_schema + 1 :])
    (bad,) = read(path)
    assert bad.reason.startswith("torn parquet file: 'utf-8' codec can't decode byte 0xff")


READ_FILE = """
import sys
from pathlib import Path
from tasks.sample.config import Source
from tasks.sample.discovery import InputFile
from tasks.sample.readers.files import read_records
path, kind, id_field = Path(sys.argv[1]), sys.argv[2], sys.argv[3] or None
file = InputFile("s", path, path.name, kind, None, 1)
for found in read_records(file, Source(name="s", paths=("a",), weight=1, id_field=id_field), 0, lambda count: None):
    print(found.number, getattr(found, "text", "") or found.reason[:20])
"""


def read_in_a_program(path: Path, kind: str, id_field: str = "") -> list[str]:
    words = [sys.executable, "-c", READ_FILE, path, kind, id_field]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()


def test_offsets_of_ids_that_lead_outside_end_no_process(tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 2_000_000_000, 3], pa.int32()).buffers()[1]
    ids = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
    arrow_file(pa.table({"text": ["x", "y", "z"], "id": ids}), tmp_path / "a.arrow")
    expected = [f"{number} damaged record batch" for number in range(3)]
    assert read_in_a_program(tmp_path / "a.arrow", "arrow", "id") == expected


def test_damaged_statistics_of_another_column_end_no_process(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", "two"], "other": [[1, 2], [3]]}), path)
    raw = path.read_bytes()
    # The size statistics of `other` begin with how often each level of repetition occurs: two levels, and here three.
    levels, damaged = bytes.fromhex("3c29260402"), bytes.fromhex("3c29360402")
    assert raw.count(levels) == 1
    path.write_bytes(raw.replace(levels, damaged))
    assert read_in_a_program(path, "parquet") == ["0 one", "1 two"]


@pytest.mark.parametrize(
    ("head", "reason"),
    [("Content-Length: \u00b2", "no Content-Length"), (f"Content-Length: {'9' * 5000}", "no Content-Length")],
)
def test_a_length_that_is_no_number_is_damage(tmp_path: Path, head: str, reason: str) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(f"WARC/1.0\r\nWARC-Type: response\r\n{head}\r\n\r\nx\r\n\r\n".encode())
    assert [one.reason[: len(reason)] for one in read(path)] == [reason]


def test_chunks_of_negative_length_do_not_lead_in_a_circle(tmp_path: Path) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n-6\r\nxyz\r\n"
    head = f"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: {len(page)}\r\n\r\n"
    path = tmp_path / "a.warc"
    path.write_bytes(head.encode() + page + b"\r\n\r\n")
    assert [one.reason for one in read(path)] == ["damaged chunks of a page"]


def test_a_nul_in_a_table_and_endless_brackets_end_in_records(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text\na\0b\nc\n")
    assert [one.text for one in read(tmp_path / "a.csv")] == ["a\0b", "c"]
    deep = b'{"text": ' + b'{"a":' * 500_000 + b"1" + b"}" * 500_001
    (tmp_path / "a.jsonl").write_bytes(deep + b"\n" + b'{"text": "after"}')
    bad, after = read(tmp_path / "a.jsonl")
    assert bad.reason.startswith("broken JSON")
    assert after.text == "after"


@pytest.fixture(params=["pipe", "zero", "socket", "circle", "folder"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "given"
    with socket.socket(socket.AF_UNIX) as endpoint:
        match request.param:
            case "pipe":
                os.mkfifo(path)
            case "zero":
                path.symlink_to("/dev/zero")
            case "socket":
                endpoint.bind(str(path))
            case "circle":
                path.symlink_to(path)
            case _:
                path.mkdir()
        yield path


GIVEN: list[Callable[[Path], object]] = [
    lambda path: read_user_resources(CleanConfig(deny=DenyConfig(path=str(path)))),
    lambda path: read_user_resources(CleanConfig(word_lists=(WordListConfig(name="w", path=str(path)),))),
    lambda path: read_user_resources(CleanConfig(spelling=(SpellingConfig(path=str(path)),))),
    lambda path: check_base_exists(path),
    lambda path: benchmark_contents(path.parent, DecontaminateConfig(benchmarks=(Benchmark(name="b", path=path),))),
    lambda path: benchmark_contents(
        path.parent, DecontaminateConfig(benchmarks=(Benchmark(name="b", path=Path(__file__), answers_path=path),))
    ),
]


@pytest.mark.parametrize("take", GIVEN)
def test_a_list_a_base_and_a_benchmark_that_are_no_files_are_refused(
    no_file: Path, take: Callable[[Path], object]
) -> None:
    with pytest.raises(InputError, match="given"):
        take(no_file)
    assert unreadable_reason(no_file)
    with pytest.raises(OSError, match="given"):
        open_file(no_file)


def test_the_guard_still_counts_what_was_lost(folder: Path) -> None:
    (folder / "gone.txt").symlink_to(folder / "nothing")
    with pytest.raises(GuardError, match=r"1 of 41 records .* `gone.txt`"):
        sampled(folder)
