"""Answers compared with correct ones, with values that can be computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.inference.text_match import best_of, f1_score, is_chinese, is_exact_match, split_segments, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Forge, at Night!", ["forge", "at", "night"]),
        # Signs go before articles and leave no gap, as in SQuAD's program.
        ("a.m. at well-known U.S. forges", ["am", "at", "wellknown", "us", "forges"]),
        ("it's the-end", ["its", "theend"]),
        # Signs beyond ASCII stay, and border on articles.
        ("the “forge” – an ore", ["“forge”", "–", "ore"]),
        ("“the forge”", ["“", "forge”"]),
        ("２０ Ａ", ["２０", "ａ"]),
        ("...", []),
    ],
)
def test_words_as_squad_compares_them(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("日本刀 Steel", ["日", "本", "刀", "steel"]),
        ("《铁匠》，1990年", ["铁", "匠", "1990", "年"]),
        # Signs leave no gap; numbers stay whole, other signs are segments.
        ("a-b：c", ["abc"]),
        ("1,000人 3.5%", ["1,000", "人", "3.5", "%"]),
        # Half of its own sign for omission is none to CMRC's program.
        ("铁……匠...", ["铁", "……", "匠", "..."]),
        ("，。", []),
    ],
)
def test_segments_as_cmrc_compares_them(text: str, segments: list[str]) -> None:
    assert split_segments(text) == segments


def test_words_are_shared_in_any_order_and_chinese_runs_in_theirs() -> None:
    assert f1_score("the red forge", "red iron forge door", chinese=False) == pytest.approx(2 * 2 / (2 + 4))
    assert f1_score("forge red", "red forge", chinese=False) == 1.0
    # Three of four characters of one and of five of the other follow each other.
    assert f1_score("打铁匠人", "铁匠人在家", chinese=True) == pytest.approx(2 * 3 / (4 + 5))
    assert f1_score("人匠", "匠人", chinese=True) == pytest.approx(2 * 1 / (2 + 2))
    for chinese in (False, True):
        assert f1_score("", "", chinese=chinese) == 1.0
        assert f1_score("铁匠", "", chinese=chinese) == 0.0
        assert f1_score("铁", "匠", chinese=chinese) == 0.0


def test_signs_and_articles_do_not_count() -> None:
    assert is_exact_match("a red forge", "The Red Forge.", chinese=False)
    assert not is_exact_match("redforge", "red forge", chinese=False)
    assert is_exact_match(" 《铁匠》。", "铁匠", chinese=True)
    assert not is_exact_match("铁匠", "匠", chinese=True)


def test_an_answer_that_says_nothing_is_none() -> None:
    assert best_of("", ("The",), chinese=False) == (1.0, 1.0)
    assert best_of("", ("the", "forge"), chinese=False) == (0.0, 0.0)
    assert best_of("forge", (), chinese=False) == (0.0, 0.0)
    assert best_of("red forge", ("forge", "The red forge."), chinese=False) == (1.0, 1.0)
    assert best_of("铁匠铺", ("铁", "铁匠"), chinese=True) == (0.0, pytest.approx(2 * 2 / 5))


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("铁匠在夜里打铁", True),
        ("PyTorch 是一个库", True),
        ("The word 铁匠 means smith", False),
        ("1990", False),
        ("ひらがな", False),
    ],
)
def test_which_texts_are_chinese(text: str, chinese: bool) -> None:
    assert is_chinese(text) is chinese


@given(st.text("ab 铁匠在。,the", max_size=12), st.text("ab 铁匠在。,the", max_size=12), st.booleans())
def test_the_share_is_symmetric_and_whole_for_the_same(one: str, other: str, chinese: bool) -> None:
    there = f1_score(one, other, chinese=chinese)
    assert there == f1_score(other, one, chinese=chinese)
    assert 0 <= there <= 1
    assert f1_score(one, one, chinese=chinese) == 1.0
    if is_exact_match(one, other, chinese=chinese):
        assert there == 1.0
