"""Memory and time of clustering synthetic signatures, growing, and what 100 million documents would take.

    python benchmarks/dedup_scale.py [--sizes 1.25M,2.5M,5M,10M] [--scratch FOLDER]

Documents are rows of 112 random values; three of ten are copies of another document with a true Jaccard similarity
spread evenly over .7 to 1 (a value of the signature agrees with that chance), verified on sets of 24 shingles. What is
clustered are the files that signing leaves on disk (448 bytes a document and more), by the code that a run uses, each
size in a process of its own. `memory` is the peak of memory that belongs to the process; pages of mapped files, which
the system gives back when it needs them, are counted apart.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numba
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flows.recipe.counts import parse_count  # noqa: E402

ROWS_A_PART = 250_000
LENGTH = 112
SET_SIZE = 24
BYTES_A_DOCUMENT = 4 * LENGTH + 32 + 8 * SET_SIZE
"""Signature, id, digest and, at most, shingles."""

COPIES = 0.3
TARGET = 100_000_000
LIMIT_GB = 16.0


@numba.njit(cache=False)
def _hash(first, second):
    value = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(second) * np.uint64(0xD1342543DE82EF95)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=False)
def _share(value):
    return np.float64(value >> np.uint64(11)) / np.float64(1 << 53)


@numba.njit(cache=False)
def _original(row):
    """Return the document that a row is a copy of, or itself, and its similarity to it."""
    if row > 0 and _share(_hash(row, 1)) < COPIES:
        return np.int64(_hash(row, 2) % np.uint64(row)), 0.7 + 0.3 * _share(_hash(row, 3))
    return np.int64(row), 1.0


@numba.njit(cache=False)
def _signatures(begin, out):
    for index in range(out.shape[0]):
        row = begin + index
        original, similarity = _original(row)
        for column in range(out.shape[1]):
            agrees = _share(_hash(row, 1000 + column)) < similarity
            out[index, column] = np.uint32(_hash(original if agrees else row, 2000 + column))


@numba.njit(cache=False)
def _sets(rows, out):
    for index in range(rows.size):
        original, similarity = _original(rows[index])
        common = round(out.shape[1] * 2 * similarity / (1 + similarity))
        for number in range(out.shape[1]):
            out[index, number] = _hash(original if number < common else rows[index], 5000 + number)


def write_files(count: int, scratch: Path) -> None:
    """Write what signing would have left: signatures by part, ids and digests."""
    for begin in range(0, count, ROWS_A_PART):
        rows = np.empty((min(ROWS_A_PART, count - begin), LENGTH), np.uint32)
        _signatures(begin, rows)
        np.save(scratch / f"{begin:012d}.npy", np.asfortranarray(rows))
    generator = np.random.default_rng(1)
    for name in ("doc_ids", "digests"):
        with (scratch / f"{name}.u8").open("wb") as stream:
            for begin in range(0, count, ROWS_A_PART):
                stream.write(generator.bytes(16 * min(ROWS_A_PART, count - begin)))


def cluster(count: int, scratch: Path) -> dict[str, float]:
    """Decide the outcomes of `count` documents, and watch the memory of this process."""
    from tasks.dedup import near_duplicates
    from tasks.dedup.config import DedupConfig
    from tasks.dedup.corpus import Corpus, CurrentPart

    files = sorted(scratch.glob("*.npy"))
    signatures = [np.load(path, mmap_mode="r") for path in files]
    corpus = Corpus(
        parts=[CurrentPart(scratch, file.name, ()) for file in files],
        first_row=np.cumsum([0, *(part.shape[0] for part in signatures)]),
        doc_ids=np.memmap(scratch / "doc_ids.u8", np.uint8, mode="r", shape=(count, 16)),
        digests=np.memmap(scratch / "digests.u8", np.uint8, mode="r", shape=(count, 16)),
        sizes=np.random.default_rng(2).integers(400, 20_000, count),
        sources=np.zeros(count, np.int32),
        source_names=["synthetic"],
        signatures=signatures,
    )

    def synthetic_sets(corpus, rows, config, path):
        with path.open("wb") as stream:
            for begin in range(0, rows.size, ROWS_A_PART):
                block = np.empty((rows[begin : begin + ROWS_A_PART].size, SET_SIZE), np.uint64)
                _sets(rows[begin : begin + ROWS_A_PART], block)
                block.sort(axis=1)
                stream.write(block.data)
        flat = np.asarray(np.memmap(path, np.uint64, mode="r"))
        return flat, np.arange(rows.size + 1, dtype=np.int64) * SET_SIZE

    peak = {"RssAnon": 0, "RssFile": 0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in peak:
                    peak[name] = max(peak[name], int(value.split()[0]) * 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    near_duplicates.write_shingle_sets = synthetic_sets
    decisions = near_duplicates.find_duplicates(corpus, DedupConfig(threads=1), scratch)
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    removed = int((decisions.representative >= 0).sum())
    return {"seconds": seconds, "memory": peak["RssAnon"], "mapped": peak["RssFile"], "removed": removed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1.25M,2.5M,5M,10M")
    parser.add_argument("--scratch", type=Path, help="where up to 672 bytes a document are written")
    parser.add_argument("--cluster", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cluster:
        print(json.dumps(cluster(arguments.cluster, arguments.scratch)))
        return
    sizes = [int(parse_count(word, "--sizes")) for word in arguments.sizes.split(",")]
    free = shutil.disk_usage(arguments.scratch or tempfile.gettempdir()).free
    if max(sizes) * BYTES_A_DOCUMENT > free:
        raise SystemExit(
            f"{max(sizes):,} documents take {max(sizes) * BYTES_A_DOCUMENT:,} bytes, and {free:,} are free"
        )
    print(f"{'documents':>12}{'removed':>11}{'seconds':>9}{'memory':>10}{'a document':>12}{'mapped':>10}")
    rows = []
    for size in sizes:
        scratch = Path(tempfile.mkdtemp(dir=arguments.scratch))
        try:
            write_files(size, scratch)
            words = [sys.executable, __file__, "--cluster", str(size), "--scratch", str(scratch)]
            row = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        finally:
            shutil.rmtree(scratch)
        rows.append(row)
        print(
            f"{size:>12,}{row['removed']:>11,}{row['seconds']:>9.1f}{row['memory'] / 1e9:>7.2f} GB"
            f"{row['memory'] / size:>10.1f} B{row['mapped'] / 1e9:>7.2f} GB",
            flush=True,
        )
    slope, base = np.polyfit(sizes, [row["memory"] for row in rows], 1)
    growth = np.polyfit(np.log(sizes), np.log([row["seconds"] for row in rows]), 1)[0]
    memory = (base + slope * TARGET) / 1e9
    minutes = rows[-1]["seconds"] / 60 * (TARGET / sizes[-1]) ** max(1.0, growth)
    verdict = "fits" if memory <= LIMIT_GB else "does not fit"
    print(f"memory = {base / 1e6:.0f} MB + {slope:.1f} bytes a document, time grows as N^{growth:.2f}")
    print(
        f"{TARGET:,} documents would take {memory:.1f} GB ({verdict} in {LIMIT_GB:.0f} GB) and {minutes:.0f} minutes on"
        " one core, if reading the files is no slower"
    )


if __name__ == "__main__":
    main()
