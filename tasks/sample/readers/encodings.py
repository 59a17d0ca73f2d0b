"""The encoding of text that is not UTF-8: by the source's `encoding`, by a byte order mark, by what a web page or its
server declares, or by the text itself.

With `encoding = "auto"` the first bytes of a file decide. UTF-16 and UTF-32 without a mark, which may be valid UTF-8
too, show by their zero bytes, Japanese in ISO-2022-JP by its escape sequences. Other valid UTF-8 is read as it is, and
so is a file most of whose bytes outside ASCII are valid UTF-8: then the others are damage, and their records are
rejected. Of the rest, the encoding is taken in which the text is most probable (`tasks.common.legacy_encodings`), where
it is probable text at all and no other encoding makes other text as probable; else nothing is guessed, and the records
are rejected.

Lines are decoded one by one, so that a line that does not decode is rejected alone. In UTF-16 and UTF-32 lines are not
bytes between line feeds: there the stream is decoded first, and places of records count bytes of its UTF-8.
"""

import codecs
import itertools
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from tasks.sample.config import NO_CHARACTER_SETS
from tasks.sample.readers.byte_stream import Gap, Line, LostLine
from tasks.sample.readers.records import BadRecord, Record, decode_text, excerpt_of, record_of_text, undecodable

AUTO = "auto"
ISO_2022_JP = "iso2022_jp_ext"
"""Japanese in seven bits, with half-width katakana, as browsers read it."""
NO_SIGNS_OF_UTF8 = (0, 0x1B)
"""Bytes of UTF-16 and ISO-2022-JP that are valid UTF-8 and hardly occur in it."""
SAMPLE_BYTES = 1 << 16
"""Bytes at the beginning of a file in which its encoding is searched for."""

LARGEST_COST = 6.5
"""Nats per byte outside ASCII up to which text is probable; text in the right encoding and language takes 3 to 5."""

LEAST_MARGIN = 6.0
"""Nats by which the best encoding must be more probable than one that makes other text of the same bytes."""

MARGIN_PER_BYTE = 0.05
"""The same, per byte outside ASCII."""

_FEWEST_HIGH = 8
_FEWEST_WIDE = 16
_WIDE_SHARE = 0.9
_ZERO_SHARE = 1 / 16
_DAMAGED = 10.0
_RARE_LATIN = 8.0
_LOST_SHARE = 0.02
_LINE_FEED, _BLANK = 10, 32
_LAST_PLANE = 16
_UTF8_SHARE = 0.5
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WITHOUT_MARK = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
"""What a name without a byte order means where the file has no mark of it, on every machine."""

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{2,40})""", re.IGNORECASE)
_XML = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9_:.-]{2,40})""")
_DECLARATION_BYTES = 4096
_BROWSER_CHARSETS = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
}
"""Labels for which browsers use a larger character set (WHATWG Encoding Standard, section 4.2), by Python's names."""


def encoding_of(sample: bytes, wanted: str) -> str | None:
    """Return the encoding of a file that begins with `sample`, of SAMPLE_BYTES at most; None for UTF-8 or unknown.

    `wanted` is the source's `encoding`.
    """
    if wanted != AUTO:
        name = codecs.lookup(wanted).name
        return None if name == "utf-8" else _by_mark(sample) or _WITHOUT_MARK.get(name, name)
    return _by_mark(sample) or _by_text(sample)


def _by_mark(sample: bytes) -> str | None:
    return next((encoding for mark, encoding in _MARKS if sample.startswith(mark)), None)


