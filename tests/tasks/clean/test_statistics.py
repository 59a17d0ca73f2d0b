"""The counting kernels agree with plain Python that a reader can check, on any text."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.kernels import text_counts as tc
from tasks.clean.kernels.characters import has_unsegmented_script
from tasks.clean.kernels.counting import stop_words
from tasks.clean.kernels.measurements import Measurements
from tests.tasks.clean.references import OneText, count_words, split_units

SIGNS = 'aB1 \n\t.!?…"”)#{-•。我国ありกำ\u00a0\u2028é\u0301،“中、\u3000🙂'
TEXTS = st.one_of(
    st.text(st.sampled_from(SIGNS), max_size=80),
    st.text(
        st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs"], exclude_characters="\x1c\x1d\x1e\x1f"),
        max_size=40,
    ),
    st.lists(st.sampled_from(["ab", "cd", "e", "我", "\n", "\n\n", " "]), max_size=120).map(" ".join),
)
SENTENCE_END = re.compile(r"[.!?]+[\"'”’»)\]]*(?=\s|$)|[。！？।۔؟]")
BULLETS = ("-", "*", "•", "‣", "▪", "●", "◦", "·")


def lines_of(text):
    return [line.strip() for line in text.split("\n") if line.strip()]


def paragraphs_of(text):
    return [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]


def repeated(blocks):
    again = len(blocks) - len(set(blocks))
    characters = sum(map(len, blocks)) - sum(map(len, set(blocks)))
    return (again / len(blocks), characters / sum(map(len, blocks))) if blocks else (0.0, 0.0)


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_counts_are_those_of_plain_python(text):
    statistics = OneText(text)
    count = statistics.count_of
    units, lines, paragraphs = split_units(text), lines_of(text), paragraphs_of(text)
    assert statistics.units == len(units)
    assert statistics.words == pytest.approx(count_words(text))
    assert statistics.characters == sum(map(len, units))
    assert count(tc.ALPHABETIC_UNITS) == sum(1 for unit in units if re.search(r"[^\W\d_]", unit))
    assert count(tc.HASHES) == text.count("#")
    assert count(tc.ELLIPSES) == text.count("...") + text.count("…")
    assert count(tc.OPENING_BRACES) == text.count("{")
    assert count(tc.LINE_FEEDS) == text.count("\n")
    assert count(tc.SENTENCES) == len(SENTENCE_END.findall(text))
    assert count(tc.LINES) == len(lines)
    assert count(tc.BULLET_LINES) == sum(line.startswith(BULLETS) and not line.startswith("--") for line in lines)
    assert count(tc.ELLIPSIS_LINES) == sum(line.endswith(("...", "…")) for line in lines)
    assert count(tc.LINE_CHARACTERS) == sum(map(len, lines))
    assert count(tc.PARAGRAPHS) == len(paragraphs)
    assert statistics.repeated_lines == pytest.approx(repeated(lines))
    assert statistics.repeated_paragraphs == pytest.approx(repeated(paragraphs))


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(2, 4))
def test_the_most_frequent_gram_is_that_of_a_plain_count(text, n):
    units = split_units(text)
    unsegmented = sum(map(has_unsegmented_script, units)) * 2 > len(units)
    size = 2 * n if unsegmented else n
    grams = Counter(tuple(units[start : start + size]) for start in range(len(units) - size + 1))
    most = max(grams.values(), default=0)
    longest = max((sum(map(len, gram)) for gram, uses in grams.items() if uses == most), default=0)
    characters = sum(map(len, units))
    expected = min(1.0, most * longest / characters) if most > 1 else 0.0
    assert OneText(text).top_gram_share(n) == pytest.approx(expected)


def test_placeholder_text_is_counted_in_any_case():
    assert OneText("Lorem Ipsum, lorem  ipsum, LOREM IPSUM lorem").count_of(tc.LOREM_IPSUM) == 2


def test_lines_count_as_short_by_width():
    text = "x" * 30 + "\n" + "x" * 31 + "\n" + "我" * 10 + "\n" + "我" * 11
    assert OneText(text).count_of(tc.SHORT_LINES) == 2


def test_stop_words_count_once_each_in_three_forms():
    statistics = OneText("The THE the, und Und tHe")
    assert statistics.stop_words_seen(["en"]) == 1  # "the," has a comma and "tHe" an odd form, the rest is one word
    assert statistics.stop_words_seen(["de"]) == 1
    assert np.isnan(statistics.stop_words_seen(["xx"]))
    assert len(np.unique(stop_words().numbers)) > 100


def test_texts_side_by_side_are_measured_as_alone():
    texts = ["a b a b", "我们 c\nc\nd", "", "x\n\nx\n\ny", "word " * 2000, "a b c d e f x a b c d e f"]
    context = BatchContext(["text"] * 6, ["en"] * 6, ["s"] * 6, [""] * 6, "name")
    together = Measurements(Texts.of(texts), context, np.ones(6, np.bool_))
    for row, text in enumerate(texts):
        alone = OneText(text)
        assert together.words[row] == alone.words
        assert together.count_of(tc.SENTENCES)[row] == alone.count_of(tc.SENTENCES)
        assert tuple(shares[row] for shares in together.repeated_lines) == alone.repeated_lines
        assert tuple(shares[row] for shares in together.repeated_paragraphs) == alone.repeated_paragraphs
        assert together.top_gram_share(3)[row] == alone.top_gram_share(3)
        assert together.repeated_gram_share(6)[row] == alone.repeated_gram_share(6)
        assert together.stop_words_seen(["en"] * 6)[row] == alone.stop_words_seen(["en"])


def test_a_long_text_of_one_word():
    assert OneText("word " * 40_000).repeated_gram_share(10) == pytest.approx(1, abs=0.001)
