"""Files that survive a crash at any instant."""

import errno
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import blake3

from model.digests import BLOCK_BYTES, DIGEST_BYTES

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of missing permissions and of read-only file systems."""


def user_cache() -> Path:
    """Return the folder of this user for what can be computed again; it need not exist, and may not be writable."""
    home = os.path.expanduser("~")
    # A container's user may have neither a name nor a home.
    default = os.path.join("/nonexistent" if home == "~" else home, ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "bessemer"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` as `replace_durably` does, and create its folder first if needed."""
    make_folders(path.parent)
    replace_durably(path, data)


def replace_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: temporary file, fsync, rename, fsync of the folder, which must exist."""
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


def write_synced(path: Path, blocks: Iterable[Any]) -> str:
    """Write blocks of bytes (any buffers) to `path` durably, and return their BLAKE3-128.

    The digest is that of the blocks in memory; the file is not read again. Other threads run meanwhile.
    """
    hasher = blake3.blake3()
    with path.open("wb") as stream:
        for block in blocks:
            whole = memoryview(block).cast("B")
            for start in range(0, len(whole), BLOCK_BYTES):
                piece = whole[start : start + BLOCK_BYTES]
                hasher.update(piece)
                stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return hasher.hexdigest(length=DIGEST_BYTES)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Create `target` as a hard link to `source`, or as a durable copy where links are not possible (FAT, some network
    shares, another disk). Raises FileNotFoundError without `source`, FileExistsError where `target` exists."""
    try:
        os.link(source, target)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        shutil.copy2(source, target)
        sync_file(target)


def remove(path: Path) -> None:
    """Delete a folder with all that is in it, or a file of that name; nothing where there is neither."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_folders(path: Path) -> None:
    """Create a folder and its missing parents durably."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a folder durable (fsync of the folder itself)."""
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
