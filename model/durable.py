"""Bytes on disk that survive a crash at any instant, and digests that tell whether they are still the same."""

import errno
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import blake3

from model.errors import IntegrityError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Of this user, or of a file system that may only be read."""
DIGEST_BYTES = 16
_BLOCK_BYTES = 1 << 22
_PARALLEL_FROM_BYTES = 1 << 26


_NO_FILES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def no_file(status: os.stat_result) -> str:
    """`a FIFO`, `a socket`, `a character device` or `a block device`, all of which may block a reader or never end;
    empty for files and folders."""
    return _NO_FILES.get(stat.S_IFMT(status.st_mode), "")


def why_no_file(path: Path | str) -> str:
    """Why `path` cannot be read as a file, as what follows its name in a message; empty where it is a readable file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if stat.S_ISDIR(status.st_mode):
        return "is a folder"
    if kind := no_file(status):
        return f"is {kind}, not a file"
    return "" if os.access(path, os.R_OK) else "may not be read by this user"


def open_file(path: Path | str) -> BinaryIO:
    """Open a file for reading; OSError, without waiting, for a folder, a FIFO, a socket and a device."""
    _refuse_no_file(os.stat(path), path)  # Opening a device may do something already.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_no_file(os.fstat(handle), path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _refuse_no_file(status: os.stat_result, path: Path | str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if kind := no_file(status):
        raise OSError(errno.ENXIO, f"not a file but {kind}", os.fspath(path))


def file_bytes(path: Path | str) -> bytes:
    """All bytes of a file; OSError as `open_file`."""
    with open_file(path) as stream:
        return stream.read()


def digest_bytes(data: bytes) -> str:
    """BLAKE3-128 of `data`, 32 hexadecimal digits."""
    return blake3.blake3(data).hexdigest(length=DIGEST_BYTES)


def digest_file(path: Path) -> str:
    """BLAKE3-128 of a file's bytes, 32 hexadecimal digits, in bounded memory; OSError as `open_file`."""
    # Not update_mmap: the pages of a mapped file count as this process's memory (2.0 GB of 2 GB), and a file that gets
    # shorter meanwhile ends the process.
    with open_file(path) as stream:
        parallel = os.fstat(stream.fileno()).st_size >= _PARALLEL_FROM_BYTES
        hasher = blake3.blake3(max_threads=blake3.blake3.AUTO if parallel else 1)
        while block := stream.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest(length=DIGEST_BYTES)


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
