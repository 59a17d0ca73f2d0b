"""Digests of files, and the cache that lets an unchanged input be recognised without reading it."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from model.checksummed_json import read_sealed, write_sealed
from model.digests import digest_bytes, open_file
from model.errors import IntegrityError
from model.file_content import ChangedInput, Content, content_of_stream
from model.files import NOT_WRITABLE

log = logging.getLogger(__name__)

INPUTS = "inputs.json"
"""The cache's name in the root of artifacts."""

SETTLING_SECONDS = 2.0


def combined_digest(named: Iterable[tuple[str, str]]) -> str:
    """One digest over (name, digest) pairs in sorted order of names: the content of a set of files."""
    text = json.dumps(sorted(named), ensure_ascii=False, separators=(",", ":"))
    return digest_bytes(text.encode("utf-8", errors="surrogateescape"))


class InputDigests:
    """What external files held, by (size, mtime_ns, inode, ctime_ns), kept in a file of the artifact root.

    A file that was changed less than two seconds before it was digested is digested again next time: its clock tick
    might hide a later write of the same size. A program that puts an old mtime back cannot put back the ctime.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._known: dict[str, Any] = {}
        self._changed = False
        if cache.exists():
            try:
                self._known = read_sealed(cache, "It is written anew, and all input is hashed again.")["files"]
            except IntegrityError as error:
                log.warning("%s", error)
                self._changed = True

    def digest(self, path: Path) -> str:
        """The digest of `content`."""
        return self.content(path).digest

    def content(self, path: Path) -> Content:
        """What a file holds up to the length that it has now; read only when its size, times or inode changed since it
        was last digested."""
        key = os.fspath(path)
        if (known := self._standing(key, _mark(path.stat()))) is not None:
            return known
        with open_file(path) as stream:
            # Of the file that is read, which a rename may have put in the place of the one looked at above.
            before, began = os.fstat(stream.fileno()), time.time_ns()
            found = content_of_stream(stream, before.st_size)
            unchanged = _mark(os.fstat(stream.fileno())) == _mark(before)
            if not unchanged:
                # A file that only grows begins with the same bytes still; of any other, these were never all there.
                stream.seek(0)
                if found.length < before.st_size or content_of_stream(stream, before.st_size) != found:
                    raise ChangedInput(key, "it was written to while it was digested")
        settled = unchanged and began - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLING_SECONDS * 1e9
        self._remember(key, _mark(before) if settled else None, found)
        return found

    def content_of_stream(
        self, name: str, mark: str | None, open_stream: Callable[[], AbstractContextManager[BinaryIO]]
    ) -> Content:
        """What `open_stream` gives, read only when `mark` (an ETag, say) differs from last time; None marks nothing,
        and the stream is always read."""
        if mark is not None and (known := self._standing(name, mark)) is not None:
            return known
        with open_stream() as stream:
            found = content_of_stream(stream)
        self._remember(name, mark, found)
        return found

    def forget(self, name: str) -> None:
        """Digest a file anew next time, whatever its times say."""
        self._changed |= self._known.pop(name, None) is not None

    def _standing(self, key: str, mark: Any) -> Content | None:
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
        """Write the cache if anything was hashed; where it cannot be written, files are hashed again next time."""
        if not self._changed:
            return
        try:
            write_sealed(self._cache, {"files": self._known}, indent=None)
        except OSError as error:
            if error.errno not in NOT_WRITABLE:
                raise
            log.warning("%s cannot be written (%s); unchanged input is hashed again next time", self._cache, error)
        self._changed = False


@contextmanager
def forgetting_changed(cache: Path) -> Iterator[None]:
    """Forget what is known of a file for which the block raises ChangedInput, whose times may hide the change."""
    try:
        yield
    except ChangedInput as error:
        digests = InputDigests(cache)
        digests.forget(error.name)
        digests.save()
        raise


def _mark(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
