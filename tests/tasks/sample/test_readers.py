"""Every format is read to its last good record, and what is broken is named with its place."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tasks.sample.config import Source
from tasks.sample.discovery import InputFile, guess_format
from tasks.sample.readers import read_records
from tasks.sample.records import BadRecord, Record


def read(path: Path, begin: int = 0, **fields) -> list[Record | BadRecord]:
    source = Source(name="s", paths=(str(path),), weight=1, **fields)
    format, compression = guess_format(path)
    file = InputFile("s", path, path.name, format or "text", compression, path.stat().st_size)
    return list(read_records(file, source, begin, lambda count: None))


def line(text: str, **more) -> bytes:
    return json.dumps({"text": text, **more}).encode() + b"\n"


def test_jsonl_records_carry_line_number_and_first_byte(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"one"}\n\n{"text":"two"}')
    assert read(path) == [Record(0, 0, "one"), Record(2, 16, "two")]


def test_a_broken_line_is_rejected_and_reading_goes_on(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("one") + b'{"text": oops}\n' + line("three"))
    good, bad, last = read(path)
    assert (good.text, last.text) == ("one", "three")
    assert bad.number == 1
    assert bad.byte == len(line("one")) + len('{"text": ')
    assert bad.reason.startswith("broken JSON")
    assert bad.excerpt == '{"text": oops}'


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"body": "x"}', "no field `text`"),
        (b'{"text": 5}', "field `text` holds int, not text"),
        (b'{"text": null}', "field `text` holds NoneType, not text"),
        (b'{"text": " \\n"}', "empty text"),
        (b'["text"]', "not a JSON object but list"),
        (b'{"text": "\\ud83d"}', "text holds half of a surrogate pair, which is no character"),
        (b'{"text": "a\xffb"}', "invalid UTF-8 at byte 11"),
        (b"[" * 200_000, "broken JSON"),
    ],
)
def test_each_defect_of_a_line_has_its_reason(tmp_path, raw, reason):
    path = tmp_path / "a.jsonl"
    path.write_bytes(raw + b"\n" + line("after"))
    bad, after = read(path)
    assert isinstance(bad, BadRecord)
    assert bad.reason.startswith(reason)
    assert after.text == "after"


def test_a_line_above_the_limit_is_rejected_without_being_held(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("x" * 5000) + line("short"))
    bad, short = read(path, max_file_bytes=1000)
    assert bad.reason == "line longer than max_file_bytes (1000)"
    assert (short.number, short.byte) == (1, len(line("x" * 5000)))


def test_ids_come_from_the_id_field_and_must_be_there(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a", id=7) + line("b", id="x") + line("c"))
    a, b, c = read(path, id_field="id")
    assert (a.key, b.key) == ("7", "x")
    assert c.reason == "no id in field `id`"


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_lines_read_like_plain_ones(tmp_path, compress):
    lines = [line(f"text {number}") for number in range(300)]
    suffix = ".gz" if compress is gzip.compress else ".zst"
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(b"".join(lines[:150])) + compress(b"".join(lines[150:])))
    assert [found.text for found in read(path)] == [f"text {number}" for number in range(300)]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_torn_compressed_file_keeps_what_was_readable_and_rejects_the_rest_once(tmp_path, compress):
    lines = [line(f"text {number} {number * 2654435761 % 2**32}") for number in range(20_000)]
    whole = compress(b"".join(lines))
    suffix = ".gz" if compress is gzip.compress else ".zst"
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(whole[: len(whole) // 2])
    *good, bad = read(path)
    assert len(good) > 1000
    assert [found.text.split()[1] for found in good] == [str(number) for number in range(len(good))]
    assert "stream ends early" in bad.reason
    assert bad.number == len(good)
    assert bad.byte == sum(len(raw) for raw in lines[: len(good)])


def test_damaged_gzip_bytes_end_in_one_reject(tmp_path):
    raw = bytearray(gzip.compress(b"".join(line(f"text {number}") for number in range(50))))
    raw[-6] ^= 0xFF  # the checksum
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(raw)
    *good, bad = read(path)
    assert len(good) == 50
    assert bad.reason.startswith("damaged gzip data")


def test_reading_can_begin_at_a_later_record(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(line(str(number)) for number in range(5)))
    assert read(path, begin=3) == read(path)[3:]


def test_a_text_file_is_one_document_and_keeps_its_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffZeile eins\r\nZeile zwei\n".encode())
    assert read(path) == [Record(0, 3, "Zeile eins\r\nZeile zwei\n")]


def test_a_text_file_in_another_encoding_is_rejected_at_its_first_bad_byte(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("caf\xe9 au lait".encode("latin-1"))
    (bad,) = read(path)
    assert (bad.number, bad.byte, bad.reason) == (0, 3, "invalid UTF-8 at byte 3")
    assert bad.excerpt == "caf\\xe9 au lait"


def test_a_text_file_above_the_limit_is_rejected(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 101)
    assert read(path, max_file_bytes=101) == [Record(0, 0, "x" * 101)]
    (bad,) = read(path, max_file_bytes=100)
    assert bad.reason == "larger than max_file_bytes (100)"


def test_parquet_rows_are_records(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", None, "three"], "id": [1, 2, 3], "other": [0, 0, 0]}), path)
    one, bad, three = read(path, id_field="id")
    assert (one, three) == (Record(0, 0, "one", "1"), Record(2, 0, "three", "3"))
    assert bad == BadRecord(1, 0, "column `text` is null")


def test_parquet_strings_that_are_not_utf8_are_rejected_alone(tmp_path):
    path = tmp_path / "a.parquet"
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0\5\0\0\0"), pa.py_buffer(b"a\xffbok")]
    )
    pq.write_table(pa.table({"text": text}), path)
    bad, ok = read(path)
    assert bad.reason == "invalid UTF-8 at byte 1"
    assert ok.text == "ok"


def test_parquet_without_the_text_column_is_one_reject(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["one"]}), path)
    assert read(path) == [BadRecord(0, 0, "no column `text`", "columns: body")]


def test_parquet_with_numbers_for_text_is_one_reject(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [1, 2]}), path)
    assert read(path) == [BadRecord(0, 0, "column `text` holds int64, not text")]


def test_a_torn_parquet_file_is_one_reject(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one"] * 1000}), path)
    path.write_bytes(path.read_bytes()[:-20])
    (bad,) = read(path)
    assert "parquet" in bad.reason.lower()


def test_parquet_can_begin_at_a_later_row(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(1200)]}), path)
    assert [found.number for found in read(path, begin=1100)] == list(range(1100, 1200))


def test_a_link_to_nothing_is_rejected(tmp_path):
    path = tmp_path / "a.txt"
    path.symlink_to(tmp_path / "gone.txt")
    source = Source(name="s", paths=(str(path),), weight=1)
    (bad,) = read_records(InputFile("s", path, "a.txt", "text", None, -1), source, 0, lambda count: None)
    assert bad.reason == "unreadable: No such file or directory"
