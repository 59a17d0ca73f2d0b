"""Every format is read to its last good record, and what is broken is named with its place."""

import bz2
import errno
import gzip
import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.sample.config import Source
from tasks.sample.discovery import InputFile
from tasks.sample.formats import guess_format
from tasks.sample.readers.byte_stream import Line
from tasks.sample.readers.files import read_records
from tasks.sample.readers.jsonl_reader import json_object, parse_line, record_of_fields
from tasks.sample.readers.records import BadRecord, Record, Skipped


def read(path: Path, begin: int = 0, on_bytes=lambda count: None, **fields) -> list:
    source = Source(name="s", paths=(str(path),), weight=1, **fields)
    format, compression = guess_format(path.name)
    file = InputFile("s", path, path.name, format or "text", compression, path.stat().st_size)
    return list(read_records(file, source, begin, on_bytes))


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
    assert bad.reason == "broken JSON: Expecting value at character 10 of the line"
    assert bad.excerpt == '{"text": oops}'


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"text": "no end', "broken JSON: Unterminated string starting at character 10 of the line"),
        (b'{"text": "a\tb"}', "broken JSON: Invalid control character at character 12 of the line"),
        (b'{"body": "x"}', "no field `text`"),
        (b'{"text": 5}', "field `text` holds a number, not text"),
        (b'{"text": null}', "field `text` holds null, not text"),
        (b'{"text": " \\n"}', "empty text"),
        (b'["text"]', "not a JSON object but a list"),
        (b'{"text": true}', "field `text` holds true or false, not text"),
        (b'{"text": {"en": "x"}}', "field `text` holds an object, not text"),
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


def test_an_empty_file_is_one_reject(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    assert read(path) == [BadRecord(0, 0, "empty file")]


def test_a_folder_is_one_reject(tmp_path):
    path = tmp_path / "a.jsonl"
    path.mkdir()
    assert read(path) == [BadRecord(0, 0, "unreadable: Is a directory")]


def test_behind_a_damaged_gzip_member_reading_goes_on(tmp_path):
    members = [gzip.compress(b"".join(line(f"{member} {number}") for number in range(500))) for member in range(3)]
    broken = bytearray(members[1])
    broken[len(broken) // 2] ^= 0xFF
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(members[0] + bytes(broken) + members[2])
    found = read(path)
    texts = [record.text for record in found if isinstance(record, Record)]
    gaps = [record for record in found if isinstance(record, BadRecord)]
    assert {f"{member} {number}" for member in (0, 2) for number in range(500)} <= set(texts)
    assert any(gap.reason.startswith("damaged gzip data") for gap in gaps)
    assert [record.number for record in found] == sorted({record.number for record in found})


@pytest.mark.parametrize(
    ("compress", "suffix", "reason"),
    [
        (gzip.compress, ".gz", "damaged gzip data"),
        (zstandard.compress, ".zst", "damaged zstd data"),
        (bz2.compress, ".bz2", "damaged bzip2 data"),
    ],
)
def test_what_precedes_the_first_compressed_byte_is_named(tmp_path, compress, suffix, reason):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(b"junk!" + compress(line("one") + line("two")))
    bad, *good = read(path)
    assert isinstance(bad, BadRecord)
    assert bad.reason.startswith(reason)
    assert [record.text for record in good] == ["one", "two"]


def test_behind_a_damaged_zstd_frame_reading_goes_on(tmp_path):
    frames = [
        zstandard.ZstdCompressor(write_checksum=True).compress(b"".join(line(f"{f} {n}") for n in range(500)))
        for f in range(3)
    ]
    broken = bytearray(frames[1])
    broken[20] ^= 0xFF
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(frames[0] + bytes(broken) + frames[2])
    found = read(path)
    texts = {record.text for record in found if isinstance(record, Record)}
    assert {f"{frame} {number}" for frame in (0, 2) for number in range(500)} <= texts
    assert any(isinstance(record, BadRecord) and "damaged zstd" in record.reason for record in found)


@settings(max_examples=200)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "id", "a"]), inner),
    max_leaves=6,
))  # fmt: skip
def test_the_fast_way_reads_what_the_standard_library_reads(value):
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", errors="surrogatepass")
    source = Source(name="s", paths="x", weight=1, id_field="id")
    fields = json_object(0, 0, raw)
    wanted = fields if isinstance(fields, BadRecord) else record_of_fields(0, 0, fields, source, raw)
    assert parse_line(Line(0, 0, raw), source) == wanted


