"""Padding, cut documents and speed of the ways to fill rows, on real text with one vocabulary in one run.

    python benchmarks/packing.py --data DATA [--vocabulary FILE] [--json FILE]

`concat` cuts where a row ends, `first_fit` lays documents in their order into the first row that holds them, `best_fit`
the longest first into the row with the least room, `pairs` lays sentences out for BERT. `cut` is the share of the
documents that would fit in a row and are in two; rates are MB of tokens (two bytes each) and rows per second of one
core's processor time, spans included. Without a vocabulary, DATA's `tokenizers/mistral_v1_32k.model` is taken.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
from measuring import arguments, fastest, processor, records, shown_rows, write_down

from tasks.chunk.packing import PackedRows, best_fit_rows, concat_rows
from tasks.chunk.sentence_pairs import PairFormat, PairPacker
from tasks.chunk.tokenize import Block, TokenBytes
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import tokenizer_of

CORPORA = (
    "en_books",
    "en_wiki",
    "en_techdocs_md",
    "ru_novels",
    "ru_techdocs",
    "it_techdocs",
    "zh_techdocs",
    "zh_classic_prose",
    "zh_poetry",
    "tldr_short_md",
    "social_emoji",
)
LENGTHS = (257, 1025, 2049)
PAIR_LENGTHS = (128, 512)
MOST_PADDING = 0.003
ROUNDS = 3
PAD, CLS, SEP = 3, 4, 5
"""Ids of special tokens here; nothing is trained on these rows."""


@dataclass(frozen=True)
class Filled:
    """One way to fill rows with one corpus."""

    corpus: str
    row_length: int
    way: str
    rows: int
    padding: float
    cut: float
    megabytes_s: float | None = None
    rows_s: float | None = None
    labels: dict[str, int] | None = None


def measure(data: Path, tokenizer: Tokenizer) -> Iterator[Filled]:
    """Yield the figures of every corpus, row length and way."""
    token_bytes = TokenBytes.of(tokenizer)
    for corpus in CORPORA:
        block = _block(tokenizer, [record["text"] for record in records(data, [corpus])])
        for length in LENGTHS:
            yield _told(corpus, length, "concat", block, partial(concat_rows, [block], length, token_bytes, PAD, 0))
            rows, padding = _first_fit(block.lengths + 1, length)
            yield Filled(corpus, length, "first_fit", rows, padding, 0.0)
            yield _told(corpus, length, "best_fit", block, partial(best_fit_rows, [block], length, token_bytes, PAD, 0))
        for length in PAIR_LENGTHS:
            layout = PairFormat(length, CLS, SEP, PAD, 0.1)
            packer = PairPacker(layout, token_bytes, 0, 1)
            yield _told(corpus, length, "pairs", block, partial(packer.rows, [block]), packer)


def _told(
    corpus: str,
    length: int,
    way: str,
    block: Block,
    fill: Callable[[], Iterable[PackedRows]],
    packer: PairPacker | None = None,
) -> Filled:
    packed = list(fill())
    labels = dict(sorted(packer.labels.items())) if packer is not None else None
    rows = sum(len(one.rows) for one in packed)
    real = sum(int(one.real.sum()) for one in packed)
    spans = pa.concat_tables([one.spans for one in packed])
    names = spans.column("doc_id").combine_chunks().dictionary_encode().indices.to_numpy()
    stretches = np.bincount(names, minlength=1)
    fitting = np.bincount(names, weights=spans.column("tok_len").to_numpy(), minlength=1) < length
    cut = float(((stretches > 1) & fitting).sum() / max(1, len(block)))
    seconds = fastest(lambda: [None for _ in fill()], ROUNDS)
    size = block.tokens.nbytes / 1e6
    return Filled(corpus, length, way, rows, 1 - real / (rows * length), cut, size / seconds, rows / seconds, labels)


def _block(tokenizer: Tokenizer, texts: list[str]) -> Block:
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    ids = [np.append(one, tokenizer.eos).astype(dtype) for one in tokenizer.encode_batch(texts)]
    return Block(
        tokens=np.concatenate(ids),
        lengths=np.array([len(one) - 1 for one in ids], dtype=np.int64),
        text_bytes=np.array([len(text.encode()) for text in texts], dtype=np.int64),
        doc_ids=pa.array([number.to_bytes(16, "big") for number in range(len(texts))], pa.binary(16)),
        pieces=pa.array(np.zeros(len(texts), dtype=np.int16)),
        texts=pa.array(texts, pa.large_string()),
    )


def _first_fit(lengths: np.ndarray, row_length: int) -> tuple[int, float]:
    """Return rows and share of padding of documents in their order, each rest in the first row that has room."""
    rows = int((lengths // row_length).sum()) + _bins_of_first_fit(lengths % row_length, row_length)
    return rows, 1 - int(lengths.sum()) / (rows * row_length)


@numba.njit
def _bins_of_first_fit(lengths: np.ndarray, capacity: int) -> int:
    room = np.empty(len(lengths), dtype=np.int64)
    bins = 0
    for length in lengths:
        if not length:
            continue
        place = 0
        while place < bins and room[place] < length:
            place += 1
        if place == bins:
            room[bins] = capacity
            bins += 1
        room[place] -= length
    return bins


def show(filled: Iterable[Filled], json_file: Path | None) -> None:
    """Print the table as it comes, and write it down at the end."""
    print(f"one core of {processor()}")
    print(f"{'corpus':<18}{'row':>6}  {'way':<10}{'rows':>9}{'padding':>9}{'cut':>8}{'MB/s':>8}{'rows/s':>10}")
    write_down([asdict(one) for one in shown_rows(filled, _line)], json_file)


def _line(one: Filled, _: object) -> str:
    rates = f"{one.megabytes_s:>8.0f}{one.rows_s:>10,.0f}" if one.megabytes_s and one.rows_s else " " * 18
    goal = ""
    if one.way == "best_fit":
        goal = f"  {MOST_PADDING:.1%} {'reached' if one.padding <= MOST_PADDING else 'MISSED'}"
    if one.labels:
        goal = "  " + ", ".join(f"{count / one.rows:.1%} {name}" for name, count in one.labels.items())
    size = f"{one.rows:>9,}{one.padding:>9.2%}{one.cut:>8.1%}"
    return f"{one.corpus:<18}{one.row_length:>6}  {one.way:<10}{size}{rates}{goal}"


def _options() -> Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--vocabulary", type=Path, help="a file of a vocabulary")
    return parser.parse_args()


if __name__ == "__main__":
    options = _options()
    model = options.vocabulary or options.data / "tokenizers" / "mistral_v1_32k.model"
    show(measure(options.data, tokenizer_of(model.read_bytes())), options.json)
