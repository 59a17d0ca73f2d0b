"""Safe reading of files, which never blocks on special files, and digests of bytes."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

import blake3

DIGEST_BYTES = 16

BLOCK_BYTES = 1 << 22

_PARALLEL_FROM_BYTES = 1 << 26
"""Size from which a file is hashed by several threads."""

_SPECIAL_FILES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def open_file(path: Path | str) -> BinaryIO:
    """Open a file for reading; OSError, without blocking, for a folder, a FIFO, a socket or a device."""
    _check_is_file(os.stat(path), path)  # Merely opening a device may have effects.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_is_file(os.fstat(handle), path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: Path | str) -> bytes:
    """Return all bytes of a file; OSError as `open_file`."""
    with open_file(path) as stream:
        return stream.read()


def digest_bytes(data: bytes) -> str:
    """Return the BLAKE3-128 of `data`, 32 hexadecimal digits."""
    return blake3.blake3(data).hexdigest(length=DIGEST_BYTES)


def digest_file(path: Path) -> str:
    """Return the BLAKE3-128 of a file, 32 hexadecimal digits, in bounded memory; OSError as `open_file`."""
    # Not update_mmap: mapped pages count as this process's memory (2.0 GB for 2 GB), and a file that is truncated
    # meanwhile kills the process.
    with open_file(path) as stream:
        parallel = os.fstat(stream.fileno()).st_size >= _PARALLEL_FROM_BYTES
        hasher = blake3.blake3(max_threads=blake3.blake3.AUTO if parallel else 1)
        while block := stream.read(BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest(length=DIGEST_BYTES)


def unreadable_reason(path: Path | str) -> str:
    """Return why `path` cannot be read as a file, to follow its name in a message; empty for a readable file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if stat.S_ISDIR(status.st_mode):
        return "is a folder"
    if kind := special_file_kind(status):
        return f"is {kind}, not a file"
    return "" if os.access(path, os.R_OK) else "may not be read by this user"


def special_file_kind(status: os.stat_result) -> str:
    """Return `a FIFO`, `a socket`, `a character device` or `a block device`, which may block a reader or never end;
    empty for files and folders."""
    return _SPECIAL_FILES.get(stat.S_IFMT(status.st_mode), "")


def _check_is_file(status: os.stat_result, path: Path | str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if kind := special_file_kind(status):
        raise OSError(errno.ENXIO, f"not a file but {kind}", os.fspath(path))
