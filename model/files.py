"""Bytes on disk that survive a crash at any instant."""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import blake3

from model.digests import DIGEST_BYTES, file_bytes
from model.errors import IntegrityError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Of this user, or of a file system that may only be read."""

_BLOCK_BYTES = 1 << 22


def read_json(path: Path, cure: str) -> Any:
    """The value in a file of JSON; FileNotFoundError without the file, IntegrityError that ends in `cure` where it is
    damaged."""
    try:
        return json.loads(file_bytes(path))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path} is damaged ({error}). {cure}") from error


def sync_directory(path: Path) -> None:
    """Make the names in a folder durable (fsync of the folder itself)."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path | str) -> None:
    """Make a file's bytes durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Give a file a second name: a hard link, or a durable copy where the disk has no links (FAT, some network shares)
    or `target` is on another. FileNotFoundError or FileExistsError where one is not there or the other is."""
    try:
        os.link(source, target)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        shutil.copy2(source, target)
        sync_file(target)


def write_synced(path: Path, blocks: Iterable[Any]) -> str:
    """Write blocks of bytes (anything with a buffer) one behind the other to `path`, durable.

    Returns the BLAKE3-128 of what was to be written, which is not read again. Other threads run meanwhile.
    """
    hasher = blake3.blake3()
    with path.open("wb") as stream:
        for block in blocks:
            whole = memoryview(block).cast("B")
            for start in range(0, len(whole), _BLOCK_BYTES):
                piece = whole[start : start + _BLOCK_BYTES]
                hasher.update(piece)
                stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return hasher.hexdigest(length=DIGEST_BYTES)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` as `replace_durably` does, and make its folder first where there is none."""
    make_folders(path.parent)
    replace_durably(path, data)


def make_folders(path: Path) -> None:
    """Make a folder, and those above it that are not there yet, each with a durable name."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def replace_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: temporary name beside it, fsync, rename, fsync of the folder, which must exist."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
