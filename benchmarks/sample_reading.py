"""From zstd jsonl to Arrow parts, beside datatrove's reader and writer, on the same text in one run.

    python benchmarks/sample_reading.py --data DATA [--peers FOLDER] [--json FILE]

Seven corpora in random order, repeated to 150 MB of JSON lines; rates count the bytes of these lines. datatrove writes
Parquet; without its environment in FOLDER (`peers/install.sh` makes it) only Bessemer is measured.
"""

import gzip
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zstandard
from measuring import OURS, Row, arguments, compare, show, sides

CORPORA = ("en_books", "en_techdocs_md", "ru_novels", "zh_techdocs", "en_wiki", "readme_changelog_md", "it_techdocs")
SIZE = 150_000_000
TARGET = 80
TURNS = 3


def measure(data: Path, peers: Path | None) -> Iterator[Row]:
    """Yield a row per tool."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "texts.jsonl.zst"
        size, documents = write_lines(source, data)
        words: dict[str, tuple[object, ...]] = dict.fromkeys((OURS, "datatrove"), (source, scratch, size, documents))
        text = f"{len(CORPORA)} corpora, zstd jsonl"
        yield from compare("sample", text, sides("read.py", words, peers), TURNS, TARGET)


def write_lines(target: Path, data: Path) -> tuple[int, int]:
    """Write zstd jsonl of real documents in random order, each time with another id; return (bytes, documents)."""
    packed = [(data / name / "part-000.jsonl.gz").read_bytes() for name in CORPORA]
    lines = [line for raw in packed for line in gzip.decompress(raw).splitlines(keepends=True)]
    random.Random(0).shuffle(lines)
    written = documents = 0
    with target.open("wb") as sink, zstandard.ZstdCompressor(level=3).stream_writer(sink) as writer:
        while written < SIZE:
            line = lines[documents % len(lines)]
            edited = line.replace(b'{"id": "', b'{"id": "%d-' % documents, 1)
            writer.write(edited)
            written += len(edited)
            documents += 1
    return written, documents


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    show(measure(options.data, options.peers), options.json)
