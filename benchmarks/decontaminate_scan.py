"""How fast documents are scanned for benchmark n-grams, per core, and how much memory the table takes.

    python benchmarks/decontaminate_scan.py --data DATA [--ngrams 1000000 20000000] [--repeats 5] [--json]

DATA holds the corpora `NAME/part-000.jsonl.gz` and `benchmarks/*.jsonl.gz`. Two tables: n-grams of random words of the
corpus, so many as asked for, on English text; and the real benchmarks, on text of each language. Beside each stands
the word hashing alone, which no table can undercut, and a scan by numpy with a sorted array (13 shifted sums of the
same word hashes, `searchsorted`). Speeds are MB of UTF-8 a second of CPU time of one thread, the fastest of the
repeats; the sides take turns, so that a busy machine is busy for all.
"""

import argparse
import gzip
import itertools
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tasks.decontaminate.config import Benchmark, DecontaminateConfig  # noqa: E402
from tasks.decontaminate.items import Item, read_items  # noqa: E402
from tasks.decontaminate.patterns import BASE, Patterns, build_patterns  # noqa: E402
from tasks.decontaminate.scan import scan_texts, text_buffers  # noqa: E402
from tasks.decontaminate.words import fold_table, hash_words, word_room  # noqa: E402

ENGLISH = ("en_books", "en_techdocs_md", "en_wiki", "en_speech_drama")
TEXTS = {
    "English": ENGLISH,
    "Russian": ("ru_novels", "ru_techdocs"),
    "Italian": ("it_techdocs",),
    "Chinese": ("zh_techdocs", "zh_classic_prose"),
    "chat": ("social_emoji",),
}
ITEM_WORDS = 1000

Buffers = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ngrams", type=int, nargs="*", default=[1_000_000, 20_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    paths = sorted((options.data / "benchmarks").glob("*.jsonl.gz"))
    benchmarks = tuple(Benchmark(name=path.name.partition(".")[0], path=path) for path in paths)
    patterns = build_patterns(read_items(benchmarks), DecontaminateConfig())
    for language, names in TEXTS.items():
        rows.append(measured(f"{len(paths)} benchmarks", language, corpus(options.data, names), patterns, options))
    english = corpus(options.data, ENGLISH)
    for count in options.ngrams:
        began = time.process_time()
        patterns = build_patterns(made_items(english, count), DecontaminateConfig())
        built = time.process_time() - began
        row = measured("made n-grams", "English", english, patterns, options)
        rows.append({**row, "build_s": built, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6})
    if options.json:
        json.dump(rows, sys.stdout, indent=1)
        return
    for row in rows:
        more = f"; table built in {row['build_s']:.0f} s, peak {row['peak_gb']:.1f} GB" if "build_s" in row else ""
        numpy_told = f"{row['numpy']:6.1f}" if row["numpy"] else "     -"
        print(
            f"{row['table']:<14} {row['ngrams']:>10,} n-grams  {row['text']:<8} scan {row['scan']:6.1f} MB/s,"
            f" words alone {row['words']:6.1f}, numpy {numpy_told}{more}"
        )


def corpus(data: Path, names: tuple[str, ...]) -> Buffers:
    texts: list[str] = []
    for name in names:
        with gzip.open(data / name / "part-000.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    return text_buffers(pa.array(texts, pa.large_string()))


def made_items(text: Buffers, count: int) -> list[Item]:
    """Items of random words of the corpus with `count` 13-grams altogether."""
    words = sorted({word for word in text[0][:4_000_000].tobytes().decode(errors="ignore").split() if word.isalpha()})
    draw = np.random.default_rng(0)
    texts = (
        " ".join(words[at] for at in draw.integers(0, len(words), ITEM_WORDS + 12)) for _ in range(count // ITEM_WORDS)
    )
    return [Item("made", str(number), None, "", (), "x", text) for number, text in enumerate(texts)]


def measured(
    table: str, text: str, buffers: Buffers, patterns: Patterns, options: argparse.Namespace
) -> dict[str, Any]:
    data, offsets = buffers
    sides: dict[str, Callable[[], object]] = {
        "scan": lambda: scan_texts(data, offsets, patterns),
        "words": lambda: words_alone(data, offsets),
    }
    if not patterns.short.any():
        found = all_words(data, offsets)
        wanted = np.sort(patterns.hashes)
        sides["numpy"] = lambda: numpy_scan(found, wanted)
    seconds: dict[str, float] = {}
    for side in sides.values():
        side()
    for _ in range(options.repeats):
        for name, side in sides.items():
            began = time.process_time()
            side()
            seconds[name] = min(seconds.get(name, float("inf")), time.process_time() - began)
    if "numpy" in seconds:
        seconds["numpy"] += seconds["words"]
    speeds = {name: data.size / 1e6 / seconds[name] if name in seconds else None for name in ("scan", "words", "numpy")}
    return {"table": table, "ngrams": len(patterns), "text": text, "mb": data.size / 1e6, **speeds}


def words_alone(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> int:
    room, table = word_room(int(np.diff(offsets).max())), fold_table()
    buffers = np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64)
    return count_words(data, offsets, table.entries, table.pool, *buffers)


@numba.njit
def count_words(data, offsets, entries, pool, hashes, starts, ends):
    words = 0
    for row in range(offsets.size - 1):
        words += hash_words(data, offsets[row], offsets[row + 1], entries, pool, hashes, starts, ends)[0]
    return words


def all_words(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> list[npt.NDArray[np.uint64]]:
    room, table = word_room(int(np.diff(offsets).max())), fold_table()
    hashes, starts, ends = np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64)
    found = []
    for begin, end in itertools.pairwise(offsets.tolist()):
        count, _ = hash_words(data, begin, end, table.entries, table.pool, hashes, starts, ends)
        found.append(hashes[:count].copy())
    return found


def numpy_scan(documents: list[npt.NDArray[np.uint64]], wanted: npt.NDArray[np.uint64], width: int = 13) -> int:
    """The same 13-gram hashes from word hashes by 13 shifted sums, looked up in a sorted array."""
    found = 0
    for words in documents:
        count = words.size - width + 1
        if count <= 0:
            continue
        rolling = np.zeros(count, np.uint64)
        for shift in range(width):
            rolling = rolling * BASE + words[shift : shift + count]
        place = np.searchsorted(wanted, rolling)
        found += int((wanted[np.minimum(place, wanted.size - 1)] == rolling).sum())
    return found


if __name__ == "__main__":
    main()
