"""Looks for the 13-grams of ITEMS in INPUT.jsonl with one tool, in that tool's own environment.

    python search.py TOOL INPUT.jsonl ITEMS ROUNDS MOST_BYTES

ITEMS is a folder of benchmarks (`*.jsonl.gz`) or a file of JSON lines with a `text` each. Reading, compiling and
building the table are left out, the fastest of ROUNDS counts. `words` hashes the words as Bessemer does and looks
nothing up, which no table can undercut; `numpy` adds 13 shifted sums of these hashes and `searchsorted`.
"""

import gzip
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import fastest, print_rate, read_texts

if TYPE_CHECKING:
    from tasks.decontaminate.ngrams import ItemIndex

WIDTH = 13


def bessemer(texts: list[str], items: Path) -> Callable[[], object]:
    from tasks.decontaminate.config import DecontaminateConfig
    from tasks.decontaminate.scan import scan_texts

    index, config = index_of(items), DecontaminateConfig()
    data, offsets = buffers_of(texts)
    scan_texts(data, offsets[:2], index, config)
    return lambda: scan_texts(data, offsets, index, config)


def words(texts: list[str], items: Path) -> Callable[[], object]:
    import numpy as np

    from tasks.decontaminate.normalize import fold_table, hash_words, max_words

    del items
    data, offsets = buffers_of(texts)
    capacity, table = max_words(int(np.diff(offsets).max())), fold_table()
    hashes, starts, ends = np.empty(capacity, np.uint64), np.empty(capacity, np.int64), np.empty(capacity, np.int64)

    def hash_all() -> None:
        for begin, end in itertools.pairwise(offsets.tolist()):
            hash_words(data, begin, end, table, hashes, starts, ends)

    hash_all()
    return hash_all


def numpy(texts: list[str], items: Path) -> Callable[[], object]:
    import numpy as np

    from tasks.common.utf8 import ROLLING_BASE
    from tasks.decontaminate.normalize import fold_table, hash_words, max_words

    data, offsets = buffers_of(texts)
    capacity, table = max_words(int(np.diff(offsets).max())), fold_table()
    hashes, starts, ends = np.empty(capacity, np.uint64), np.empty(capacity, np.int64), np.empty(capacity, np.int64)

    def rolled(data: Any, begin: int, end: int) -> Any:
        held = hash_words(data, begin, end, table, hashes, starts, ends)
        rolling = np.zeros(max(0, held - WIDTH + 1), np.uint64)
        for shift in range(WIDTH):
            rolling = rolling * ROLLING_BASE + hashes[shift : shift + rolling.size]
        return rolling

    sought, bounds = buffers_of(item_texts(items))
    if (longest := max_words(int(np.diff(bounds).max()))) > capacity:
        hashes, starts, ends = np.empty(longest, np.uint64), np.empty(longest, np.int64), np.empty(longest, np.int64)
    wanted = np.sort(np.concatenate([rolled(sought, *span) for span in itertools.pairwise(bounds.tolist())]))

    def search() -> int:
        found = 0
        for begin, end in itertools.pairwise(offsets.tolist()):
            rolling = rolled(data, begin, end)
            place = np.searchsorted(wanted, rolling)
            found += int((wanted[np.minimum(place, wanted.size - 1)] == rolling).sum())
        return found

    search()
    return search


def datatrove(texts: list[str], items: Path) -> Callable[[], object]:
    import numpy as np
    from datatrove.data import Document
    from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
    from datatrove.utils.text import ngrams, simplify_text
    from loguru import logger

    logger.remove()
    config = NGramsDecontConfig(n_grams=WIDTH)
    with tempfile.TemporaryDirectory() as index:
        searcher = NGramsDecontFilter(index, config)
        # Its own indexer does the same for the label of an item, and then asks for tasks of a hub.
        hashes = {
            searcher.hash_func(" ".join(gram))
            for text in item_texts(items)
            for gram in ngrams(searcher.tokenizer.word_tokenize(simplify_text(text, config.norm_config)), WIDTH)
        }
        np.array(sorted(hashes), config.hash_config.np_descr).tofile(Path(index) / "items.index.hashes")
        searcher.filter(Document(text="some words to load the table with", id="first"))
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    return lambda: [searcher.filter(document) for document in documents]


def buffers_of(texts: list[str]) -> Any:
    import pyarrow as pa

    from tasks.artifacts.tables.columns import text_buffers

    return text_buffers(pa.array(texts, pa.large_string()))


def index_of(items: Path) -> "ItemIndex":
    from tasks.decontaminate.benchmarks import Item, read_items
    from tasks.decontaminate.config import Benchmark, DecontaminateConfig
    from tasks.decontaminate.ngrams import build_index

    if items.is_dir():
        paths = sorted(items.glob("*.jsonl.gz"))
        found = read_items(tuple(Benchmark(name=path.name.partition(".")[0], path=path) for path in paths))
    else:
        made = enumerate(read_texts(items)[0])
        found = [Item("made", str(number), None, text, (), "x", text, (text,)) for number, text in made]
    return build_index(found, DecontaminateConfig())


def item_texts(items: Path) -> list[str]:
    """Return the texts to look for, as a tool without adapters gets them."""
    if not items.is_dir():
        return read_texts(items)[0]
    texts = []
    for path in sorted(items.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["match_text"] for line in lines]
    return texts


TOOLS = {"bessemer": bessemer, "words": words, "numpy": numpy, "datatrove": datatrove}


def main(tool: str, source: str, items: str, rounds: str, most_bytes: str) -> None:
    texts, size = read_texts(Path(source), float(most_bytes))
    print_rate(fastest(TOOLS[tool](texts, Path(items)), int(rounds)), size)


main(*sys.argv[1:])
