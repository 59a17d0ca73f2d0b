"""Credentials within addresses: `s3://KEY:SECRET@bucket`, `https://host/file?X-Amz-Signature=...`.

Addresses of a recipe are written into records, manifests, logs and pages, and those are made to be shown around. So a
recipe with credentials in an address is refused, and what stores and servers say in their errors is masked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
