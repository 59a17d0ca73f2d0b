"""Streams of bytes in bounded memory: decompression around damaged spots, and lines.

Files are decompressed block by block and not through a reader object: these either lose what they had already unpacked
when the stream breaks (pyarrow), or take a truncated stream for a complete one (zstandard's stream_reader). After a
damaged spot reading continues at the next gzip member or zstd frame, of which large files have many (a WARC file has
one for each record). Checksums are at the end of a member, so what was unpacked before the damage is yielded as it is.
"""

import bz2
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import zstandard

from tasks.sample.config import Source

BLOCK_BYTES = 1 << 20

_GZIP_INPUT_BYTES = 1 << 16

_ZSTD_INPUT_BYTES = 1 << 13

_ZSTD_CAREFUL_BYTES = 1 << 9  # zstd may unpack 4 bytes into 128 KiB: these into 16 MiB at most

_ZSTD_HIGH_RATIO = 64

_GZIP_MAGIC = b"\x1f\x8b\x08"

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_BZIP2_MAGIC = b"1AY&SY"
_BZIP2_HEADER = 4
"""Bytes of a stream before its first block: `BZh` and a digit."""

_TRIAL_BYTES = 4096

ALWAYS_ALLOWED_BYTES = 1 << 30
"""A file that unpacks to at most this many bytes is read whatever its ratio: that takes seconds."""

UNPACKS_TOO_MUCH = "unpacks to more than"


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing bytes; what follows may begin in the middle of a record."""

    reason: str


class EnoughRead(Exception):
    """Raised by a reader whose file has more than its `ReadingLimit` allows, after what that allows."""


@dataclass
class ReadingLimit:
    """How many bytes of a file may be read, after decompression, and how many were."""

    most: float = math.inf
    read: int = 0

    @property
    def left(self) -> float:
        """Bytes that may still be read."""
        return self.most - self.read

    def take(self, size: int) -> None:
        """Count bytes that are read whole. Raises EnoughRead where they exceed the limit."""
        if size > self.left:
            raise EnoughRead
        self.read += size

    def first_of(self, blocks: Iterable[bytes | Gap]) -> Iterator[bytes | Gap]:
        """Yield `blocks` up to the limit. Raises EnoughRead where there is more."""
        for block in blocks:
            if not isinstance(block, Gap) and len(block) > self.left:
                part = block[: int(self.left)]
                self.read += len(part)
                if part:
                    yield part
                raise EnoughRead
            self.read += 0 if isinstance(block, Gap) else len(block)
            yield block


def until_enough(lines: "Iterable[Line | LostLine]") -> "Iterator[Line | LostLine]":
    """Yield lines, and end where enough was read: for readers that yield nothing before they saw all lines."""
    with suppress(EnoughRead):
        yield from lines


def most_unpacked(stored: int, source: Source) -> tuple[float, str]:
    """Return how many bytes the stored bytes of a file, or of a column of a row group, may unpack to, and which setting
    of the source says so."""
    by_ratio = max(ALWAYS_ALLOWED_BYTES, source.max_unpacked_ratio * stored)
    if source.max_unpacked_bytes <= by_ratio:
        return source.max_unpacked_bytes, f"max_unpacked_bytes ({source.max_unpacked_bytes:,}) allows"
    return by_ratio, f"{source.max_unpacked_ratio:g} times its {stored:,} bytes (max_unpacked_ratio)"


def within_limits(blocks: Iterable[bytes | Gap], source: Source, stored: Callable[[], int]) -> Iterator[bytes | Gap]:
    """Yield `blocks` up to the size that the source allows, then a final Gap; `stored` returns the stored bytes read so
    far."""
    unpacked = 0
    for block in blocks:
        most, why = most_unpacked(stored(), source)
        size = 0 if isinstance(block, Gap) else len(block)
        if not isinstance(block, Gap) and unpacked + size > most:
            yield block[: max(0, int(most) - unpacked)]
            yield Gap(f"{UNPACKS_TOO_MUCH} {why}")
            return
        unpacked += size
        yield block


def blocks_and_gaps(
    stream: BinaryIO, compression: str | None, on_bytes: Callable[[int], None], block_bytes: int = BLOCK_BYTES
) -> Iterator[bytes | Gap]:
    """Yield blocks of `stream` after decompression (`gzip`, `zstd`, `bzip2` or None), and a Gap for a damaged spot,
    after which reading continues if that is possible; `on_bytes` gets the stored bytes consumed.

    `block_bytes` is the size of blocks that are not compressed."""
    if compression == "gzip":
        return _gzip_blocks(_stored_blocks(stream, _GZIP_INPUT_BYTES, on_bytes))
    if compression == "zstd":
        return _zstd_blocks(_stored_blocks(stream, _ZSTD_INPUT_BYTES, on_bytes))
    if compression == "bzip2":
        return _bzip2_blocks(_stored_blocks(stream, _GZIP_INPUT_BYTES, on_bytes))
    return _stored_blocks(stream, block_bytes, on_bytes)


def _stored_blocks(stream: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    while block := stream.read(size):
        on_bytes(len(block))
        yield block


def _gzip_blocks(stored_blocks: Iterator[bytes]) -> Iterator[bytes | Gap]:
    member = None
    search = _Search(_GZIP_MAGIC, _begins_gzip_member)
    for stored in stored_blocks:
        waiting = search.feed(stored)
        while waiting:
            begun_here = member is None
            if member is None:
                waiting = waiting.lstrip(b"\0")  # gzip itself skips zeros between members
                if not waiting:
                    break
                member = zlib.decompressobj(wbits=31)
            before = member.copy()
            try:
                block = member.decompress(waiting, BLOCK_BYTES)
            except zlib.error as error:
                yield from _good_bytes(before, waiting)
                yield Gap(f"damaged gzip data: {error}")
                member = None
                waiting = search.start(waiting[1:] if begun_here else waiting)
                continue
            if block:
                yield block
            waiting = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member = None
    if member is not None:
        if rest := member.flush():
            yield rest
        yield Gap("gzip stream ends early")


def _good_bytes(member: "zlib._Decompress", stored: bytes) -> Iterator[bytes]:
    """Yield the output of `stored` up to its damaged byte: zlib drops the output of the call that reaches it."""
    for position in range(len(stored)):
        try:
            block = member.decompress(stored[position : position + 1])
        except zlib.error:
            return
        if block:
            yield block


def _begins_gzip_member(stored: bytes) -> bool:
    try:
        zlib.decompressobj(wbits=31).decompress(stored[:_TRIAL_BYTES], 1)
    except zlib.error:
        return False
    return True


def _zstd_blocks(stored_blocks: Iterator[bytes]) -> Iterator[bytes | Gap]:
    decompressor = zstandard.ZstdDecompressor()
    frame = None
    step = _ZSTD_CAREFUL_BYTES
    search = _Search(_ZSTD_MAGIC, lambda stored: True)
    for stored in stored_blocks:
        waiting = search.feed(stored)
        while waiting:
            begun_here = frame is None
            frame = frame or decompressor.decompressobj()
            try:
                block = frame.decompress(waiting[:step])
            except zstandard.ZstdError as error:
                yield Gap(f"damaged zstd data: {error}")
                frame = None
                waiting = search.start(waiting[1:] if begun_here else waiting)
                continue
            if block:
                yield block
            rest = waiting[step:]
            step = _ZSTD_CAREFUL_BYTES if len(block) > step * _ZSTD_HIGH_RATIO else _ZSTD_INPUT_BYTES
            waiting = frame.unused_data + rest if frame.eof else rest
            if frame.eof:
                frame = None
    if frame is not None:
        yield Gap("zstd stream ends early")


def _bzip2_blocks(stored_blocks: Iterator[bytes]) -> Iterator[bytes | Gap]:
    stream = None
    search = _Search(b"BZh", _begins_bzip2_stream)
    for stored in stored_blocks:
        waiting = search.feed(stored)
        while waiting:
            begun_here = stream is None
            stream = stream or bz2.BZ2Decompressor()
            try:
                block = stream.decompress(waiting, BLOCK_BYTES)
                while block:
                    yield block
                    block = b"" if stream.eof or stream.needs_input else stream.decompress(b"", BLOCK_BYTES)
            except OSError as error:
                yield Gap(f"damaged bzip2 data: {error}")
                stream = None
                waiting = search.start(waiting[1:] if begun_here else waiting)
                continue
            waiting = stream.unused_data if stream.eof else b""
            if stream.eof:
                stream = None
    if stream is not None:
        yield Gap("bzip2 stream ends early")


def _begins_bzip2_stream(stored: bytes) -> bool:
    # The rest of the first block's magic number may be in the next stored block.
    return _BZIP2_MAGIC.startswith(stored[_BZIP2_HEADER : _BZIP2_HEADER + len(_BZIP2_MAGIC)])


class _Search:
    """Searches for the next magic number after a damaged spot, also across the border of two blocks."""

    def __init__(self, magic: bytes, begins: Callable[[bytes], bool]) -> None:
        self._magic = magic
        self._begins = begins
        self._searching = False
        self._tail = b""

    def start(self, rest: bytes) -> bytes:
        """Begin a search in the rest of the current block; return empty bytes if it must continue in the next one."""
        self._searching = True
        return self.feed(rest)

    def feed(self, stored: bytes) -> bytes:
        """Return `stored` from where reading can continue; all of it if nothing is searched."""
        if not self._searching:
            return stored
        stored, self._tail = self._tail + stored, b""
        at = stored.find(self._magic)
        while at >= 0 and not self._begins(stored[at:]):
            at = stored.find(self._magic, at + 1)
        if at < 0:
            self._tail = stored[-(len(self._magic) - 1) :]
            return b""
        self._searching = False
        return stored[at:]


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its line feed. `raw` is None if it is longer than the limit; `torn` if it follows a gap and may be
    the end of a line whose beginning is lost."""

    number: int
    byte: int
    raw: bytes | None
    torn: bool = False


