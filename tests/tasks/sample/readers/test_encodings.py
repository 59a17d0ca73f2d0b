"""Files in legacy encodings are decoded, and what does not decode is rejected with its place."""

import codecs
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tasks.artifacts.build import RunContext
from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import InputFile
from tasks.sample.formats import guess_format
from tasks.sample.readers.files import read_records
from tasks.sample.readers.records import BadRecord, Record
from tasks.sample.stage import build_sample

RUSSIAN = """Вчера вечером мы долго гуляли по берегу реки и говорили о старых книгах.
Потом пошёл дождь, и пришлось вернуться домой. Глава № 1."""
CHINESE = "昨天晚上我们在河边散步，说起小时候读过的那些书。\n后来下雨了，我们只好回家。"
TRADITIONAL = "昨天晚上我們在河邊散步，說起小時候讀過的那些書。\n後來下雨了，我們只好回家。"
JAPANESE = "昨日の夜、川のそばを歩きながら、子どものころに読んだ本の話をしました。"
KOREAN = "어제 저녁에 우리는 강가를 걸으며 어릴 때 읽은 책 이야기를 했습니다."
FRENCH = "L’été dernier, nous étions déjà à la plage ; l’élève naïf goûtait là-bas des crêpes, où était sa mère ?"
POLISH = "Wczoraj wieczorem długo chodziliśmy nad rzeką i mówiliśmy o książkach, które czytaliśmy w młodości."
GREEK = "Χθες το βράδυ περπατήσαμε δίπλα στο ποτάμι και μιλήσαμε για παλιά βιβλία."
TEXTS = [
    ("cp1251", RUSSIAN),
    ("koi8-r", RUSSIAN.replace("№", "N")),
    ("cp866", RUSSIAN),
    ("gbk", CHINESE),
    ("big5", TRADITIONAL),
    ("shift_jis", JAPANESE),
    ("euc_jp", JAPANESE),
    ("iso-2022-jp", JAPANESE),
    ("euc_kr", KOREAN),
    ("cp1252", FRENCH),
    ("cp1250", POLISH),
    ("cp1253", GREEK),
    ("utf-16", RUSSIAN),
    ("utf-16", CHINESE),
    ("utf-32", FRENCH),
    ("utf-32-le", RUSSIAN),
    ("utf-32-be", CHINESE),
]


def read(path: Path, begin: int = 0, **fields) -> list:
    source = Source(name="s", paths=(str(path),), weight=1, **fields)
    format, compression = guess_format(path.name)
    file = InputFile("s", path, path.name, format or "text", compression, path.stat().st_size)
    return list(read_records(file, source, begin, lambda count: None))


@pytest.mark.parametrize(("encoding", "text"), TEXTS)
def test_a_file_in_a_legacy_encoding_is_decoded_by_its_text_or_its_mark(tmp_path, encoding, text):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    (found,) = read(path)
    assert found.text == text
    assert found.encoding is not None


def test_chinese_text_with_a_rare_character_is_read_as_gb18030(tmp_path):
    path = tmp_path / "a.txt"
    text = f"{CHINESE}\n" * 20 + "他姓𠮷。"
    path.write_bytes(text.encode("gb18030"))
    (found,) = read(path)
    assert (found.text, found.encoding) == (text, "gb18030")


@pytest.mark.parametrize(("encoding", "text"), TEXTS)
def test_so_are_the_lines_of_a_jsonl_file(tmp_path, encoding, text):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"{number} {text}"}, ensure_ascii=False) for number in range(3)]
    path.write_bytes("\n".join(lines).encode(encoding))
    found = read(path)
    assert [record.text for record in found] == [f"{number} {text}" for number in range(3)]
    assert [record.text for record in read(path, begin=2)] == [f"2 {text}"]
    assert {record.encoding for record in found} != {None}


@pytest.mark.parametrize(("encoding", "text"), TEXTS)
def test_a_named_encoding_is_used_as_it_is(tmp_path, encoding, text):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    (found,) = read(path, encoding=encoding)
    assert found.text == text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_without_a_mark_the_order_of_bytes_is_little_endian(tmp_path, name, encoding):
    path = tmp_path / name
    text = {"a.jsonl": json.dumps({"text": "Привет"}, ensure_ascii=False), "a.csv": "text\nПривет", "a.txt": "Привет"}
    path.write_bytes(text[name].encode(f"{encoding}-le"))
    (found,) = read(path, encoding=encoding)
    assert (found.text, found.encoding) == ("Привет", f"{encoding}-le")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", [RUSSIAN, FRENCH, GREEK, "Ārsts šodien atnāca agri un runāja par grāmatām."])
