"""JSON records that end with a digest of their own bytes, so that a reader notices every changed byte.

A record is readable JSON. Its last key is `digest`: the BLAKE3-128 of all bytes before it, whitespace included.
"""

import fcntl
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.digests import digest_bytes, read_bytes
from model.errors import IntegrityError
from model.files import write_atomically

log = logging.getLogger(__name__)

KEY = "digest"

NEXT_LINE = "\n "

_MARK = f'"{KEY}": "'.encode()

_WHOLE_LINE = re.compile(re.escape(_MARK) + rb'[0-9a-f]{32}"\}.\Z', re.DOTALL)
"""A last line that is complete except for its newline, in place of which is another byte: not the work of a kill."""

_LAST_DIGEST = re.compile(rb'[0-9a-f]{32}"\s*\}\s*\Z')


class BrokenSeal(ValueError):
    """The bytes of a record do not match their digest."""


def write_sealed(path: Path, value: Mapping[str, Any], *, sort_keys: bool = False, indent: int | None = 1) -> None:
    """Replace `path` by a record durably, and create its folder if needed."""
    write_atomically(path, seal(value, sort_keys=sort_keys, indent=indent))


def read_sealed(path: Path, hint: str) -> dict[str, Any]:
    """Return the record in a file.

    Raises FileNotFoundError without the file, and IntegrityError, which ends with `hint`, where any byte has changed.
    """
    return json.loads(read_sealed_text(path, hint))


def find_sealed(path: Path, hint: str) -> dict[str, Any] | None:
    """Return a record that is made again where it is lost: None without the file, and where it is damaged, with a
    warning that ends with `hint`."""
    try:
        return read_sealed(path, hint)
    except FileNotFoundError:
        return None
    except IntegrityError as error:
        log.warning("%s", error)
        return None


def read_sealed_text(path: Path, hint: str) -> bytes:
    """Return the JSON of the record in a file without its digest; raises as `read_sealed`."""
    try:
        return unseal(read_bytes(path))
    except FileNotFoundError:
        raise
    except (OSError, BrokenSeal) as error:
        raise IntegrityError(f"{path} is damaged ({error}). {hint}") from error


def read_optionally_sealed(path: Path, hint: str) -> bytes:
    """Return the JSON in a file that may be written by hand, and check its digest if it has one.

    Raises IntegrityError, which ends with `hint`, where it has one and is damaged. Both the key `digest` and its value
    are looked for, so that a changed byte in one of them does not hide the other.
    """
    data = read_bytes(path)
    try:
        return unseal(data)
    except BrokenSeal as error:
        if _MARK not in data and not _LAST_DIGEST.search(data):
            return data
        raise IntegrityError(f"{path} is damaged ({error}). {hint}") from error


def read_sealed_lines(path: Path, hint: str) -> list[dict[str, Any]]:
    """Return the records in a file of lines; IntegrityError where one is damaged."""
    records: list[dict[str, Any]] = []
    for number, line in enumerate(complete_lines(path, hint), start=1):
        try:
            records.append(json.loads(unseal(line)))
        except BrokenSeal as error:
            raise IntegrityError(f"{path}, line {number}, is damaged ({error}). {hint}") from error
    return records


def complete_lines(path: Path, hint: str) -> list[bytes]:
    """Return the lines of a file of records, each sealed without an indent; none without the file.

    A last line that a kill has cut off is ignored. Raises IntegrityError, which ends with `hint`, where the last line
    is complete except for its newline.
    """
    if not path.exists():
        return []
    *lines, rest = read_bytes(path).split(b"\n")
    if _WHOLE_LINE.search(rest):
        raise IntegrityError(f"{path}, line {len(lines) + 1}, is damaged (its end is not what was written). {hint}")
    return [line + b"\n" for line in lines]


def append_sealed_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a record to a file of lines; raises as `append_lines`."""
    append_lines(path, seal(value, indent=None), "Nothing was appended to it.")


def append_lines(path: Path, lines: bytes, hint: str) -> None:
    """Append sealed lines to a file, durable when this returns; what a kill left of a line is overwritten.

    Raises IntegrityError, which ends with `hint`, where the last line is damaged, and OSError where the disk refuses;
    nothing is then appended.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        whole = sum(map(len, complete_lines(path, hint)))
        os.ftruncate(handle, whole)
        try:
            done = 0
            # A disk that is filling up takes a part without an error.
            while done < len(lines):
                done += os.pwrite(handle, lines[done:], whole + done)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, whole)
            raise
    finally:
        os.close(handle)


def seal(value: Mapping[str, Any], *, sort_keys: bool = False, indent: int | None = 1) -> bytes:
    """Return `value` as JSON with its digest as the last key; on one line without an `indent`."""
    assert KEY not in value, f"`{KEY}` is reserved for the digest"
    text = json.dumps(value, sort_keys=sort_keys, indent=indent).removesuffix("}").removesuffix("\n")
    head = f"{text}{',' if value else ''}{' ' if indent is None else NEXT_LINE}".encode()
    return head + _MARK + _tail(head)


def unseal(data: bytes) -> bytes:
    """Return the JSON of a record without its digest; BrokenSeal where they do not match."""
    head, _, tail = data.rpartition(_MARK)
    if tail != _tail(head):
        raise BrokenSeal(f"it does not end in the digest of its bytes, {digest_bytes(head)}")
    return head.rstrip(b", \n") + b"}"


def _tail(head: bytes) -> bytes:
    """Return the end of a record after `"digest": "`: the digest of `head` and the closing bytes."""
    return digest_bytes(head).encode() + (b'"\n}\n' if head.endswith(NEXT_LINE.encode()) else b'"}\n')
