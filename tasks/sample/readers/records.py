"""What a reader yields: a record with its text, an unreadable record with the reason, or skipped records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tasks.sample.config import Source

EXCERPT_BYTES = 200
_EXCERPT_INPUT = 400

OnBytes = Callable[[int], None]
"""Gets the stored bytes of a file as they are consumed."""


class _Found:
    """What a reader yields."""

    __slots__ = ()
    number: int
    step: int | None

    @property
    def place(self) -> int:
        """The position from which an interrupted reader resumes."""
        return self.number if self.step is None else self.step


@dataclass(frozen=True, slots=True)
class Record(_Found):
    """A readable record: its number in the file (lines, rows and WARC records count from 0), the byte where it begins
    (after decompression; 0 in parquet and arrow), its text, and the value of the id field if the source has one."""

    number: int
    byte: int
    text: str
    key: str | None = None
    kind: str | None = None
    """The kind of text (`text`, `markdown`, `html`), if the record states it."""
    url: str | None = None
    step: int | None = None
    """Position in the reader's output, for readers that do not yield records in the order of their numbers."""
    encoding: str | None = None
    """The encoding that the file was decoded from; None for UTF-8."""


@dataclass(frozen=True, slots=True)
class BadRecord(_Found):
    """An unreadable record: `byte` is the offending byte if it is known, else where the record begins."""

    number: int
    byte: int
    reason: str
    excerpt: str = ""
    step: int | None = None
    setting: str | None = field(default=None, compare=False)
    """The key of the source that names a missing field: `text_field` or `id_field`."""


@dataclass(frozen=True, slots=True)
class Skipped(_Found):
    """Valid records that are not documents: what they are, and how many."""

    number: int
    what: str
    count: int = 1
    step: int | None = None


Found = Record | BadRecord | Skipped


def missing_column(names: Sequence[str], source: Source) -> BadRecord | None:
    """Return what is wrong where a table's columns, of these names, lack the text or the id of the source."""
    for setting, wanted in (("text_field", source.text_field), ("id_field", source.id_field)):
        if wanted is not None and wanted not in names:
            excerpt = excerpt_of(f"columns: {', '.join(names[:20])}")
            return BadRecord(0, 0, f"no column `{wanted}`", excerpt, setting=setting)
    return None


def decode_text(number: int, begin: int, raw: bytes) -> Record | BadRecord:
    """Decode UTF-8 bytes that begin at byte `begin` of the file as a record, without the file's byte order mark."""
    bom = 3 if begin == 0 and raw.startswith(b"\xef\xbb\xbf") else 0
    try:
        text = raw[bom:].decode("utf-8") if bom else raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return undecodable(number, begin, raw, bom + error.start, "invalid UTF-8")
    return record_of_text(number, begin, text, begin + bom)


def undecodable(number: int, begin: int, raw: bytes, at: int, reason: str) -> BadRecord:
    """Return what is wrong with bytes that begin at byte `begin` of the file and do not decode at their byte `at`."""
    return BadRecord(number, begin + at, f"{reason} at byte {begin + at}", excerpt_of(raw[max(0, at - 60) :]))


def record_of_text(number: int, begin: int, text: str, text_begin: int | None = None) -> Record | BadRecord:
    """Return a decoded text as a record, which begins at byte `text_begin`, or at `begin` as what holds it does."""
    if not text or text.isspace():
        return BadRecord(number, begin, "empty text")
    return Record(number, begin if text_begin is None else text_begin, text)


def excerpt_of(raw: bytes | str) -> str:
    """Return the first bytes as readable text of at most 200 bytes; bytes that are not UTF-8 as `\\xff`."""
    if isinstance(raw, str):
        raw = raw[:_EXCERPT_INPUT].encode("utf-8", errors="backslashreplace")
    text = raw[:_EXCERPT_INPUT].decode("utf-8", errors="backslashreplace")
    return text.encode()[:EXCERPT_BYTES].decode("utf-8", errors="ignore")
