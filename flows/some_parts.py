"""Which of many parts the page looks into: it shows examples, and opens no more than a few files for them."""

from collections.abc import Iterator
from pathlib import Path

MOST_PARTS = 8


def some_parts(files: list[Path]) -> Iterator[tuple[int, Path]]:
    """At most MOST_PARTS of the files, evenly spread, with their index."""
    step = max(1, -(-len(files) // MOST_PARTS))
    yield from ((index, files[index]) for index in range(0, len(files), step))
