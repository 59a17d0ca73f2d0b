"""Digests of input files, and the cache that recognises an unchanged file without reading it."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from model.checksummed_json import find_sealed, write_sealed
from model.digests import digest_bytes, open_file
from model.file_content import ChangedInput, Content, content_of_stream
from model.files import NOT_WRITABLE

log = logging.getLogger(__name__)

INPUTS = "inputs.json"
"""The cache's name in the root of artifacts."""

SETTLING_SECONDS = 2.0


def combined_digest(named: Iterable[tuple[str, str]]) -> str:
    """Return one digest over (name, digest) pairs, sorted by name: the content of a set of files."""
    text = json.dumps(sorted(named), ensure_ascii=False, separators=(",", ":"))
    return digest_bytes(text.encode("utf-8", errors="surrogateescape"))


class InputDigests:
    """Contents of external files by (size, mtime_ns, inode, ctime_ns), cached in a file of the artifact root.

    A file that was changed less than two seconds before it was digested is digested again next time: its clock tick
    might hide a later write of the same size. A program that restores an old mtime cannot restore the ctime.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        found = find_sealed(cache, "It is rewritten, and all input is hashed again.")
        self._known: dict[str, Any] = {} if found is None else found["files"]
        self._changed = found is None and cache.exists()

    def digest(self, path: Path) -> str:
        return self.content(path).digest

    def content(self, path: Path) -> Content:
        """Return the content of a file up to its present length; reads it only if its size, times or inode changed
        since it was last digested.

        Raises ChangedInput if it is written to meanwhile, unless it only grows.
        """
        key = os.fspath(path)
        if (known := self._lookup(key, _mark(path.stat()))) is not None:
            return known
        with open_file(path) as stream:
            # Of the open file: a rename may have replaced the one whose status was read above.
            before, began = os.fstat(stream.fileno()), time.time_ns()
            found = content_of_stream(stream, before.st_size)
            unchanged = _mark(os.fstat(stream.fileno())) == _mark(before)
            if not unchanged:
                # A file that only grows still begins with the same bytes; of any other, these never existed together.
                stream.seek(0)
                if found.length < before.st_size or content_of_stream(stream, before.st_size) != found:
                    raise ChangedInput(key, "it was written to while it was digested")
        settled = unchanged and began - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLING_SECONDS * 1e9
        self._remember(key, _mark(before) if settled else None, found)
        return found

    def content_of_stream(
        self, name: str, mark: str | None, open_stream: Callable[[], AbstractContextManager[BinaryIO]]
    ) -> Content:
        """Return the content of a stream; reads it only if `mark` (an ETag, say) differs from last time, and always if
        `mark` is None."""
        if mark is not None and (known := self._lookup(name, mark)) is not None:
            return known
        with open_stream() as stream:
            found = content_of_stream(stream)
        self._remember(name, mark, found)
        return found

    def forget(self, name: str) -> None:
        """Forget a file, so that it is digested again whatever its times are."""
        self._changed |= self._known.pop(name, None) is not None

    def forget_missing(self) -> None:
        """Forget the files of this machine that no longer exist."""
        for name in [name for name in self._known if "://" not in name and not os.path.exists(name)]:
            self.forget(name)

    def _lookup(self, key: str, mark: Any) -> Content | None:
        known = self._known.get(key)
        if not isinstance(known, dict) or known.get("mark") != mark:
            return None
        return Content(known["length"], bytes.fromhex(known["blocks"]))

    def _remember(self, key: str, mark: Any, found: Content) -> None:
        self.forget(key)
        if mark is not None:
            self._known[key] = {"mark": mark, "length": found.length, "blocks": found.blocks.hex()}
            self._changed = True

    def save(self) -> None:
        """Write the cache if anything was hashed; if it cannot be written, files are hashed again next time.

        Makes no root: commands that only look may name one that does not exist.
        """
        if not self._changed or not self._cache.parent.is_dir():
            return
        try:
            write_sealed(self._cache, {"files": self._known}, indent=None)
        except OSError as error:
            if error.errno not in NOT_WRITABLE:
                raise
            log.warning("%s cannot be written (%s): unchanged input is hashed again next time", self._cache, error)
        self._changed = False


@contextmanager
def forget_changed_inputs(cache: Path) -> Iterator[None]:
    """Forget the cached content of a file for which the block raises ChangedInput: its times may hide the change."""
    try:
        yield
    except ChangedInput as error:
        digests = InputDigests(cache)
        digests.forget(error.name)
        digests.save()
        raise


def _mark(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
