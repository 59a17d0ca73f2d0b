"""Web pages become text by the character set that they or their server declare, where they are not UTF-8."""

import codecs
import re

from tasks.sample.records import BadRecord, Record, decode_text, excerpt_of

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{2,40})""", re.IGNORECASE)
_XML = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9_:.-]{2,40})""")
_LOOK_BYTES = 4096
_AS_BROWSERS_READ = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
}
"""Labels that browsers read as a larger set (WHATWG Encoding Standard, section 4.2), by Python's names."""


def decode_page(number: int, begin: int, raw: bytes, declared: str | None = None) -> Record | BadRecord:
    """A page as a record: UTF-8 if it is that, else by its byte order mark, `declared` (the server's word), or its own
    declaration. Bytes that fit none of them make it a BadRecord at the first one that is not UTF-8."""
    found = decode_text(number, begin, raw)
    if isinstance(found, Record) or not found.reason.startswith("invalid UTF-8"):
        return found
    charset = _charset(raw, declared)
    if charset is None:
        return found
    try:
        text = raw.decode(charset)
    except UnicodeDecodeError as error:
        bad = begin + error.start
        excerpt = excerpt_of(raw[max(0, error.start - 60) :])
        return BadRecord(number, bad, f"neither UTF-8 nor the declared {charset} at byte {bad}", excerpt)
    return Record(number, begin, text.removeprefix("\ufeff"))


def _charset(raw: bytes, declared: str | None) -> str | None:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    head = raw[:_LOOK_BYTES]
    inside = _XML.search(head) or _META.search(head)
    for label in (declared, inside[1].decode("ascii") if inside else None):
        if label is None:
            continue
        try:
            codec = codecs.lookup(label)
        except LookupError:
            continue  # A label that nobody knows declares nothing.
        if codec.name != "utf-8" and getattr(codec, "_is_text_encoding", True):
            return _AS_BROWSERS_READ.get(codec.name, codec.name)
    return None
