"""Small objects that hold their own digest: nothing else would tell a reader that an answer was cut or changed."""

import json
from typing import Any

from model.reading import digest_bytes


class BrokenSeal(ValueError):
    """Bytes that are not what was sealed."""


def seal(value: Any) -> bytes:
    """JSON of `value` and of the BLAKE3-128 of its canonical form."""
    return json.dumps({"digest": _digest(value), "value": value}, indent=1, sort_keys=True).encode()


def unseal(data: bytes) -> Any:
    """What was sealed; BrokenSeal where the bytes are not what was written."""
    try:
        envelope = json.loads(data)
        value, digest = envelope["value"], envelope["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenSeal(f"no sealed object: {type(error).__name__}: {error}") from error
    if _digest(value) != digest:
        raise BrokenSeal(f"sealed as {digest}, and its bytes give {_digest(value)}")
    return value


def _digest(value: Any) -> str:
    return digest_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
