"""Bytes of a file in blocks of bounded size, decompressed; what stands before a damaged spot is delivered.

Decompression goes block by block and not through a reader object: those either lose what they had already unpacked
when the stream breaks (pyarrow), or take a torn stream for its end (zstandard's stream_reader).
"""

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import zstandard

BLOCK_BYTES = 1 << 20
_ZSTD_INPUT_BYTES = 1 << 13  # zstd may unpack 4 bytes into 128 KiB; small inputs keep the worst case in memory


class DamagedStream(Exception):
    """A compressed stream that ends early or holds wrong bytes; raised after all good blocks were given out."""


def byte_blocks(stream: BinaryIO, compression: str | None, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    """Blocks of `stream` after decompression (`gzip`, `zstd` or None); `on_bytes` hears the stored bytes consumed.

    Raises DamagedStream where a compressed stream is broken.
    """
    if compression == "gzip":
        yield from _gzip_blocks(stream, on_bytes)
    elif compression == "zstd":
        yield from _zstd_blocks(stream, on_bytes)
    else:
        yield from _stored_blocks(stream, BLOCK_BYTES, on_bytes)


def _stored_blocks(stream: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    while block := stream.read(size):
        on_bytes(len(block))
        yield block


def _gzip_blocks(stream: BinaryIO, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    member = None
    for stored in _stored_blocks(stream, BLOCK_BYTES, on_bytes):
        waiting = stored
        while waiting:
            if member is None:
                waiting = waiting.lstrip(b"\0")  # gzip itself pads with zeros between members and passes over them.
                if not waiting:
                    break
                member = zlib.decompressobj(wbits=31)
            before = member.copy()
            try:
                block = member.decompress(waiting, BLOCK_BYTES)
            except zlib.error as error:
                yield from _good_bytes(before, waiting)
                raise DamagedStream(f"damaged gzip data: {error}") from error
            if block:
                yield block
            waiting = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member = None
    if member is not None:
        if rest := member.flush():
            yield rest
        raise DamagedStream("gzip stream ends early")


def _good_bytes(member: "zlib._Decompress", stored: bytes) -> Iterator[bytes]:
    """What `stored` gives up to its damaged byte: zlib drops the output of the call that meets it."""
    for position in range(len(stored)):
        try:
            block = member.decompress(stored[position : position + 1])
        except zlib.error:
            return
        if block:
            yield block


def _zstd_blocks(stream: BinaryIO, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor()
    frame = None
    for stored in _stored_blocks(stream, _ZSTD_INPUT_BYTES, on_bytes):
        waiting = stored
        while waiting:
            frame = frame or decompressor.decompressobj()
            try:
                block = frame.decompress(waiting)
            except zstandard.ZstdError as error:
                raise DamagedStream(f"damaged zstd data: {error}") from error
            if block:
                yield block
            waiting = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = None
    if frame is not None:
        raise DamagedStream("zstd stream ends early")
