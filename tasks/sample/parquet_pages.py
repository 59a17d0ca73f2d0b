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
    if begin < 0:
        raise DamagedHeader(f"no page header at byte {begin}")
    while begin < end:
        fields, length = _header(stream, begin)
        kind = next((kind for kind in (_DATA, _DATA_V2, _DICTIONARY) if kind in fields), None)
        of_kind = fields[kind] if kind is not None else {_VALUES: 0}
        values = of_kind.get(_VALUES) if isinstance(of_kind, dict) else None
        stored = _size(fields.get(_STORED), begin)
        yield Page(_size(fields.get(_UNPACKED), begin), _size(values, begin), kind == _DICTIONARY)
        begin += length + stored


def _size(value: Any, begin: int) -> int:
    if type(value) is not int or value < 0:  # A boolean is an int, too.
        raise DamagedHeader(f"no page header at byte {begin}")
    return value


def _header(stream: BinaryIO, begin: int) -> tuple[dict[int, Any], int]:
    """The fields of the header at `begin`, and its length in bytes."""
    size = _HEADER_BYTES
    while True:
        stream.seek(begin, os.SEEK_SET)
        raw = stream.read(size)
        compact = _Compact(raw)
        try:
            return compact.struct(), compact.at
        except _NotCompact as error:
            raise DamagedHeader(f"no page header at byte {begin}") from error
        except (IndexError, RecursionError) as error:
            if len(raw) < size or size >= _LONGEST_HEADER:
                raise DamagedHeader(f"no page header at byte {begin}") from error
            size *= 8


class _NotCompact(ValueError):
    """No bytes behind these make a structure of them."""


class _Compact:
    """Thrift's compact protocol; IndexError where the bytes end too early, _NotCompact where they are none of it."""

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
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise _NotCompact("a number of more than 64 bits")

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
            # In a list a boolean is a byte of its own: a count without elements must not be believed.
            element = 3 if head & 15 in (1, 2) else head & 15
            return [self._value(element) for _ in range(head >> 4 if head >> 4 < 15 else self._varint())]
        if kind == 12:
            return self.struct()
        raise _NotCompact(f"no kind {kind}")  # Headers hold no maps.

    def _pass_over(self, size: int) -> None:
        self.at += size
        if self.at > len(self._raw):
            raise IndexError(size)