def _by_text(sample: bytes) -> str | None:
    if b"\0" in sample:
        return _by_zeros(np.frombuffer(sample, np.uint8))
    if sample.isascii():
        return ISO_2022_JP if is_iso_2022_jp(sample) else None
    if len(sample) == SAMPLE_BYTES:
        sample = sample[: sample.rfind(b"\n") + 1 or None]
    data = np.frombuffer(sample, np.uint8)
    high = int((data >= 0x80).sum())
    invalid = len(sample) - len(sample.decode(errors="ignore").encode())
    if invalid <= (1 - _UTF8_SHARE) * high or high < _FEWEST_HIGH:
        return None
    # Loads numba, which few runs need here.
    from tasks.common.legacy_encodings import ASCII_COST, readings, western_cost

    lines = [line for line in np.split(data, np.flatnonzero(data == _LINE_FEED) + 1) if line.size]
    costs = {"cp1252": _cost_of_lines(western_cost, lines)}
    for reading in readings():
        rarity = _RARE_LATIN if reading.is_latin else reading.rarity
        cost = _cost_of_lines(reading.cost, lines) + rarity
        costs[reading.codec] = min(costs.get(reading.codec, cost), cost)
    best = min(costs, key=lambda codec: costs[codec])
    text = sample.decode(best, errors="replace")
    cost = costs[best] - ASCII_COST * (len(data) - high)
    if cost > LARGEST_COST * high or text.count("\ufffd") > _LOST_SHARE * high:
        return None
    least = costs[best] + LEAST_MARGIN + MARGIN_PER_BYTE * high
    rivals = [codec for codec, cost in costs.items() if codec != best and cost < least]
    if any(sample.decode(codec, errors="replace") != text for codec in rivals):
        return None
    # A rare character after the sample may be of GB 18030 alone, which reads all of GBK alike.
    return "gb18030" if best == "gbk" else best


def _by_zeros(data: npt.NDArray[np.uint8]) -> str | None:
    """Return the UTF-32 of a text with zero bytes, of which the uppermost byte of each character is 0 and the next one
    16 at most; or its UTF-16: the upper byte of each character is 0, as of blanks, digits and Latin letters, or small,
    as of other alphabets. Such bytes are control characters in other encodings."""
    if len(data) % 4 == 0 and len(data) >= _FEWEST_WIDE and data.reshape(-1, 4).any(axis=1).all():
        for uppermost, upper, encoding in ((3, 2, "utf-32-le"), (0, 1, "utf-32-be")):
            if not data[uppermost::4].any() and data[upper::4].max() <= _LAST_PLANE:
                return encoding
    for upper, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        uppers, lowers = data[upper::2], data[1 - upper :: 2]
        is_wide = len(data) >= _FEWEST_WIDE and len(uppers) == len(lowers) and (uppers < _BLANK).mean() >= _WIDE_SHARE
        # The lower byte of a few letters, such as Ā, is 0 too.
        if is_wide and (uppers == 0).mean() >= max(_ZERO_SHARE, 8 * (lowers == 0).mean()):
            return encoding
    return None


def _cost_of_lines(cost: Callable[[npt.NDArray[np.uint8]], float], lines: list[npt.NDArray[np.uint8]]) -> float:
    """Return what lines cost in all; one that is damaged, or is none of the encoding, costs _DAMAGED nats a byte."""
    return sum(min(cost(line), _DAMAGED * line.size) for line in lines)


def sampled(blocks: Iterable[bytes | Gap]) -> tuple[bytes, Iterator[bytes | Gap]]:
    """Return the first SAMPLE_BYTES of a stream, fewer where it ends or is damaged before, and the whole stream."""
    rest = iter(blocks)
    taken: list[bytes | Gap] = []
    size = 0
    for block in rest:
        taken.append(block)
        if isinstance(block, Gap):
            break
        size += len(block)
        if size >= SAMPLE_BYTES:
            break
    sample = b"".join(block for block in taken if isinstance(block, bytes))[:SAMPLE_BYTES]
    return sample, itertools.chain(taken, rest)


def is_wide(encoding: str) -> bool:
    """Return whether a line feed of the encoding is more than the byte 0A."""
    return encoding.startswith(("utf-16", "utf-32"))


