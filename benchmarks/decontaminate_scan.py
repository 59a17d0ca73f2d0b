"""How fast documents are scanned for benchmark n-grams, beside numpy and datatrove, on the same text in one run.

    python benchmarks/decontaminate_scan.py --data DATA [--peers FOLDER] [--json FILE]

Two tables of 13-grams: 1 and 20 million of random words of the corpus, on English text; and those of the benchmarks in
DATA, on text of each language. `words` is the hashing of the words alone, `numpy` the same hashes with 13 shifted sums
and a sorted array. datatrove, where FOLDER holds its environment (`peers/install.sh` makes it), is not asked for 20
million n-grams, which it would hold in a Python dictionary. All scan the same two megabytes, as often.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measuring import OURS, Row, Side, arguments, compare, records, show, sides, write_texts

ENGLISH = "English"
TEXTS = {
    ENGLISH: ("en_books", "en_techdocs_md", "en_wiki", "en_speech_drama"),
    "Russian": ("ru_novels", "ru_techdocs"),
    "Italian": ("it_techdocs",),
    "Chinese": ("zh_techdocs", "zh_classic_prose"),
    "chat": ("social_emoji",),
}
MADE = {1_000_000: (100, (OURS, "words", "numpy", "datatrove")), 20_000_000: (40, (OURS, "numpy"))}
"""13-grams, the MB/s to reach, and who looks for them."""
ITEM_WORDS = 1000
WIDTH = 13
ROUNDS = 3
MOST_BYTES = 2_000_000
TURNS = 1
STAGE = "decontaminate"


def measure(data: Path, peers: Path | None) -> Iterator[Row]:
    """Yield a row for each table, text and tool."""

    def searching(tools: tuple[str, ...], source: Path, items: Path) -> list[Side]:
        words = dict.fromkeys(tools, (source, items, ROUNDS, MOST_BYTES))
        return sides("search.py", words, peers, own=(OURS, "words", "numpy"))

    with tempfile.TemporaryDirectory() as folder:
        source, items = Path(folder) / "texts.jsonl", Path(folder) / "items.jsonl"
        texts = [record["text"] for record in records(data, TEXTS[ENGLISH])]
        write_texts(source, texts)
        for count, (target, tools) in MADE.items():
            write_texts(items, made_items(texts, count))
            label = f"{ENGLISH}, {count // 10**6}M n-grams"
            yield from compare(STAGE, label, searching(tools, source, items), TURNS, target)
        benchmarks = data / "benchmarks"
        for language, corpora in TEXTS.items():
            write_texts(source, (record["text"] for record in records(data, corpora)))
            tools = (OURS, "datatrove") if language == ENGLISH else (OURS,)
            label = f"{language}, {len(list(benchmarks.glob('*.gz')))} benchmarks"
            yield from compare(STAGE, label, searching(tools, source, benchmarks), TURNS)


def made_items(texts: list[str], count: int) -> Iterator[str]:
    """Yield items of random words of the texts, with `count` 13-grams altogether."""
    words = sorted({word for text in texts for word in text[:4000].split() if word.isalpha()})
    draw = np.random.default_rng(0)
    for _ in range(count // ITEM_WORDS):
        yield " ".join(words[at] for at in draw.integers(0, len(words), ITEM_WORDS + WIDTH - 1))


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    show(measure(options.data, options.peers), options.json)
