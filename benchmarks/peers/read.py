"""Reads INPUT.jsonl.zst into a new folder in SCRATCH with one tool, in that tool's own environment.

    python read.py TOOL INPUT.jsonl.zst SCRATCH BYTES DOCUMENTS

BYTES and DOCUMENTS are what the file holds; finding other documents is an error.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import print_rate


def bessemer(source: Path, folder: Path) -> Callable[[], int]:
    from tasks.artifacts.workspace import Workspace
    from tasks.execution.executor import ThisProcess
    from tasks.sample.config import SampleConfig, Source
    from tasks.sample.discovery import find_files
    from tasks.sample.sampler import sample_documents

    described = Source(name="text", paths=(str(source),), weight=1)
    config = SampleConfig(sources=(described,), budget_tokens=10**12)
    listings = find_files(config)
    return lambda: sample_documents(listings, config, Workspace(folder), ThisProcess()).total().documents_out


def datatrove(source: Path, folder: Path) -> Callable[[], int]:
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import ParquetWriter
    from loguru import logger

    def without_metadata(documents):
        for document in documents:
            document.metadata = {}  # The writer takes its columns from the first batch, and later ones have others.
            yield document

    logger.remove()
    reader = JsonlReader(str(source.parent), glob_pattern=source.name, compression="zstd")
    writer = ParquetWriter(str(folder), compression="zstd")
    return lambda: sum(1 for _ in writer.run(without_metadata(reader.run())))


TOOLS = {"bessemer": bessemer, "datatrove": datatrove}


def main(tool: str, source: str, scratch: str, size: str, documents: str) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        read = TOOLS[tool](Path(source), Path(folder))
        began = time.process_time()
        found = read()
        seconds = time.process_time() - began
    if found != int(documents):
        raise SystemExit(f"{tool} read {found} documents of {documents}")
    print_rate(seconds, int(size))


main(*sys.argv[1:])
