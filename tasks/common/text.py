"""Scripts written without blanks between words, where one character counts as one word.

Word counts, shingles and n-grams need this in every stage: a Chinese page has no blanks, and a rule that splits at
blanks sees it as one giant word. Ranges are of the Unicode blocks; letters, digits and marks in them count.

Credentials within addresses: `s3://KEY:SECRET@bucket`, `https://host/file?X-Amz-Signature=...`.

Addresses of a recipe are written into records, manifests, logs and pages, and those are made to be shown around. So a
recipe with credentials in an address is refused, and what stores and servers say in their errors is masked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
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


def is_unspaced(codepoint: int) -> bool:
    """Whether a letter, digit or mark at this code point is a word of its own."""
    return any(first <= codepoint <= last for first, last in UNSPACED_RANGES)


MASK = "***"

_USER = re.compile(r"([a-z][a-z0-9+.-]*)://[^\s@'\"`/?#:]*:(?!\d{2,5}(?:[/?#]|$))[^\s'\"`]+@", re.IGNORECASE)
"""A name, a colon, what is no port, and an @: keys of stores hold slashes, so the whole word counts."""

_SIGNED = re.compile(
    r"([?&;](?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid|sig"
    r"|signature|(?:access_|auth_)?token|api_?key|key|secret|password))=[^&;#\s'\"`]+",
    re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """The text with what stands before the @ of an address, and with signatures and tokens in its query, masked."""
    return _SIGNED.sub(rf"\1={MASK}", _USER.sub(rf"\1://{MASK}@", text))


def addresses_with_credentials(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(path, masked address) of each text within nested values that has credentials in an address."""
    if isinstance(value, str):
        if (masked := without_credentials(value)) != value and "://" in value:
            yield place, masked
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from addresses_with_credentials(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for number, inner in enumerate(value):
            yield from addresses_with_credentials(inner, f"{place}[{number}]")