def utf8_blocks(blocks: Iterable[bytes | Gap], encoding: str) -> Iterator[bytes | Gap]:
    """Yield a stream in UTF-16 or UTF-32 as UTF-8, without its byte order mark, and a Gap for what does not decode."""
    waiting = b""
    place = 0
    width = 4 if encoding.startswith("utf-32") else 2
    is_first = True
    for block in itertools.chain(blocks, (None,)):
        if isinstance(block, Gap):
            yield block
            continue
        waiting += block or b""
        while waiting:
            gap = None
            try:
                # The beginning of a character may remain at the end of a block.
                decoder = codecs.getincrementaldecoder(encoding)()
                text = decoder.decode(waiting, final=block is None)
                used = len(waiting) - len(decoder.getstate()[0])
            except UnicodeDecodeError as error:
                # What is before it decodes.
                text, used = waiting[: error.start].decode(encoding), max(error.end, error.start + width)
                gap = Gap(f"not {encoding} at byte {place + error.start}")
            yield text.removeprefix("\ufeff").encode() if is_first else text.encode()
            if gap is not None:
                yield gap
            if not used:
                break
            is_first = False
            place += used
            waiting = waiting[used:]


def utf8_lines(lines: Iterable[Line | LostLine], encoding: str) -> Iterator[Line | LostLine]:
    """Yield lines with their bytes as UTF-8; a line that does not decode is lost, with line, byte and reason."""
    for line in lines:
        if isinstance(line, LostLine) or line.raw is None:
            yield line
            continue
        try:
            yield Line(line.number, line.byte, line.raw.decode(encoding).encode(), line.torn)
        except UnicodeDecodeError as error:
            reason = f"not {encoding} at byte {line.byte + error.start}, line {line.number + 1}"
            yield LostLine(line.number, line.byte + error.start, reason, line.raw[max(0, error.start - 60) :])


def decode_file(raw: bytes, encoding: str) -> Record | BadRecord:
    """Decode a whole file as one record, without its byte order mark."""
    try:
        text = raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        excerpt = excerpt_of(raw[max(0, error.start - 60) :])
        return BadRecord(0, error.start, f"not {encoding} at byte {error.start}, line {line}", excerpt)
    return record_of_text(0, 0, text)


def is_iso_2022_jp(raw: bytes) -> bool:
    """Return whether bytes, all of them ASCII, have an escape sequence behind which two mean a Japanese character."""
    return (b"\x1b$B" in raw or b"\x1b$@" in raw) and raw.isascii()


def decode_page(number: int, raw: bytes, declared: str | None) -> Record | BadRecord:
    """Return a page as a record: decoded as UTF-8 if it is valid, else by its byte order mark, the character set
    `declared` by the server, or its own declaration; a BadRecord if none of them fits."""
    is_in_seven_bits = is_iso_2022_jp(raw)
    found = decode_text(number, 0, raw)
    if isinstance(found, Record) and not is_in_seven_bits:
        return record_of_text(number, 0, found.text.removeprefix("\ufeff"), found.byte)
    if isinstance(found, BadRecord) and not found.reason.startswith("invalid UTF-8"):
        return found
    charset = ISO_2022_JP if is_in_seven_bits else _charset(raw, declared)
    if charset is None:
        return found
    try:
        text = raw.decode(charset)
    except UnicodeDecodeError as error:
        return undecodable(number, 0, raw, error.start, f"neither UTF-8 nor the declared {charset}")
    return record_of_text(number, 0, text.removeprefix("\ufeff"))


def _charset(raw: bytes, declared: str | None) -> str | None:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    head = raw[:_DECLARATION_BYTES]
    inside = _XML.search(head) or _META.search(head)
    for label in (declared, inside[1].decode("ascii") if inside else None):
        if label is None:
            continue
        try:
            codec = codecs.lookup(label)
        except LookupError:
            continue  # an unknown label declares nothing
        is_text = getattr(codec, "_is_text_encoding", True) and codec.name not in NO_CHARACTER_SETS
        if codec.name != "utf-8" and is_text:
            return _BROWSER_CHARSETS.get(codec.name, codec.name)
    return None
