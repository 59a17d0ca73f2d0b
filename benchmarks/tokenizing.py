"""Tokenizing beside SentencePiece and tokenizers: the same text, the same vocabulary, the same threads, in one run.

    python benchmarks/tokenizing.py --data DATA [--json FILE] [--threads 1,2] [--vocabularies "BPE 32k,Unigram 16k"]

`make bench-tokens` does this. The tools take turns; each turn of ours begins with an empty cache. Rates are MB of UTF-8
a second of processor time, that of all threads together, the best turn of each. `ratio` is ours by the tool's. Both
forms of SentencePiece's batch encode are timed: lists of Python's integers, which its API gives by itself, and numpy
arrays, its fastest. The goal holds against the faster one: twice as fast, for Chinese 1.2 times. `ids` counts the
documents whose ids differ from SentencePiece's.
"""

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sentencepiece
import tokenizers
from measuring import OURS, arguments, processor, records, shown_rows, write_down

from tasks.tokenizer.encoder import Encoder
from tasks.vocab.candidates import train_candidates
from tasks.vocab.config import VocabConfig
from tasks.vocab.extenders import extend_to
from tasks.vocab.output import fast_tokenizer
from tasks.vocab.scripts import SCRIPTS
from tasks.vocab.train import train_sentencepiece

TEXTS = {
    "English": ("en_books", "en_wiki", "en_techdocs_md"),
    "Russian": ("ru_novels", "ru_techdocs"),
    "Italian": ("it_techdocs",),
    "code, Markdown": ("readme_changelog_md", "tldr_short_md"),
    "Chinese": ("zh_techdocs", "zh_classic_prose"),
}
GOALS = {language: 1.2 if language == "Chinese" else 2.0 for language in TEXTS}
"""How many times as fast as SentencePiece."""
MOST_BYTES = 16_000_000
TRAINING_BYTES = 1_500_000
"""Of each language, for the vocabularies that are made here."""
TURNS = 2
MARK = "\u2581"


@dataclass(frozen=True)
class Row:
    """One tool on one text."""

    vocabulary: str
    threads: int
    text: str
    megabytes: float
    tool: str
    rate: float
    """MB a second of processor time."""
    different: int
    """Documents whose ids are not those of SentencePiece."""
    goal: float | None = None
    """The ratio to reach, for SentencePiece's faster form."""


def texts_of(data: Path, corpora: tuple[str, ...], most_bytes: int) -> list[str]:
    """Return about `most_bytes` of documents, a share of each corpus, none with U+2581, where ours differs."""
    chosen: list[str] = []
    for corpus in corpora:
        room = most_bytes // len(corpora)
        for record in records(data, [corpus]):
            if room <= 0:
                break
            if MARK not in record["text"]:
                chosen.append(record["text"])
                room -= len(record["text"].encode())
    return chosen


def mistral(data: Path) -> bytes:
    """Read a released BPE base of 32,000 pieces, with a blank before texts."""
    return (data / "tokenizers" / "mistral_v1_32k.model").read_bytes()


def mistral_extended(data: Path) -> bytes:
    """Extend the same by 8,000 rows for Chinese and 4,000 for Russian."""
    model = mistral(data)
    for name, language, rows in (("zh", "Chinese", 8000), ("ru", "Russian", 4000)):
        texts = texts_of(data, TEXTS[language], 2 * TRAINING_BYTES)
        runs = [run for text in texts for run in SCRIPTS[name].runs(text)]
        donor = train_candidates(lambda runs=runs: runs, rows + 2000, 0.9995)
        model = extend_to(model, donor, SCRIPTS[name], rows, lambda runs=runs: runs).model
    return model


def unigram(data: Path) -> bytes:
    """Train a Unigram vocabulary of 16,000 pieces on all five kinds of text."""
    texts = [text for corpora in TEXTS.values() for text in texts_of(data, corpora, TRAINING_BYTES)]
    return train_sentencepiece(texts, VocabConfig(vocab_size=16_000, model_type="unigram"))


VOCABULARIES: dict[str, Callable[[Path], bytes]] = {
    "BPE 32k": mistral,
    "BPE 32k + 12k": mistral_extended,
    "Unigram 16k": unigram,
}