def test_csv_rows_are_records_of_their_first_line(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffid,text\r\n1,plain\r\n2,"two\r\nlines, and a ""quote"""\r\n\r\n3,last'.encode())
    assert read(path, id_field="id") == [
        Record(1, 12, "plain", "1"),
        Record(2, 21, 'two\r\nlines, and a "quote"', "2"),
        Record(5, 56, "last", "3"),
    ]


@pytest.mark.parametrize("table", ['"text","id"\r\nword,1\r\n', '"id, as given","text"\n1,word', '"text"\nword'])
def test_a_byte_order_mark_before_a_quoted_name_is_no_part_of_the_header(tmp_path, table):
    path = tmp_path / "a.csv"
    path.write_text("\ufeff" + table)
    assert [found.text for found in read(path)] == ["word"]


def test_a_quoted_csv_field_that_ends_in_lost_bytes_says_so(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'text\nfine\n"begun\nand')[:-8])
    fine, bad, lost = read(path)
    assert fine.text == "fine"
    assert (bad.number, bad.reason) == (2, "broken row: no end of a quoted field before gzip stream ends early")
    assert (lost.number, lost.reason) == (3, "gzip stream ends early")


def test_tabs_separate_where_the_name_says_so(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tn\none, two\t1\n")
    assert [found.text for found in read(path)] == ["one, two"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"1,2,3", "row of 3 fields under a header of 2"),
        (b"1,caf\xe9", "invalid UTF-8 at byte 17"),
        (b"1, ", "empty text"),
        (b",x", "no id in column `id`"),
        (b'1,"never closed', "broken row: unexpected end of data"),
        (b'1,"closed" too early', "broken row: ',' expected after '\"'"),
    ],
)
def test_a_broken_csv_row_is_rejected_alone(tmp_path, row, reason):
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"0,a\n" + row + b"\n4,b\n5,c\n")
    first, bad, *rest = read(path, id_field="id")
    assert (first.text, bad.number, bad.reason) == ("a", 2, reason)
    assert [found.text for found in rest] == ["b", "c"]


def test_a_csv_file_without_the_column_is_one_reject(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,body\n1,a\n")
    assert read(path) == [BadRecord(0, 0, "no column `text`", "columns: id, body")]


def test_csv_can_begin_at_a_later_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "".join(f"row {number}\n" for number in range(9)))
    assert read(path, begin=5) == read(path)[4:]


def test_a_quoted_csv_field_above_the_limit_costs_one_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text\n"open\n' + "x\n" * 600 + "end\n")
    bad, *rest = read(path, max_file_bytes=1000)
    assert bad.reason == "broken row: no end of a quoted field within max_file_bytes (1000)"
    assert [found.text for found in rest] == ["x"] * 600 + ["end"]


def test_rows_of_a_damaged_parquet_row_group_are_rejected_and_the_next_group_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"row {number} {number * 2654435761 % 2**32}" for number in range(3000)]})
    pq.write_table(table, path, row_group_size=1000, use_dictionary=False)
    raw = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    raw[start : start + 40] = b"\xff" * 40
    path.write_bytes(raw)
    found = read(path)
    assert [record.number for record in found] == list(range(3000))
    assert {record.number for record in found if isinstance(record, BadRecord)} == set(range(1000, 2000))
    assert found[1500].reason.startswith("damaged row group 1")


@pytest.mark.parametrize("writer", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_rows_are_records(tmp_path, writer):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["one", None, "three"], "id": [1, 2, 3], "link": ["u", "v", None]})
    with writer(path, table.schema) as sink:
        sink.write_table(table, max_chunksize=2)
    one, bad, three = read(path, id_field="id", url_field="link")
    assert (one, three) == (Record(0, 0, "one", "1", url="u"), Record(2, 0, "three", "3"))
    assert bad == BadRecord(1, 0, "column `text` is null")
    assert read(path, begin=2) == [Record(2, 0, "three")]


