"""Each rule measures what its paper says, on small countable examples, in scripts with and without spaces."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.document import DocumentContext
from tasks.clean.edits.registry import EDIT_REGISTRY, HTML_TO_TEXT
from tasks.clean.filters.rule import Rule
from tasks.clean.kernels.measurements import Measurements
from tasks.clean.presets import EDITS, PRESETS, SPELLING
from tasks.clean.rules import RULES
from tests.tasks.clean.references import OneText, count_words, split_units


def of_one(text, language=None):
    return Measurements(Texts.of([text]), BatchContext.of(DocumentContext(language=language)), np.ones(1, np.bool_))


def measure(rule, text, *, language=None, limit=0.0):
    value = float(RULES[rule].measure(of_one(text, language), limit)[0])
    return None if np.isnan(value) else value


def test_every_name_has_its_code_and_every_code_its_name():
    assert all(rule.name == name for name, rule in RULES.items())
    assert {*EDIT_REGISTRY, HTML_TO_TEXT, SPELLING} == set(EDITS)
    assert list(EDIT_REGISTRY) == [name for name in EDITS if name not in (HTML_TO_TEXT, SPELLING)]
    for preset in PRESETS.values():
        assert preset.edits <= set(EDITS)
        assert preset.rules <= set(RULES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("three plain words", 3),
        ("", 0),
        ("我们明天去北京大学学习中文课程吧", 16 / 1.7),
        ("他说：“好。”", 3 / 1.7),
        ("สวัสดี", 4 / 3),
        ("use 中文 here", 2 + 2 / 1.7),
    ],
)
def test_words_are_counted_in_every_script(text, words):
    assert count_words(text) == pytest.approx(words)


def test_thai_marks_stay_with_their_letters():
    assert split_units("กำลัง") == ["ก", "ำ", "ลั", "ง"]


def test_gopher_quality_values():
    assert measure("gopher_words_min", "a b c") == 3
    assert measure("gopher_mean_word_min", "aa bbbb") == 3
    assert measure("gopher_mean_word_min", "全是汉字没有空格") is None
    assert measure("gopher_hashes", "# a # b") == 0.5
    assert measure("gopher_ellipses", "so... it… goes on") == 0.5
    assert measure("gopher_bullet_lines", "- a\n* b\nc\n\nd") == 0.5
    assert measure("gopher_ellipsis_lines", "read more...\nend") == 0.5
    assert measure("gopher_alphabetic_words", "one 2 3 f4", limit=1.0) == 0.5


def test_stop_words_by_language():
    assert measure("gopher_stop_words", "The cat of the house", language="en") == 2
    assert measure("gopher_stop_words", "der Hund und die Katze", limit=2) == 3
    assert measure("gopher_stop_words", "这是我的书", language="zh") == 2
    assert measure("gopher_stop_words", "สวัสดีครับ", limit=2) is None
    assert measure("gopher_stop_words", "anything", language="xx") is None
    assert measure("gopher_stop_words", "xyzzy plugh", limit=2) == 0


def test_gopher_repetition_of_lines_and_paragraphs():
    assert measure("gopher_duplicate_lines", "a\nb\na\na") == 0.5
    assert measure("gopher_duplicate_line_characters", "aaaa\nb\nb\nc") == pytest.approx(1 / 7)
    assert measure("gopher_duplicate_paragraphs", "a\nb\n\na\nb\n\nc\n\nd") == 0.25
    assert measure("gopher_duplicate_paragraph_characters", "aaa\n\naaa\n\nbbbb") == 0.3


def test_the_most_frequent_pair_of_words():
    # "ab cd" occurs twice: 2 * 4 of 12 characters.
    assert measure("gopher_top_2_gram", "ab cd xx ab cd yy") == pytest.approx(8 / 12)
    assert measure("gopher_top_2_gram", "a b c d") == 0


def test_a_repeated_run_of_five_words_counts_once_per_character():
    text = "a b c d e f x a b c d e f"
    assert measure("gopher_duplicate_5_grams", text) == pytest.approx(6 / 13)
    assert measure("gopher_duplicate_6_grams", text) == pytest.approx(6 / 13)
    assert measure("gopher_duplicate_7_grams", text) == 0


def naive_duplicate_share(words, n):
    seen, covered = set(), set()
    for start in range(len(words) - n + 1):
        gram = tuple(words[start : start + n])
        if gram in seen:
            covered.update(range(start, start + n))
        seen.add(gram)
    return sum(len(words[position]) for position in covered) / sum(map(len, words))


@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), min_size=1, max_size=60), st.integers(5, 10))
def test_duplicate_grams_agree_with_a_plain_search(words, n):
    statistics = OneText(" ".join(words))
    assert statistics.repeated_gram_share(n) == pytest.approx(naive_duplicate_share(words, n))
    enough = statistics.repeated_gram_share(n, enough=0.3)
    assert (enough > 0.3) == (naive_duplicate_share(words, n) > 0.3)


def test_chinese_repetition_is_measured_in_pairs_of_characters():
    sentence = "春眠不觉晓处处闻啼鸟夜来风雨声花落知多少"
    assert OneText(sentence).repeated_gram_share(5) == 0
    assert OneText(sentence + sentence).repeated_gram_share(10) == 0.5


def test_c4_values():
    assert measure("c4_sentences", "One. Two! Is v1.2 three? yes") == 3
    assert measure("c4_sentences", "一。二！") == 2
    assert measure("c4_lorem_ipsum", "Lorem Ipsum dolor") == 1
    assert measure("c4_curly_bracket", "if { { }") == 2


def test_fineweb_values():
    narrow, wide = "twenty-eight letters and two", "twenty-nine letters and no ten"
    assert (len(narrow), len(wide)) == (28, 30)
    lines = f"{narrow} .\n{wide}.\n{'字' * 10}\n{'字' * 11}。\n"
    assert measure("fineweb_short_lines", lines) == 2 / 4, "of at most 30 letters, an ideograph counts for three"
    assert measure("fineweb_finished_lines", lines) == 3 / 4
    assert measure("fineweb_line_feeds", "one two\nthree four\n") == 2 / 4


def test_code_values():
    assert measure("code_mean_line", "abc\na\n") == 2
    assert measure("code_longest_line", "abc\na\n") == 3
    assert measure("code_alphanumeric", "ab()\n  ;;\n") == pytest.approx(2 / 6)


def test_limits_are_those_of_the_papers():
    assert RULES["gopher_words_min"].limit == 50
    assert RULES["gopher_top_4_gram"].limit == 0.16
    assert [RULES[f"gopher_duplicate_{n}_grams"].limit for n in range(5, 11)] == [0.15, 0.14, 0.13, 0.12, 0.11, 0.1]
    assert all(re.fullmatch(r"(gopher|c4|fineweb|code|language|kind)_[a-z0-9_]+", name) for name in RULES)


def failing(name, text, limit):
    return RULES[name].failures(of_one(text), limit).values.tolist()


def test_a_value_on_the_limit_passes():
    fifty = "word " * 50
    assert failing("gopher_words_min", fifty, 50) == []
    assert failing("gopher_words_min", fifty, 51) == [50]
    assert failing("gopher_words_max", fifty, 50) == []
    assert failing("gopher_words_max", fifty, 49) == [50]
    for at_least in (True, False):
        by_text = Rule("words", lambda statistics, limit: 50.0, at_least)
        found = [by_text.failures(of_one(fifty), limit).values.tolist() for limit in (49, 50, 51)]
        assert found == ([[], [], [50]] if at_least else [[50], [], []])


def test_a_rule_that_does_not_apply_fails_no_document():
    assert failing("gopher_mean_word_min", "全是汉字没有空格", 3) == []
    assert failing("gopher_bullet_lines", "\n\n", 0) == []


def test_rules_look_at_wanted_documents_only():
    texts = Texts.of(["a b", "a b c", "a b c d"])
    context = BatchContext(["text"] * 3, ["en"] * 3, ["s"] * 3, [""] * 3, "name")
    wanted = np.array([True, False, True])
    failures = RULES["gopher_words_min"].failures(Measurements(texts, context, wanted), 4)
    assert (failures.rows.tolist(), failures.values.tolist()) == ([0], [2])
    own = Rule("own", lambda statistics, limit: "three" if statistics.text.count(" ") == 2 else statistics.words)
    failures = own.failures(Measurements(texts, context, wanted), 3)
    assert (failures.rows.tolist(), failures.values.tolist(), failures.reasons) == ([2], [4], {})
    assert own.failures(Measurements(texts, context, ~wanted), 3).reasons == {1: "three"}


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "我", "\n"]), min_size=1, max_size=60), st.floats(0, 0.6))
def test_bounds_spare_searches_and_change_no_verdict(words, limit):
    text = " ".join(words)
    for n in (3, 4):
        exact = OneText(text).top_gram_share(n)
        assert failing(f"gopher_top_{n}_gram", text, limit) == ([exact] if exact > limit else [])
    for n in range(5, 11):
        exact = OneText(text).repeated_gram_share(n)
        assert failing(f"gopher_duplicate_{n}_grams", text, limit) == ([exact] if exact > limit else [])