def compare(model: bytes, texts: list[str], threads: int) -> Iterator[tuple[str, float, int]]:
    """Yield (tool, seconds of its best turn, documents with other ids) of each tool."""
    column = pa.array(texts, pa.large_string())
    parts = _parts(column, threads)
    encoder = Encoder(model)
    peer = sentencepiece.SentencePieceProcessor(model_proto=model)
    library = tokenizers.Tokenizer.from_buffer(fast_tokenizer(model))
    library.encode_special_tokens = True
    first = column.slice(0, 1)
    encoder.encode(first)

    def ours() -> Iterator[np.ndarray]:
        encoder._idle.clear()
        if threads == 1:
            return _rows(encoder.encode(column))
        with ThreadPoolExecutor(threads) as pool:
            return (ids for encoded in list(pool.map(encoder.encode, parts)) for ids in _rows(encoded))

    tools: dict[str, Callable[[], Any]] = {
        OURS: ours,
        "sentencepiece, lists": lambda: peer.encode(texts, num_threads=threads),
        "sentencepiece, numpy": lambda: peer.encode(texts, num_threads=threads, return_type="numpy"),
        "tokenizers": lambda: library.encode_batch_fast(texts, add_special_tokens=False),
    }
    best = dict.fromkeys(tools, float("inf"))
    different: dict[str, int] = {}
    expected = peer.encode(texts, num_threads=threads, return_type="numpy")
    for turn in range(TURNS):
        for name, work in tools.items():
            began = time.process_time()
            found = work()
            best[name] = min(best[name], time.process_time() - began)
            if not turn:
                rows = (ids.ids for ids in found) if name == "tokenizers" else found
                same = [np.array_equal(ids, wanted) for ids, wanted in zip(rows, expected, strict=True)]
                different[name] = same.count(False)
            del found
    for name, seconds in best.items():
        yield name, seconds, different[name]


def _parts(column: pa.Array, threads: int) -> list[pa.Array]:
    """Return slices of about equal bytes, four a thread."""
    ends = np.cumsum([len(text.as_py().encode()) for text in column])
    borders = np.searchsorted(ends, np.linspace(0, ends[-1], 4 * threads + 1))
    borders[-1] = len(column)
    return [column.slice(first, last - first) for first, last in pairwise(borders.tolist())]


def _rows(encoded: Any) -> Iterator[np.ndarray]:
    return (encoded.ids[first:last] for first, last in pairwise(encoded.offsets.tolist()))


def measure(options: Namespace) -> Iterator[Row]:
    """Yield a row per vocabulary, text and tool, with the threads that this process was started for."""
    threads = int(options.threads)
    for vocabulary in options.vocabularies.split(","):
        model = (options.models / f"{vocabulary}.model").read_bytes()
        for language, corpora in TEXTS.items():
            texts = texts_of(options.data, corpora, MOST_BYTES)
            size = sum(len(text.encode()) for text in texts) / 1e6
            found = list(compare(model, texts, threads))
            peers = [seconds for tool, seconds, _ in found if tool.startswith("sentencepiece")]
            for tool, seconds, different in found:
                goal = GOALS[language] if seconds == min(peers) else None
                yield Row(vocabulary, threads, language, size, tool, size / seconds, different, goal)


def _line(row: Row, shown: Sequence[Row]) -> str:
    ours = next(
        other.rate
        for other in reversed(shown)
        if other.tool == OURS and (other.vocabulary, other.text) == (row.vocabulary, row.text)
    )
    ratio = "" if row.tool == OURS else f"{ours / row.rate:.1f}x"
    held = "" if row.goal is None else f"{row.goal:g} {'reached' if ours / row.rate >= row.goal else 'MISSED'}"
    return (
        f"{row.vocabulary:<15}{row.threads:>7}  {row.text:<15}{row.megabytes:>6.1f}  {row.tool:<22}{row.rate:>7.1f}"
        f"{ratio:>8}{row.different:>5}  {held}"
    )


def main() -> None:
    """Make the vocabularies, then measure in a process of its own for each number of threads."""
    parser = arguments(__doc__)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, with commas between")
    parser.add_argument("--vocabularies", default=",".join(VOCABULARIES), help="which, with commas between")
    parser.add_argument("--models", type=Path, default=Path(".peers") / "vocabularies", help="folder that keeps them")
    options = parser.parse_args()
    if "," not in options.threads and "RAYON_NUM_THREADS" in os.environ:
        rows = shown_rows(measure(options), _line)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(row) for row in rows]))
        return
    options.models.mkdir(parents=True, exist_ok=True)
    for name in options.vocabularies.split(","):
        target = options.models / f"{name}.model"
        if not target.exists():
            target.write_bytes(VOCABULARIES[name](options.data))
    print(f"{processor()}; load {os.getloadavg()[0]:.1f} at the start")
    print(
        f"{'vocabulary':<15}{'threads':>7}  {'text':<15}{'MB':>6}  {'tool':<22}{'MB/s':>7}{'ratio':>8}{'ids':>5}  goal"
    )
    gathered: list[dict[str, Any]] = []
    written = options.models / "rows.json"
    for threads in options.threads.split(","):
        # The threads of `tokenizers` are counted once, when it begins.
        environment = {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": str(threads != "1").lower()}
        words = [sys.executable, __file__, *sys.argv[1:], "--threads", threads, "--json", str(written)]
        subprocess.run(words, check=True, env={**os.environ, **environment})
        gathered += json.loads(written.read_text())
    write_down(gathered, options.json)


if __name__ == "__main__":
    main()