@dataclass(frozen=True, slots=True)
class LostLine:
    """A line with missing bytes, and what is left of it."""

    number: int
    byte: int
    reason: str
    rest: bytes


def lines_of(blocks: Iterable[bytes | Gap], limit: int) -> Iterator[Line | LostLine]:
    """Yield every line, numbered from 0, with the byte where it begins; at most one unfinished line is in memory.

    Lines of more than `limit` bytes have no content. After a gap, numbers and bytes continue from what is known.
    """
    number = byte = held = 0
    pieces: list[bytes] = []
    torn = False
    for block in blocks:
        if isinstance(block, Gap):
            yield LostLine(number, byte, block.reason, b"".join(pieces)[:1024])
            number, byte, held, pieces, torn = number + 1, byte + held, 0, [], True
            continue
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            size = held + end - begin
            if size > limit:
                raw = None
            elif pieces:
                pieces.append(block[begin:end])
                raw = b"".join(pieces)
            else:
                raw = block[begin:end]
            yield Line(number, byte, raw, torn)
            number, byte, held, torn = number + 1, byte + size + 1, 0, False
            pieces.clear()
            begin = end + 1
        held += len(block) - begin
        if held > limit:
            pieces.clear()
        elif begin < len(block):
            pieces.append(block[begin:])
    if held:
        yield Line(number, byte, b"".join(pieces) if held <= limit else None, torn)
