"""What a file held when it was digested, and a stream that gives these bytes or fails.

A file may be replaced, appended to or cut at any time. Its digest is made of those of its blocks, each of which is held
against its own digest again before one byte of it is handed out: what was digested is what is read, in whatever order,
by any number of processes, and after any crash, without reading the file once more as a whole.
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

_BLOCKS_HELD = 4
"""At once: three columns of a table are read side by side."""

_NO_FILE_NOW = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
)

_OF_BLOCKS = "bessemer: digests of the blocks of a file"


class ChangedInput(InputError):
    """A file does not hold what it held when it was digested."""

    def __init__(self, name: str, found: str) -> None:
        super().__init__(
            f"{name} was changed since it was digested: {found}. Nothing was computed from the changed bytes and"
            f" nothing is published. Run again once it is no longer written to, and it counts as it is then."
        )
        self.name, self.found = name, found

    def __reduce__(self) -> tuple[Any, ...]:
        return ChangedInput, (self.name, self.found)


@dataclass(frozen=True)
class Content:
    """The first `length` bytes of a file, by the BLAKE3-128 of each block of 4 MiB, one behind the other."""

    length: int
    blocks: bytes

    @functools.cached_property
    def digest(self) -> str:
        """BLAKE3-128 of the bytes where they are one block, else of the blocks' digests under a key of its own."""
        if len(self.blocks) == DIGEST_BYTES:
            return self.blocks.hex()
        return blake3.blake3(self.blocks, derive_key_context=_OF_BLOCKS).hexdigest(length=DIGEST_BYTES)

    def block(self, number: int) -> bytes:
        """The digest of a block."""
        return self.blocks[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]


def content_of(stream: BinaryIO, length: int | None = None) -> Content:
    """What a stream gives from where it stands: `length` bytes, or all up to its end. Where it ends earlier the
    content is as long as what came."""
    blocks, done = bytearray(), 0
    while not blocks or length is None or done < length:
        block = _filled(stream, BLOCK_BYTES if length is None else min(BLOCK_BYTES, length - done))
        if blocks and not block:
            break
        blocks += _digest(block)
        done += len(block)
    return Content(done, bytes(blocks))


def content_of_file(path: Path | str) -> Content:
    """What a file holds up to the length that it has when it is opened; OSError as `open_file`."""
    with open_file(path) as stream:
        return content_of(stream, os.fstat(stream.fileno()).st_size)


@contextmanager
def reading(stored: AbstractContextManager[BinaryIO], content: Content, name: str) -> Iterator[BinaryIO]:
    """The bytes of `content` out of `stored` by a ContentStream; `name` says in errors what it is."""
    with stored as stream:
        found = ContentStream(stream, content, name)
        yield cast(BinaryIO, found)
        # A library that was refused bytes may have taken that for a fault of the format.
        found.check()


def open_content(path: Path | str, content: Content) -> AbstractContextManager[BinaryIO]:
    """A file that was digested, to be read as it was then; ChangedInput where it cannot be opened as a file."""
    return reading(_Opened(path), content, os.fspath(path))


def bytes_of(path: Path | str, content: Content) -> bytes:
    """All bytes of a file that was digested; ChangedInput where they are others now."""
    with open_content(path, content) as stream:
        return stream.read()


@contextmanager
def unchanged(paths: Sequence[Path]) -> Iterator[None]:
    """Raise ChangedInput where one of the files is replaced, or written to, before the block ends, for libraries that
    open files by name."""
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


class _Opened(AbstractContextManager[BinaryIO]):
    """A file that could be opened before."""

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> BinaryIO:
        try:
            self._stream = open_file(self._path)
        except OSError as error:
            if error.errno not in _NO_FILE_NOW:
                raise
            raise ChangedInput(os.fspath(self._path), f"it cannot be opened now ({error.strerror})") from error
        return self._stream

    def __exit__(self, *of_error: object) -> None:
        self._stream.close()


class ContentStream(io.RawIOBase):
    """The bytes of a content, from anywhere; ChangedInput instead of any that are not its own, then and ever after."""

    def __init__(self, stream: BinaryIO, content: Content, name: str) -> None:
        self._stream, self._content, self._name = stream, content, name
        self._held: OrderedDict[int, bytes] = OrderedDict()
        self._position = self._stored_position = 0
        self._failure: ChangedInput | None = None

    def check(self) -> None:
        """Raise ChangedInput where bytes were asked for that are no longer there."""
        if self._failure is not None:
            raise self._failure

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes, fewer only at the end."""
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
        held = self._held.get(number)
        if held is not None:
            self._held.move_to_end(number)
            return held
        begin = number * BLOCK_BYTES
        asked = min(BLOCK_BYTES, self._content.length - begin)
        if self._stored_position != begin:
            self._stream.seek(begin)
        block = _filled(self._stream, asked)
        self._stored_position = begin + len(block)
        if len(block) < asked:
            self._fail(f"it had {self._content.length:,} bytes, and ends now after {begin + len(block):,}")
        if (found := _digest(block)) != self._content.block(number):
            expected = self._content.block(number).hex()
            self._fail(
                f"its bytes {begin:,} to {begin + asked:,} had the digest {expected}, and have {found.hex()} now"
            )
        self._held[number] = block
        if len(self._held) > _BLOCKS_HELD:
            self._held.popitem(last=False)
        return block

    def _fail(self, found: str) -> None:
        self._failure = ChangedInput(self._name, found)
        raise self._failure


def _filled(stream: BinaryIO, size: int) -> bytes:
    """`size` bytes, fewer only at the end of the stream."""
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
