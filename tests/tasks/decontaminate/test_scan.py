"""Scanning: against brute force over plain words, overlapping lengths, verification, more hits than the first
capacity."""

import random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.decontaminate.benchmarks import Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.ngrams import Patterns, build_patterns, template_patterns
from tasks.decontaminate.normalize import fold_words
from tasks.decontaminate.scan import Hits, Verifier, scan_texts

CONFIG = DecontaminateConfig(ngram=5, short_words=2, short_chars=8)


def item(text: str, number: int = 0, benchmark: str = "quiz") -> Item:
    return Item(benchmark, str(number), None, text, (), "x", text)


def buffers(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    _, offsets, data = pa.array(texts, pa.large_string()).buffers()
    return np.frombuffer(data if data is not None and data.size else b" ", np.uint8), np.frombuffer(offsets, np.int64)[
        : len(texts) + 1
    ]


def scan(texts: list[str], items: list[Item], config: DecontaminateConfig = CONFIG) -> tuple[Patterns, Hits, Hits]:
    patterns = build_patterns(items, config)
    data, offsets = buffers(texts)
    found = scan_texts(data, offsets, patterns)
    return patterns, found, Verifier(patterns).verified(data, offsets, found)


def brute_force(texts: list[str], items: list[Item], config: DecontaminateConfig) -> set[tuple[int, int, int, int]]:
    """(row, word, start, end) of every run of words that is an n-gram of an item, or a whole short item."""
    wanted: set[tuple[str, ...]] = set()
    for one in items:
        words = [word.text for word in fold_words(one.match_text)]
        if len(words) >= config.ngram:
            wanted |= {tuple(words[i : i + config.ngram]) for i in range(len(words) - config.ngram + 1)}
        elif words and (len(words) >= config.short_words or len(one.match_text.strip()) >= config.short_chars):
            wanted.add(tuple(words))
    found = set()
    for row, text in enumerate(texts):
        words = fold_words(text)
        for run in wanted:
            for first in range(len(words) - len(run) + 1):
                candidate = words[first : first + len(run)]
                if tuple(word.text for word in candidate) == run:
                    found.add((row, first, candidate[0].start, candidate[-1].end))
    return found


SMALL = st.text(st.sampled_from("ab 中Я. "), max_size=40)


@given(st.lists(SMALL, min_size=1, max_size=6), st.lists(SMALL, min_size=1, max_size=6))
@settings(deadline=None, max_examples=300)
def test_finds_exactly_what_brute_force_finds(texts: list[str], match_texts: list[str]) -> None:
    items = [item(text, number) for number, text in enumerate(match_texts)]
    _, found, verified = scan(texts, items)
    assert len(found) == len(verified)
    hits = set(zip(*(getattr(verified, name).tolist() for name in ("row", "word", "start", "end")), strict=True))
    assert hits == brute_force(texts, items, CONFIG)


def test_finds_items_inside_long_documents_of_random_words() -> None:
    generator = random.Random(3)
    vocabulary = [f"w{i}" for i in range(2000)]
    items = [item(" ".join(generator.choices(vocabulary, k=30)), number) for number in range(300)]
    config = DecontaminateConfig()
    texts = []
    for number in range(50):
        words = generator.choices(vocabulary, k=500)
        if number % 2:
            words[100:100] = items[number].match_text.upper().split()
        texts.append(" ".join(words))
    patterns, _, hits = scan(texts, items, config)
    assert set(hits.row.tolist()) == set(range(1, 50, 2))
    assert len(hits) == 25 * 18
    assert patterns.totals.tolist() == [18] * 300


def test_more_hits_than_the_first_capacity_are_all_found() -> None:
    texts = ["a b c d e " * 30_000, "nothing here"]
    _, found, _ = scan(texts, [item("a b c d e a b c d e")])
    assert len(found) == 5 * 30_000 - 4


def test_no_benchmarks_and_empty_texts_are_no_hits() -> None:
    assert len(scan(["a b c"], [])[1]) == 0
    assert len(scan([], [item("a b c d e f")])[1]) == 0
    assert len(scan(["", ""], [item("a b c d e f")])[1]) == 0


def test_verification_refuses_a_hit_whose_words_differ() -> None:
    items = [item("one two three four five six")]
    patterns = build_patterns(items, CONFIG)
    data, offsets = buffers(["one two three four nine six"])
    forged = Hits(*(np.array([value]) for value in (0, 0, 0, 0, 23)))
    assert len(Verifier(patterns).verified(data, offsets, forged)) == 0


def test_items_below_the_limits_have_no_patterns() -> None:
    config = DecontaminateConfig()
    texts = ["too short", "seven words are just enough for this", "incomprehensibly notwithstanding", "!!!"]  # fmt: skip  # noqa: E501
    patterns = build_patterns([item(text, number) for number, text in enumerate(texts)], config)
    assert patterns.totals.tolist() == [0, 1, 1, 0]


def test_what_many_items_of_one_benchmark_share_is_its_template() -> None:
    words = [f"only{number} thing{number} asked{number} here{number} now{number}" for number in range(30)]
    items = [item(f"read the text and answer the question {text}", n) for n, text in enumerate(words)]
    patterns = build_patterns(items, CONFIG)
    template = template_patterns(patterns, items, 20)
    verifier = Verifier(patterns)
    found = {" ".join(verifier.pattern_words(pattern)) for pattern in np.flatnonzero(template).tolist()}
    assert found == {"read the text and answer", "the text and answer the", "text and answer the question"}