@pytest.mark.parametrize("writer", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_torn_arrow_file_gives_its_whole_batches(tmp_path, writer):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": [f"row {number}" for number in range(100)]})
    with writer(path, table.schema) as sink:
        sink.write_table(table, max_chunksize=10)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    *good, bad = read(path)
    assert len(good) >= 40
    assert len(good) % 10 == 0
    assert [found.number for found in good] == list(range(len(good)))
    assert bad.reason.startswith("torn arrow")


def warc(kind: str, content: bytes, number: int = 0, media: str = "application/http; msgtype=response") -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{number}>\r\n"
        f"WARC-Target-URI: http://a.example/{number}\r\nContent-Type: {media}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content + b"\r\n\r\n"


def page(text: str, charset: str = "utf-8", status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset={charset}\r\n{more}\r\n".encode() + text.encode(
        charset
    )


def test_warc_pages_are_records_with_their_address(tmp_path):
    path = tmp_path / "a.warc.gz"
    records = [
        warc("warcinfo", b"software: x", media="application/warc-fields"),
        warc("response", page("<p>Привет</p>", "windows-1251"), 1),
        warc("request", b"GET / HTTP/1.1\r\n\r\n", 1),
        warc("response", page("<p>gone</p>", status="404 Not Found"), 2),
        warc("response", b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Encoding: gzip\r\n\r\n\x1f", 3),
        warc("conversion", b"Plain words.", 4, media="text/plain"),
        warc("response", page(""), 5),
    ]
    path.write_bytes(b"".join(gzip.compress(record) for record in records))
    assert read(path, id_field="WARC-Record-ID") == [
        Skipped(0, "WARC records of type warcinfo"),
        Record(1, len(records[0]), "<p>Привет</p>", "urn:uuid:1", "html", "http://a.example/1"),
        Skipped(2, "WARC records of type request"),
        Skipped(3, "HTTP status 404"),
        Skipped(4, "media type image/png"),
        Record(5, sum(map(len, records[:5])), "Plain words.", "urn:uuid:4", "text", "http://a.example/4"),
        BadRecord(6, sum(map(len, records[:6])), "empty text"),
    ]


def chunked(body: bytes) -> bytes:
    return b"%x\r\n" % 5 + body[:5] + b"\r\n%x\r\n" % len(body[5:]) + body[5:] + b"\r\n0\r\n\r\n"


def packed(encode: Callable[[bytes], bytes], header: str, missing: int) -> bytes:
    """Return a record of an encoded page whose last bytes are missing."""
    head, _, body = page("<p>some words</p>", more=f"{header}\r\n").partition(b"\r\n\r\n")
    return warc("response", head + b"\r\n\r\n" + encode(body)[:-missing], 1)


@pytest.mark.parametrize(
    ("encode", "header"),
    [
        (chunked, "Transfer-Encoding: chunked\r\n"),
        (gzip.compress, "Content-Encoding: gzip\r\n"),
        (lambda body: gzip.compress(body[:5]) + gzip.compress(body[5:]), "Content-Encoding: gzip\r\n"),
        (zlib.compress, "Content-Encoding: deflate\r\n"),
        (lambda body: zlib.compress(body)[2:-4], "Content-Encoding: deflate\r\n"),
        (lambda body: body, "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"),
    ],
)  # fmt: skip
def test_packed_and_unpacked_pages_read_alike(tmp_path, encode, header):
    path = tmp_path / "a.warc"
    head, _, body = page("<p>some words</p>", more=header).partition(b"\r\n\r\n")
    path.write_bytes(warc("response", head + b"\r\n\r\n" + encode(body)))
    (found,) = read(path)
    assert found.text == "<p>some words</p>"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda raw: b"XXXX" + raw[4:], "no WARC header where a record should begin"),
        (lambda raw: raw.replace(b"Content-Length: ", b"Content-Length: 9"), "record ends early"),
        (lambda raw: raw.replace(b"Content-Length: ", b"Content-Length: -"), "no Content-Length but '-"),
        (lambda raw: raw.replace(b"</p>", b"</p>more than was told"), "Content-Length"),
        (lambda raw: raw.replace(b"HTTP/1.1", b"SMTP/1.1"), "no HTTP answer in a response record"),
        (lambda raw: raw.replace("é".encode(), b"\xe9 "), "invalid UTF-8"),
        (lambda raw: packed(gzip.compress, "Content-Encoding: gzip", 20), "gzip content ends early"),
        (lambda raw: packed(zlib.compress, "Content-Encoding: deflate", 6), "deflate content ends early"),
        (lambda raw: packed(chunked, "Transfer-Encoding: chunked", 12), "chunks of a page end early"),
        (lambda raw: packed(chunked, "Transfer-Encoding: chunked", 5), "chunks of a page end early"),
    ],
)
def test_a_damaged_warc_record_is_rejected_alone(tmp_path, damage, reason):
    records = [warc("response", page(f"<p>café number {number}</p>"), number) for number in range(4)]
    path = tmp_path / "a.warc"
    path.write_bytes(records[0] + damage(records[1]) + records[2] + records[3])
    zero, bad, *rest = read(path)
    assert (zero.text, bad.number) == ("<p>café number 0</p>", 1)
    assert bad.byte >= len(records[0])
    assert bad.reason.startswith(reason)
    assert [found.text for found in rest] == ["<p>café number 2</p>", "<p>café number 3</p>"]


