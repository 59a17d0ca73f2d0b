"""The beginning of a file as readable bytes, without reading the rest."""

import io
from dataclasses import dataclass
from pathlib import Path

from tasks.sample.byte_blocks import DamagedStream, byte_blocks

LOOK_BYTES = 256 * 1024
"""Stored bytes that are read of a file at most."""


@dataclass(frozen=True)
class Look:
    """What stands at the beginning of a file, decompressed."""

    raw: bytes
    stored: int
    """Stored bytes that `raw` came from."""
    whole: bool
    """Whether that was all of the file."""
    damage: str = ""
    """What is wrong with the compressed stream, where something is."""


def look_at(path: Path, compression: str | None, limit: int = LOOK_BYTES) -> Look:
    """The first `limit` stored bytes of a file; raises OSError where it cannot be read."""
    with path.open("rb") as stream:
        stored = stream.read(limit)
        whole = not stream.read(1)
    raw = bytearray()
    damage = ""
    try:
        for block in byte_blocks(io.BytesIO(stored), compression, lambda count: None):
            raw += block
    except DamagedStream as error:
        # A stream that was cut here ends early, of course; any other damage is the file's.
        damage = str(error) if whole or "ends early" not in str(error) else ""
    return Look(bytes(raw), len(stored), whole, damage)


def spread(count: int, most: int) -> list[int]:
    """At most `most` indexes of `count`, evenly spread, the first among them."""
    if count <= most:
        return list(range(count))
    return sorted({index * count // most for index in range(most)})
