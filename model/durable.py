"""Bytes on disk that survive a crash at any instant, and digests that tell whether they are still the same."""

import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import blake3

DIGEST_BYTES = 16
_BLOCK_BYTES = 1 << 22
_PARALLEL_FROM_BYTES = 1 << 26


def digest_bytes(data: bytes) -> str:
    """BLAKE3-128 of `data`, 32 hexadecimal digits."""
    return blake3.blake3(data).hexdigest(length=DIGEST_BYTES)


def digest_file(path: Path) -> str:
    """BLAKE3-128 of a file's bytes, 32 hexadecimal digits, in bounded memory."""
    # Not update_mmap: the pages of a mapped file count as this process's memory (2.0 GB of 2 GB), and a file that gets
    # shorter meanwhile ends the process.
    parallel = path.stat().st_size >= _PARALLEL_FROM_BYTES
    hasher = blake3.blake3(max_threads=blake3.blake3.AUTO if parallel else 1)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest(length=DIGEST_BYTES)


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
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, data)


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
