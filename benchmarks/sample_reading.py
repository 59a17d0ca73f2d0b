"""From zstd jsonl to Arrow parts, beside datatrove's reader and writer, on the same text in one run.

    python benchmarks/sample_reading.py --data DATA [--peers FOLDER] [--megabytes 150]

DATA holds the corpora named below. FOLDER holds the peer's virtual environment `datatrove/` (datatrove[io] 0.10);
without it only Bessemer is measured. Each tool runs in a process of its own on one core, tools taking turns; rates are
per second of processor time, of three turns the best.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import zstandard

CORPORA = ("en_books", "en_techdocs_md", "ru_novels", "zh_techdocs", "en_wiki", "readme_changelog_md", "it_techdocs")
TURNS = 3
PROJECT = Path(__file__).parents[1]

BESSEMER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tasks.sample.sampling import sample_documents
from tasks.workspace import Workspace
config = SampleConfig(sources=(Source(name="s", paths=(sys.argv[1],), weight=1),), budget_tokens=10**12)
listings = find_files(config)
used = time.process_time()
report = sample_documents(listings, config, Workspace(Path(sys.argv[2])))
print(time.process_time() - used, report.total().documents_out)
"""
DATATROVE = """
import sys, time
from pathlib import Path
from loguru import logger
logger.remove()
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import ParquetWriter
source = Path(sys.argv[1])
used = time.process_time()
reader = JsonlReader(str(source.parent), glob_pattern=source.name, compression="zstd")
writer = ParquetWriter(sys.argv[2], compression="zstd")
def without_metadata(documents):
    for document in documents:
        document.metadata = {}  # The writer takes its columns from the first batch, and later ones have others.
        yield document
count = sum(1 for _ in writer.run(without_metadata(reader.run())))
print(time.process_time() - used, count)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the corpora")
    parser.add_argument("--peers", type=Path, help="folder of the peers' virtual environments")
    parser.add_argument("--megabytes", type=float, default=150, help="text to read, by repetition")
    options = parser.parse_args()
    tools = {"bessemer": (Path(sys.executable), BESSEMER)}
    if options.peers is not None:
        tools["datatrove"] = (options.peers / "datatrove" / "bin" / "python", DATATROVE)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "a.jsonl.zst"
        size, documents = write_text(source, options.data, options.megabytes * 1e6)
        seconds = {tool: [] for tool in tools}
        for turn in range(TURNS):
            for tool, (python, program) in tools.items():
                seconds[tool].append(run(python, program, source, Path(folder) / f"{tool}{turn}", documents))
    best = {tool: size / 1e6 / min(times) for tool, times in seconds.items()}
    print(f"{size / 1e6:.0f} MB, {documents:,} documents of {', '.join(CORPORA)}; load {os.getloadavg()[0]:.1f}")
    for tool, rate in best.items():
        print(f"{tool:10} {rate:8.1f} MB/s per core   {best['bessemer'] / rate:5.2f} x slower than bessemer")


def write_text(path: Path, data: Path, size: float) -> tuple[int, int]:
    """zstd jsonl of real documents in random order; (bytes, documents)."""
    packed = [(data / name / "part-000.jsonl.gz").read_bytes() for name in CORPORA]
    lines = [line for raw in packed for line in gzip.decompress(raw).splitlines(keepends=True)]
    random.Random(0).shuffle(lines)
    written = documents = 0
    with path.open("wb") as sink, zstandard.ZstdCompressor(level=3).stream_writer(sink) as writer:
        while written < size:
            line = lines[documents % len(lines)]
            edited = line.replace(b'{"id": "', b'{"id": "%d-' % documents, 1)
            writer.write(edited)
            written += len(edited)
            documents += 1
    return written, documents


def run(python: Path, program: str, source: Path, folder: Path, documents: int) -> float:
    """Processor seconds of one turn."""
    folder.mkdir()
    core = os.sched_getaffinity(0).pop()
    command = ["taskset", "-c", str(core), str(python), "-c", program, str(source), str(folder), str(PROJECT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr[-3000:]}")
    used, count = done.stdout.split()[-2:]
    assert int(count) == documents, json.dumps({"wanted": documents, "found": count})
    return float(used)


if __name__ == "__main__":
    main()