def test_utf16_without_a_mark_is_found_by_its_zero_bytes(tmp_path, text, encoding):
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert read(tmp_path / "a.txt") == [Record(0, 0, text, encoding=encoding)]
    (tmp_path / "a.csv").write_bytes(f'id,text\n1,"{text[:40]}"\n'.encode(encoding))
    assert [found.text for found in read(tmp_path / "a.csv")] == [text[:40]]


@pytest.mark.parametrize("raw", [b"abc\0" * 8, b"#\0\n", b"a\nb\n" * 20, RUSSIAN.encode() + b"\0"])
def test_a_zero_byte_alone_makes_no_utf16(tmp_path, raw):
    (tmp_path / "a.txt").write_bytes(raw)
    assert read(tmp_path / "a.txt") == [Record(0, 0, raw.decode())]


def test_utf8_is_read_as_before(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(codecs.BOM_UTF8 + RUSSIAN.encode())
    assert read(path) == [Record(0, 3, RUSSIAN)]
    assert read(path, encoding="utf-8") == [Record(0, 3, RUSSIAN)]


@pytest.mark.parametrize(
    "raw",
    [
        RUSSIAN.encode() + b" \xff " + RUSSIAN.encode(),
        b"plain text with one stray byte \xe9 and no more",
        bytes(range(0x80, 0x100)) * 20,
        b"PK\x03\x04" + bytes(range(256)) * 8,
    ],
    ids=["damaged UTF-8", "one byte", "every byte", "binary"],
)
def test_what_is_clear_in_no_encoding_is_rejected_with_its_place(tmp_path, raw):
    path = tmp_path / "a.txt"
    path.write_bytes(raw)
    (found,) = read(path)
    assert isinstance(found, BadRecord)
    assert found.reason.startswith("invalid UTF-8 at byte ")


def test_a_line_that_does_not_decode_is_rejected_alone_with_line_and_byte(tmp_path):
    path = tmp_path / "a.jsonl"
    good = json.dumps({"text": CHINESE}, ensure_ascii=False).encode("gbk") + b"\n"
    path.write_bytes(good + b'{"text": "\xff\xff"}\n' + good)
    first, bad, last = read(path)
    assert first.text == last.text == CHINESE
    assert bad.byte == len(good) + 10
    assert bad.reason == f"not gb18030 at byte {bad.byte}, line 2"
    (whole,) = read_as_text(path)
    assert whole.reason == bad.reason


def read_as_text(path: Path) -> list:
    file = InputFile("s", path, path.name, "text", None, path.stat().st_size)
    return list(
        read_records(file, Source(name="s", paths=(str(path),), weight=1, encoding="gb18030"), 0, lambda count: None)
    )


def test_damage_in_utf16_costs_its_line(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        (json.dumps({"text": f"{number} {RUSSIAN}"}, ensure_ascii=False) + "\n").encode("utf-16-le")
        for number in range(3)
    ]
    lines[1] = lines[1][:40] + b"\x00\xdc" + lines[1][42:]
    path.write_bytes(codecs.BOM_UTF16_LE + b"".join(lines))
    found = read(path)
    assert [record.text for record in found if isinstance(record, Record)] == [f"0 {RUSSIAN}", f"2 {RUSSIAN}"]
    (bad,) = [record for record in found if isinstance(record, BadRecord)]
    assert bad.reason == f"not utf-16-le at byte {2 + len(lines[0]) + 40}"


def test_an_encoding_that_python_does_not_know_is_refused():
    for name in ("klingon", "base64", "undefined", "unicode_escape", "utf-7"):
        with pytest.raises(ValidationError, match="is no encoding of text"):
            Source(name="s", paths=("a",), weight=1, encoding=name)


def test_the_encoding_is_in_each_documents_meta_and_in_the_report(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(RUSSIAN.encode("cp1251"))
    (tmp_path / "in" / "b.txt").write_text(RUSSIAN, "utf-8")
    source = Source(name="s", paths=(str(tmp_path / "in"),), weight=1)
    artifact = build_sample(RunContext(tmp_path / "root", "run"), SampleConfig(sources=(source,), budget_tokens=10**9))
    rows = artifact.table("documents").to_pylist()
    assert set(rows[0]) == set(DOCUMENTS.names)
    assert {row["origin"]["path"]: row["meta"] for row in rows} == {"a.txt": '{"encoding":"cp1251"}', "b.txt": None}
    assert {row["text"] for row in rows} == {RUSSIAN}
    assert artifact.report.facts["decoded_records"] == {"s: cp1251": 1}
