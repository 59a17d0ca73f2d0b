"""Records that hold a digest of themselves, so that whoever reads one knows of every byte that changed.

A record is JSON that people can read. Its last key is `digest`: the BLAKE3-128 of all bytes before it, blanks included,
so that there is no change that a reader could miss.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.digests import digest_bytes, file_bytes
from model.errors import IntegrityError
from model.files import write_atomically

KEY = "digest"

NEXT_LINE = "\n "

_MARK = f'"{KEY}": "'.encode()

_WHOLE_LINE = re.compile(re.escape(_MARK) + rb'[0-9a-f]{32}"\}.\Z', re.DOTALL)
"""At the end of what a kill cannot have cut off: one byte more than all but the end of a line."""

_LAST_DIGEST = re.compile(rb'[0-9a-f]{32}"\s*\}\s*\Z')


class BrokenSeal(ValueError):
    """Bytes that are not what was sealed."""


def seal(value: Mapping[str, Any], *, sort_keys: bool = False, indent: int | None = 1) -> bytes:
    """JSON of `value` with its digest as the last key; on one line without an `indent`."""
    assert KEY not in value, f"`{KEY}` is the seal's own key"
    text = json.dumps(value, sort_keys=sort_keys, indent=indent).removesuffix("}").removesuffix("\n")
    head = f"{text}{',' if value else ''}{' ' if indent is None else NEXT_LINE}".encode()
    return head + _MARK + _tail(head)


def unseal(data: bytes) -> bytes:
    """The JSON that was sealed, without its digest; BrokenSeal where the bytes are not what was written."""
    head, _, tail = data.rpartition(_MARK)
    if tail != _tail(head):
        raise BrokenSeal(f"it does not end in the digest of its bytes, {digest_bytes(head)}")
    return head.rstrip(b", \n") + b"}"


def write_sealed(path: Path, value: Mapping[str, Any], *, sort_keys: bool = False, indent: int | None = 1) -> None:
    """Replace `path` by a sealed record, durably; its folder is made where there is none."""
    write_atomically(path, seal(value, sort_keys=sort_keys, indent=indent))


def read_sealed(path: Path, cure: str) -> dict[str, Any]:
    """The record in a file; FileNotFoundError without the file, IntegrityError that ends in `cure` where any byte of it
    changed."""
    return json.loads(sealed_text(path, cure))


def sealed_text(path: Path, cure: str) -> bytes:
    """The JSON of the record in a file, without its digest; raises what `read_sealed` raises."""
    try:
        return unseal(file_bytes(path))
    except FileNotFoundError:
        raise
    except (OSError, BrokenSeal) as error:
        raise IntegrityError(f"{path} is damaged ({error}). {cure}") from error


def given_text(path: Path, cure: str) -> bytes:
    """The JSON in a file that people may write by hand: with a digest it is checked, without one it is taken as it is.

    Raises IntegrityError that ends in `cure` where it has one and is damaged. A byte that changed in the key `digest`
    leaves the digest behind it, and one that changed in the digest leaves the key: either tells that there was one.
    """
    data = file_bytes(path)
    try:
        return unseal(data)
    except BrokenSeal as error:
        if _MARK not in data and not _LAST_DIGEST.search(data):
            return data
        raise IntegrityError(f"{path} is damaged ({error}). {cure}") from error


def whole_lines(path: Path, cure: str) -> list[bytes]:
    """The lines of a file of records, each sealed without an indent; none without the file.

    The beginning of a last line that a kill cut off is left out. Raises IntegrityError that ends in `cure` where the
    last line is all there, and its end is not.
    """
    if not path.exists():
        return []
    *lines, rest = file_bytes(path).split(b"\n")
    if _WHOLE_LINE.search(rest):
        raise IntegrityError(f"{path}, line {len(lines) + 1}, is damaged (its end is not what was written). {cure}")
    return [line + b"\n" for line in lines]


def sealed_lines(path: Path, cure: str) -> list[dict[str, Any]]:
    """The records in a file of lines, as `whole_lines` finds them; IntegrityError where one is damaged."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(whole_lines(path, cure), start=1):
        try:
            found.append(json.loads(unseal(line)))
        except BrokenSeal as error:
            raise IntegrityError(f"{path}, line {number}, is damaged ({error}). {cure}") from error
    return found


def _tail(head: bytes) -> bytes:
    """What follows the mark: the digest of all before it, and what closes the record."""
    return digest_bytes(head).encode() + (b'"\n}\n' if head.endswith(NEXT_LINE.encode()) else b'"}\n')