def test_a_page_that_the_crawler_truncated_is_skipped_and_counted(tmp_path):
    path = tmp_path / "a.warc"
    whole = [warc("response", page(f"<p>page {number}</p>"), number) for number in range(2)]
    path.write_bytes(whole[0].replace(b"Content-Type: app", b"WARC-Truncated: length\r\nContent-Type: app") + whole[1])
    skipped, found = read(path)
    assert (skipped.what, found.text) == ("pages truncated by the crawler (length)", "<p>page 1</p>")


@pytest.mark.parametrize(
    ("length", "reason"), [(b"400", "Content-Length 400 ends in the middle"), (b"9999", "record ends early")]
)
def test_a_wrong_length_of_a_warc_record_without_text_costs_no_page(tmp_path, length, reason):
    request = warc("request", b"GET / HTTP/1.1\r\n\r\n", 1).replace(b"Length: 18", b"Length: " + length)
    pages = [warc("response", page(f"<p>number {number}</p>"), number) for number in range(4)]
    path = tmp_path / "a.warc"
    path.write_bytes(request + b"".join(pages))
    bad, *rest = read(path)
    assert bad.reason.startswith(reason)
    assert [found.text for found in rest] == [f"<p>number {number}</p>" for number in range(4)]


def test_a_warc_record_that_reaches_into_the_next_is_rejected_and_one_that_quotes_a_header_is_read(tmp_path):
    short, other = (warc("conversion", b"%d words" % n, n, media="text/plain") for n in (1, 2))
    quoting = warc("conversion", b"A record:\n\n" + other, 3, media="text/plain")
    reach = 7 + 4 + other.index(b"\r\nWARC-Target")
    path = tmp_path / "a.warc"
    path.write_bytes(short.replace(b"Length: 7", b"Length: %d" % reach) + other + quoting + quoting)
    bad, *rest = read(path)
    assert bad.reason == f"Content-Length {reach} ends in another record"
    assert [found.text[:9] for found in rest] == ["2 words", "A record:", "A record:"]


def test_a_damaged_member_of_a_warc_costs_one_record(tmp_path):
    members = [gzip.compress(warc("response", page(f"<p>{'words ' * 200}{number}</p>"), number)) for number in range(4)]
    broken = bytearray(members[1])
    broken[len(broken) // 2] ^= 0xFF
    path = tmp_path / "a.warc.gz"
    path.write_bytes(members[0] + bytes(broken) + members[2] + members[3][:-30])
    found = read(path)
    assert [record.url for record in found if isinstance(record, Record)] == [
        "http://a.example/0",
        "http://a.example/2",
    ]
    reasons = [record.reason for record in found if isinstance(record, BadRecord)]
    assert any(reason.startswith("damaged gzip data") for reason in reasons)
    assert reasons[-1] == "gzip stream ends early"


def test_a_warc_record_above_the_limit_is_rejected_without_being_held(tmp_path):
    path = tmp_path / "a.warc"
    path.write_bytes(warc("response", page("x" * 5000), 0) + warc("response", page("short"), 1))
    bad, short = read(path, max_file_bytes=1000)
    assert bad.reason == "larger than max_file_bytes (1000)"
    assert short.text == "short"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("<meta charset='koi8-r'><p>Привет".encode("koi8-r"), "Привет"),
        ('<?xml version="1.0" encoding="gb2312"?><p>中文'.encode("gb18030"), "中文"),
        ("<p>Grüße".encode("utf-16"), "Grüße"),
        ('<meta content="text/html; charset=iso-8859-1"><p>1 €'.encode("cp1252"), "1 €"),
        ("<meta charset='koi8-r'><p>Привет".encode(), "Привет"),
        ("<meta charset='iso-2022-jp'><p>日本語の文章".encode("iso-2022-jp"), "日本語の文章"),
    ],
)
def test_a_page_is_read_by_the_character_set_that_it_declares(tmp_path, raw, text):
    path = tmp_path / "a.html"
    path.write_bytes(raw)
    (found,) = read(path)
    assert found.text.endswith(text)


