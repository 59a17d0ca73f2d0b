"""Edits of many texts at once: in Python or by a kernel, each text becomes what it becomes alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.document import DocumentContext
from tasks.clean.edits.registry import EDIT_REGISTRY
from tasks.clean.edits.unicode_repair import remove_invisible
from tasks.clean.kernels.prefilter import LINE_FEATURES, REPEATED_LINE
from tests.tasks.clean.references import count_words

INVISIBLE = (
    "ab \u00e9\u6211\n\r\t\x0b\x0c\x1b[1m\x00\x85"
    "\u00ad\u200b\u200c\u200d\u2028\u2060\u2065\ufeff\U000e0041\U0001f469\U0001f52c"
)
TEXTS = st.lists(st.text(st.sampled_from(INVISIBLE), max_size=20), min_size=1, max_size=6)
LINES = st.lists(
    st.sampled_from(["one two", "a b c", "", " ", "x", "\u6211\u4eec\u662f\u8c01", "\u0e01\u0e33 b"]), max_size=8
).map("\n".join)


def contexts(count):
    return BatchContext(["text"] * count, ["en"] * count, ["s"] * count, [""] * count, "name")


def edited(name, texts, limit=None):
    together = Texts.of(texts)
    edit = replace(EDIT_REGISTRY[name], limit=limit)
    changed = edit.apply_to_many(together, contexts(len(texts)), np.arange(len(texts)))
    after = [together.text(row) for row in range(len(texts))]
    assert [bytes(together.raw(row)).decode() for row in range(len(texts))] == after
    assert sorted(changed.tolist()) == [row for row, text in enumerate(texts) if text != after[row]]
    assert together.features.tolist() == Texts.of(after).features.tolist()
    return after


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_the_kernel_removes_what_the_function_removes(texts):
    assert edited("control_characters", texts) == [remove_invisible(text, DocumentContext()) for text in texts]


@settings(max_examples=200, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=5), st.integers(1, 4))
@example(["\u6211a"], 1)  # letters after a character without spaces are a word of their own
def test_the_kernel_leaves_out_short_lines(texts, words):
    def keeps(line):
        return not line.strip() or count_words(line) >= words

    expected = ["\n".join(line for line in text.split("\n") if keeps(line)) for text in texts]
    assert edited("c4_short_lines", texts, words) == expected


def test_texts_that_the_kernel_leaves_to_python_are_edited_too():
    texts = ["a\u200bb", "\x1b[31mred", "la\u200dtin", "plain"]
    assert edited("control_characters", texts) == ["ab", "red", "latin", "plain"]


def test_only_the_given_rows_change():
    texts = Texts.of(["a\u200bb", "c\u200bd", "e@f.org"])
    changed = EDIT_REGISTRY["control_characters"].apply_to_many(texts, contexts(3), np.array([1]))
    assert changed.tolist() == [1]
    assert EDIT_REGISTRY["email"].apply_to_many(texts, contexts(3), np.array([0, 2])).tolist() == [2]
    assert [texts.text(row) for row in range(3)] == ["a\u200bb", "cd", "<email>"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["same", "other", "", " ", "我", "a same"]), max_size=8).map("\n".join))
def test_a_scan_of_lines_alone_finds_the_features_of_lines(text):
    texts = Texts.of(["before"])
    assert texts.features[0]
    texts.wanted_features = REPEATED_LINE
    texts.replace({0: text})
    assert texts.features[0] == Texts.of([text]).features[0] & LINE_FEATURES


def test_the_buffer_grows_with_its_texts():
    texts = Texts.of(["x", "y"])
    for size in (10, 100_000, 3):
        texts.replace({0: "z" * size})
        assert (texts.text(0), bytes(texts.raw(1))) == ("z" * size, b"y")


def test_three_edits_have_a_kernel_too():
    with_kernel = {name for name, edit in EDIT_REGISTRY.items() if edit.rewrite is not None}
    assert with_kernel == {"mojibake", "control_characters", "c4_short_lines"}


@pytest.mark.parametrize("limit", [0, 1])
def test_short_lines_of_an_empty_text(limit):
    assert edited("c4_short_lines", ["", "\n"], limit) == ["", "\n"]
