"""The content of a file when it was digested, and a stream that returns these bytes or fails.

A file may be replaced, appended to or truncated at any time. Its digest is made from those of its blocks, and each
block is checked again before any of its bytes is returned: what is read is what was digested, in any order, by any
number of processes, and after any crash, without reading the whole file again.
"""

import errno
import functools
import io
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import blake3

from model.digests import DIGEST_BYTES, open_file
from model.errors import InputError

BLOCK_BYTES = 1 << 22

_PARALLEL_FROM_BYTES = 1 << 21

_CACHED_BLOCKS = 4
"""More than one, since columns of a table are read in turns."""

_NO_LONGER_A_FILE = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
)

_BLOCKS_CONTEXT = "bessemer: digests of the blocks of a file"


class ChangedInput(InputError):
    """A file has changed since it was digested."""

    def __init__(self, name: str, found: str) -> None:
        super().__init__(
            f"{name} was changed since it was digested: {found}. Nothing was computed from the changed bytes and"
            f" nothing is published. Run again once it is no longer written to; the run then uses it as it is."
        )
        self.name, self.found = name, found

    def __reduce__(self) -> tuple[Any, ...]:
        return ChangedInput, (self.name, self.found)


@dataclass(frozen=True)
class Content:
    """The first `length` bytes of a file, as the concatenated BLAKE3-128 of each block of 4 MiB."""

    length: int
    blocks: bytes

    @functools.cached_property
    def digest(self) -> str:
        """BLAKE3-128 of the bytes if they are one block, else of the blocks' digests in a key context of its own."""
        if len(self.blocks) == DIGEST_BYTES:
            return self.blocks.hex()
        return blake3.blake3(self.blocks, derive_key_context=_BLOCKS_CONTEXT).hexdigest(length=DIGEST_BYTES)

    def block(self, number: int) -> bytes:
        """Return the digest of a block."""
        return self.blocks[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]


def content_of_stream(stream: BinaryIO, length: int | None = None) -> Content:
    """Return the content of the next `length` bytes of a stream, or of all up to its end; shorter where it ends
    earlier."""
    blocks, done = bytearray(), 0
    while not blocks or length is None or done < length:
        block = _read_fully(stream, BLOCK_BYTES if length is None else min(BLOCK_BYTES, length - done))
        if blocks and not block:
            break
        blocks += _digest(block)
        done += len(block)
    return Content(done, bytes(blocks))


def content_of_file(path: Path | str) -> Content:
    """Return the content of a file, up to its length when it is opened; OSError as `open_file`."""
    with open_file(path) as stream:
        return content_of_stream(stream, os.fstat(stream.fileno()).st_size)


@contextmanager
def verified_stream(stored: AbstractContextManager[BinaryIO], content: Content, name: str) -> Iterator[BinaryIO]:
    """Open `stored` as a ContentStream of `content`; errors call it `name`."""
    with stored as stream:
        checked = ContentStream(stream, content, name)
        yield cast(BinaryIO, checked)
        # A library may have caught ChangedInput, and taken it for an error of the format.
        checked.check()


def open_content(path: Path | str, content: Content) -> AbstractContextManager[BinaryIO]:
    """Open a file that was digested, to read it as it was then; ChangedInput where it cannot be opened."""
    return verified_stream(_opened(path), content, os.fspath(path))


def read_content(path: Path | str, content: Content) -> bytes:
    """Return all bytes of a file that was digested; ChangedInput where they have changed."""
    with open_content(path, content) as stream:
        return stream.read()


@contextmanager
def require_unchanged(paths: Sequence[Path]) -> Iterator[None]:
    """Raise ChangedInput where one of the files is replaced or written to within the block, in which libraries open
    them by name."""
    before = [_state(path) for path in paths]
    try:
        yield
    finally:
        for path, state in zip(paths, before, strict=True):
            if _state(path) != state:
                raise ChangedInput(str(path), "it was written to, or replaced, while it was read")


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino, status.st_ctime_ns


@contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    """Open a file that existed before; ChangedInput where it no longer does."""
    try:
        stream = open_file(path)
    except OSError as error:
        if error.errno not in _NO_LONGER_A_FILE:
            raise
        raise ChangedInput(os.fspath(path), f"it cannot be opened any more ({error.strerror})") from error
    with stream:
        yield stream


class ContentStream(io.RawIOBase):
    """A seekable stream of a content; once a block does not match, it raises ChangedInput at every read."""

    def __init__(self, stream: BinaryIO, content: Content, name: str) -> None:
        self._stream, self._content, self._name = stream, content, name
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._position = self._stored_position = 0
        self._failure: ChangedInput | None = None

    def check(self) -> None:
        """Raise ChangedInput if any read has failed."""
        if self._failure is not None:
            raise self._failure

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, fewer only at the end."""
        length = self._content.length
        end = length if size is None or size < 0 else min(length, self._position + size)
        pieces: list[bytes] = []
        while self._position < end:
            number, begin = divmod(self._position, BLOCK_BYTES)
            pieces.append(self._block(number)[begin : begin + end - self._position])
            self._position += len(pieces[-1])
        return b"".join(pieces)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._content.length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def _block(self, number: int) -> bytes:
        self.check()
        cached = self._cache.get(number)
        if cached is not None:
            self._cache.move_to_end(number)
            return cached
        begin = number * BLOCK_BYTES
        size = min(BLOCK_BYTES, self._content.length - begin)
        if self._stored_position != begin:
            self._stream.seek(begin)
        block = _read_fully(self._stream, size)
        self._stored_position = begin + len(block)
        if len(block) < size:
            self._fail(f"it had {self._content.length:,} bytes, and now ends after {begin + len(block):,}")
        if (found := _digest(block)) != self._content.block(number):
            expected = self._content.block(number).hex()
            self._fail(f"its bytes {begin:,} to {begin + size:,} had the digest {expected}, and now have {found.hex()}")
        self._cache[number] = block
        if len(self._cache) > _CACHED_BLOCKS:
            self._cache.popitem(last=False)
        return block

    def _fail(self, found: str) -> None:
        self._failure = ChangedInput(self._name, found)
        raise self._failure


def _read_fully(stream: BinaryIO, size: int) -> bytes:
    """Return the next `size` bytes, fewer only at the end of the stream."""
    block = stream.read(size)
    if len(block) == size or not block:
        return block
    pieces = [block]
    missing = size - len(block)
    while missing and (block := stream.read(missing)):
        pieces.append(block)
        missing -= len(block)
    return b"".join(pieces)


def _digest(block: bytes) -> bytes:
    threads = blake3.blake3.AUTO if len(block) >= _PARALLEL_FROM_BYTES else 1
    return blake3.blake3(block, max_threads=threads).digest(length=DIGEST_BYTES)
