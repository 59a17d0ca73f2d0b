"""What several stages need for text: unsegmented scripts, replaced places, paths, and credentials inside of addresses.

In scripts without whitespace between words one character counts as one word: word counts, shingles and n-grams would
otherwise take a Chinese page for one giant word.

Addresses of a recipe are written into records, manifests, logs and pages that people share. So a recipe with
credentials in an address (`s3://KEY:SECRET@bucket`, `https://host/file?X-Amz-Signature=...`) is refused, and they are
masked in the errors of stores and servers."""

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

UNSPACED_RANGES: tuple[tuple[int, int], ...] = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # ideographic repetition and closing marks, zero
    (0x3041, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # CJK extension A
    (0x4E00, 0x9FFF),  # CJK unified ideographs
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0xFF66, 0xFF9F),  # halfwidth Katakana
    (0x1B000, 0x1B16F),  # Kana supplements
    (0x20000, 0x3FFFD),  # CJK extensions B and later
)
"""Unicode blocks; the letters, digits and marks in them count."""


_FIRSTS = tuple(first for first, _ in UNSPACED_RANGES)


def is_unspaced(codepoint: int) -> bool:
    """Return whether a letter, digit or mark at this code point is a word of its own."""
    before = bisect_right(_FIRSTS, codepoint)
    return before > 0 and codepoint <= UNSPACED_RANGES[before - 1][1]


def replace_places(text: str, places: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with another one in some places: (begin, end, what is put there) each, in order. Empty places are
    left out, and those that begin before the end of the place before."""
    pieces: list[str] = []
    done = 0
    for begin, end, other in places:
        if done <= begin < end:
            pieces += (text[done:begin], other)
            done = end
    return "".join((*pieces, text[done:])) if done else text


MASK = "***"

_USER = re.compile(r"([a-z][a-z0-9+.-]*)://[^\s@'\"`/?#:]*:(?!\d{2,5}(?:[/?#]|$))[^\s'\"`]+@", re.IGNORECASE)
"""A name, a colon, anything but a port, and an @; secret keys may hold slashes, so all up to the @ counts."""

_SIGNED = re.compile(
    r"([?&;](?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid|sig"
    r"|signature|(?:access_|auth_)?token|api_?key|key|secret|password))=[^&;#\s'\"`]+",
    re.IGNORECASE,
)


def as_stored(path: str) -> str:
    """Return a path as the tables have it: bytes of a file's name that are no UTF-8 are escapes such as `\\xff`."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def without_credentials(text: str) -> str:
    """Return the text with credentials masked: what precedes the @ of an address, and signatures and tokens in its
    query."""
    return _SIGNED.sub(rf"\1={MASK}", _USER.sub(rf"\1://{MASK}@", text))


def addresses_with_credentials(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, masked address) for each text inside nested values that has credentials in an address."""
    if isinstance(value, str):
        if (masked := without_credentials(value)) != value and "://" in value:
            yield place, masked
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from addresses_with_credentials(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for number, inner in enumerate(value):
            yield from addresses_with_credentials(inner, f"{place}[{number}]")


def counted(count: int, noun: str) -> str:
    """Return a number of things, such as `1 file` or `2,000 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def none_of_first(count: int, noun: str) -> str:
    """Return the subject of a sentence on things of which none is as it must be."""
    return f"not even the first {noun}" if count == 1 else f"none of the first {counted(count, noun)}"
