"""What a reader yields: a record with its text, or the reason why there is none."""

from dataclasses import dataclass

EXCERPT_BYTES = 200


@dataclass(frozen=True, slots=True)
class Record:
    """A readable record: its number in the file (jsonl: line, parquet: row, both from 0), the byte where it begins
    (after decompression; 0 in parquet), its text, and the value of the id field where the source has one."""

    number: int
    byte: int
    text: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class BadRecord:
    """What could not be read: `byte` is the offending byte where one is known, else where the record begins."""

    number: int
    byte: int
    reason: str
    excerpt: str = ""


def decode_text(number: int, begin: int, raw: bytes) -> Record | BadRecord:
    """UTF-8 bytes that begin at byte `begin` of the file as a record, without the file's byte order mark."""
    skipped = 3 if begin == 0 and raw.startswith(b"\xef\xbb\xbf") else 0
    try:
        text = raw[skipped:].decode("utf-8")
    except UnicodeDecodeError as error:
        bad = skipped + error.start
        return BadRecord(
            number, begin + bad, f"invalid UTF-8 at byte {begin + bad}", excerpt_of(raw[max(0, bad - 60) :])
        )
    if not text.strip():
        return BadRecord(number, begin, "empty text")
    return Record(number, begin + skipped, text)


def excerpt_of(raw: bytes) -> str:
    """The first bytes as readable text, at most 200 bytes; bytes that are not UTF-8 as `\\xff`."""
    text = raw[: EXCERPT_BYTES * 2].decode("utf-8", errors="backslashreplace")
    return text.encode()[:EXCERPT_BYTES].decode("utf-8", errors="ignore")
