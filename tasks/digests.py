"""BLAKE3 digests of files, and the cache that lets an unchanged input be recognised without reading it."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import blake3

from model.durable import NOT_WRITABLE, digest_bytes, digest_file, write_atomically

__all__ = ["InputDigests", "combined_digest", "digest_bytes", "digest_file"]

log = logging.getLogger(__name__)

SETTLING_SECONDS = 2.0
STREAM_BYTES = 1 << 20


def combined_digest(named: Iterable[tuple[str, str]]) -> str:
    """One digest over (name, digest) pairs in sorted order of names: the content of a set of files."""
    text = json.dumps(sorted(named), ensure_ascii=False, separators=(",", ":"))
    return digest_bytes(text.encode("utf-8", errors="surrogateescape"))


class InputDigests:
    """Digests of external files by (size, mtime_ns, inode, ctime_ns), kept in `inputs.json` of the artifact root.

    A file changed less than two seconds before it was hashed is hashed again next time: its clock tick might hide a
    later write of the same size. A program that writes and puts the old mtime back cannot put back the ctime.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._known: dict[str, list[Any]] = {}
        self._changed = False
        if cache.exists():
            try:
                self._known = json.loads(cache.read_text())
            except json.JSONDecodeError:
                # A cache is worth nothing when unreadable: everything is hashed again.
                self._changed = True

    def digest(self, path: Path) -> str:
        """The file's BLAKE3-128, read only when size, times or inode changed since it was last hashed."""
        status = path.stat()
        mark = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
        key = os.fspath(path)
        known = self._known.get(key)
        if known is not None and known[:-2] == mark and known[-1]:
            return known[-2]
        hashed_at = time.time_ns()
        digest = digest_file(path)
        settled = hashed_at - status.st_mtime_ns > SETTLING_SECONDS * 1e9
        self._known[key] = [*mark, digest, settled]
        self._changed = True
        return digest

    def digest_stream(
        self, name: str, mark: str | None, open_stream: Callable[[], AbstractContextManager[BinaryIO]]
    ) -> str:
        """The BLAKE3-128 of what `open_stream` gives, read only when `mark` (an ETag, say) differs from last time; None
        marks nothing, and the stream is always read."""
        known = self._known.get(name)
        if known is not None and mark is not None and known[0] == mark:
            return known[1]
        hasher = blake3.blake3()
        with open_stream() as stream:
            while block := stream.read(STREAM_BYTES):
                hasher.update(block)
        digest = hasher.hexdigest(length=16)
        self._known[name] = [mark, digest]
        self._changed = True
        return digest

    def save(self) -> None:
        """Write the cache if anything was hashed; where it cannot be written, files are hashed again next time."""
        if not self._changed:
            return
        try:
            write_atomically(self._cache, json.dumps(self._known).encode("utf-8", errors="surrogateescape"))
        except OSError as error:
            if error.errno not in NOT_WRITABLE:
                raise
            log.warning("%s cannot be written (%s); unchanged input is hashed again next time", self._cache, error)
        self._changed = False
