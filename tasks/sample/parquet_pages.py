"""What the pages of a parquet file unpack to, read from their headers alone.

A page is unpacked whole, and a writer that ends pages after a number of rows makes one of gigabytes from long texts.
Page headers are Thrift structures in its compact protocol (parquet-format, src/main/thrift/parquet.thrift).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

_HEADER_BYTES = 1 << 13
_LONGEST_HEADER = 1 << 24
_UNPACKED, _STORED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8
_VALUES = 1


class DamagedHeader(ValueError):
    """Bytes that are no page header."""


@dataclass(frozen=True, slots=True)
class Page:
    """`unpacked` bytes of `values` values; those of a dictionary may each stand in any number of rows."""

    unpacked: int
    values: int
    is_dictionary: bool


def pages(stream: BinaryIO, begin: int, end: int) -> Iterator[Page]:
    """The pages of the column chunk at bytes `begin` to `end`; raises DamagedHeader."""
    while begin < end:
        fields, length = _header(stream, begin)
        kind = next((kind for kind in (_DATA, _DATA_V2, _DICTIONARY) if kind in fields), None)
        values = fields[kind].get(_VALUES, 0) if kind is not None else 0
        stored = fields.get(_STORED, -1)
        if not isinstance(stored, int) or stored < 0:
            raise DamagedHeader(f"no page header at byte {begin}")
        yield Page(fields.get(_UNPACKED, 0), values, kind == _DICTIONARY)
        begin += length + stored


def _header(stream: BinaryIO, begin: int) -> tuple[dict[int, Any], int]:
    """The fields of the header at `begin`, and its length in bytes."""
    size = _HEADER_BYTES
    while True:
        stream.seek(begin, os.SEEK_SET)
        raw = stream.read(size)
        compact = _Compact(raw)
        try:
            return compact.struct(), compact.at
        except (IndexError, RecursionError) as error:
            if len(raw) < size or size >= _LONGEST_HEADER:
                raise DamagedHeader(f"no page header at byte {begin}") from error
            size *= 8


class _Compact:
    """Thrift's compact protocol; IndexError where the bytes end too early."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self.at = raw, 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            fields[number] = self._value(head & 15)
        return fields

    def _byte(self) -> int:
        self.at += 1
        return self._raw[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value, shift = value | (byte & 127) << shift, shift + 7
        return value | byte << shift

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind in (3, 7):
            return self._pass_over(1 if kind == 3 else 8)
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 8:
            return self._pass_over(self._varint())
        if kind in (9, 10):
            head = self._byte()
            return [self._value(head & 15) for _ in range(head >> 4 if head >> 4 < 15 else self._varint())]
        if kind == 12:
            return self.struct()
        raise IndexError(f"no kind {kind}")  # A map stands in no header.

    def _pass_over(self, size: int) -> None:
        self.at += size
        if self.at > len(self._raw):
            raise IndexError(size)