@pytest.mark.parametrize("raw", ["".encode("utf-16"), " \n".encode("utf-16"), b"\xef\xbb\xbf"])
def test_a_page_without_text_is_rejected_in_every_character_set(tmp_path, raw):
    (tmp_path / "a.html").write_bytes(raw)
    (tmp_path / "a.warc").write_bytes(warc("resource", raw, media="text/html"))
    for name in ("a.html", "a.warc"):
        (bad,) = read(tmp_path / name)
        assert bad.reason == "empty text"


def test_a_byte_order_mark_is_no_text_of_any_page_of_an_archive(tmp_path):
    path = tmp_path / "a.warc"
    path.write_bytes(b"".join(warc("resource", "\ufeff<p>a".encode(), number, "text/html") for number in range(2)))
    assert [found.text for found in read(path)] == ["<p>a", "<p>a"]


@pytest.mark.parametrize("label", ["undefined", "idna", "punycode", "unicode_escape", "raw-unicode-escape", "utf-7"])
def test_a_codec_of_python_that_is_no_character_set_declares_nothing(tmp_path, label):
    path = tmp_path / "a.html"
    raw = f"<meta charset='{label}'><p>".encode() + b"caf\xe9 \\ud800"
    path.write_bytes(raw)
    (bad,) = read(path)
    assert bad.reason == f"invalid UTF-8 at byte {raw.index(0xE9)}"


def test_a_byte_of_a_page_of_an_archive_is_named_as_one_of_the_page(tmp_path):
    path = tmp_path / "a.warc"
    first = warc("conversion", b"good", 1, "text/plain")
    path.write_bytes(first + warc("conversion", b"<p>caf\xe9", 2, "text/plain"))
    _, bad = read(path)
    assert (bad.byte, bad.reason) == (len(first), "invalid UTF-8 at byte 6 of the page")


@pytest.mark.parametrize("writer", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_name_of_a_column_that_is_not_utf8_is_damage(tmp_path, writer):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["a"], "another_column": ["b"]})
    with pa.OSFile(str(path), "wb") as sink, writer(sink, table.schema) as out:
        out.write_table(table)
    path.write_bytes(path.read_bytes().replace(b"another_column", b"another\xffcolumn"))
    (bad,) = read(path)
    assert bad.reason.startswith("damaged names of columns: 'utf-8' codec can't decode byte 0xff")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_fault_of_the_disk_is_no_damage_of_a_table(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"a.{suffix}"
    table = pa.table({"text": [f"{number} " + "x" * 1000 for number in range(4000)]})
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=500, compression="none", use_dictionary=False)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)

    class Failing(io.FileIO):
        def readinto(self, buffer):
            if 10**6 < self.tell() < 2 * 10**6:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().readinto(buffer)

        def read(self, size=-1):
            if 10**6 < self.tell() < 2 * 10**6:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(size)

    monkeypatch.setattr(InputFile, "open", lambda file: Failing(file.path))
    with pytest.raises(OSError, match="Input/output error"):
        read(path)


def test_a_page_that_fits_no_character_set_is_rejected(tmp_path):
    path = tmp_path / "a.html"
    path.write_bytes(b"<p>caf\xe9")
    (bad,) = read(path)
    assert (bad.byte, bad.reason) == (6, "invalid UTF-8 at byte 6")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet", "a.arrow", "b.arrow"])
def test_a_file_that_was_read_is_counted_whole(tmp_path, name):
    path = tmp_path / name
    table = pa.table({"text": ["one", "two", "three"]})
    if name.endswith(".parquet"):
        pq.write_table(table, path, row_group_size=1)
    elif name.endswith(".arrow"):
        with (pa.ipc.new_file if name == "a.arrow" else pa.ipc.new_stream)(path, table.schema) as sink:
            sink.write_table(table, max_chunksize=1)
    else:
        plain = b"text\none\n" if name.endswith(".csv") else line("one")
        path.write_bytes(gzip.compress(plain) if name.endswith(".gz") else plain)
    counted: list[int] = []
    assert read(path, on_bytes=counted.append)
    end_mark = 8 if name == "b.arrow" else 0  # of a stream, which is not read
    assert sum(counted) == path.stat().st_size - end_mark
    assert all(count > 0 for count in counted)


def test_a_missing_number_of_pandas_is_no_id(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "id": [1.5, float("nan")]}), path)
    one, bad = read(path, id_field="id")
    assert (one.key, bad.reason) == ("1.5", "no id in column `id`")
