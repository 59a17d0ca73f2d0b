"""Folding for matching: what counts as the same word, where words are, and that kernel and plain Python agree."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.decontaminate.normalize import (
    CHARACTER,
    NUMBER,
    WORD,
    fold_table,
    hash_words,
    max_words,
    words_as_written,
)
from tests.tasks.decontaminate.plain_words import fold_words

ALPHABET = "ab Zé дЖ中文がの㎏ﬁ½，.\n&amp;#39;\\\\\\un00{e9 '-_\u200b\u00ad\ufe0f\u0301😀𠀀🄰١ก็한ㆍﷺ\U000e0041"


def kernel_words(text: str) -> list[tuple[int, int, int]]:
    data = np.frombuffer(text.encode() or b" ", np.uint8)
    capacity = max_words(data.size)
    hashes, starts, ends = np.empty(capacity, np.uint64), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    count = hash_words(data, 0, len(text.encode()), fold_table(), hashes, starts, ends)
    kinds = [
        CHARACTER if word.unsegmented else NUMBER if re.fullmatch("[0-9]+", word.text) else WORD
        for word in fold_words(text)
    ]
    assert (hashes[:count] & np.uint64(3)).tolist() == kinds
    return list(zip(hashes[:count].tolist(), starts[:count].tolist(), ends[:count].tolist(), strict=True))


def forms(text: str) -> list[str]:
    return [word.text for word in fold_words(text)]


@given(st.text(st.sampled_from(ALPHABET), max_size=60) | st.text(max_size=40))
@example(r"\ud801\udc37 𐐷 \ud801 \udc37")  # a character above U+FFFF is written as two surrogates
@example("a\U000e0000b\U000e0fffc d\U000e1000e")  # the first and last invisible character of this plane, and the next
@settings(deadline=None, max_examples=400)
def test_kernel_and_plain_python_see_the_same_words_at_the_same_places(text: str) -> None:
    plain, compiled = fold_words(text), kernel_words(text)
    assert [(word.start, word.end) for word in plain] == [(start, end) for _, start, end in compiled]
    seen: dict[tuple[str, bool], int] = {}
    for word, (value, _, _) in zip(plain, compiled, strict=True):
        assert seen.setdefault((word.text, word.unsegmented), value) == value
    assert len(set(seen.values())) == len(seen)


def test_a_megabyte_of_backslashes_takes_no_time() -> None:
    assert words_as_written(f"a {chr(92) * 1_000_000} b") == ["a", "b"]


@given(st.text(max_size=60) | st.text(st.sampled_from("\\ntru00e9ñé\u0303\u0301 "), max_size=12))
@settings(deadline=None, max_examples=400)
def test_texts_equal_under_nfkc_have_equal_words(text: str) -> None:
    assert forms(unicodedata.normalize("NFKC", text)) == forms(unicodedata.normalize("NFKD", text))


@given(st.text(st.sampled_from("abcé дж中. "), max_size=40))
def test_places_point_at_the_word_in_the_original_bytes(text: str) -> None:
    for word in fold_words(text):
        assert forms(text.encode()[word.start : word.end].decode()) == [word.text]


@pytest.mark.parametrize(
    ("disguised", "plain"),
    [
        ("ＦＵＬＬ　ｗｉｄｔｈ １２", "full width 12"),
        ("ﬁne ﬂow", "fine flow"),
        ("Сорусаt", "copycat"),
        ("СОМРUТЕR", "computer"),
        ("hid\u200bden so\u00adft", "hidden soft"),
        ("naïve Ёлка", "naive елка"),
        ("Straße", "strasse"),
        ("say &quot;yes&quot; &#39;now&#x27;", "say yes now"),
        ("caf&eacute; na&#239;ve &#x4e2d;&#22269; &amp;quot;x&amp;#39;", "cafe naive 中国 x"),
        (r"caf\u00e9\nbar \u4e2d\u56fd\tsay \"yes\" \ud835\udc1a", "cafe bar 中国 say yes a"),
        (r"50\% of \textbf{bold} \& $x$ is \alpha", "50 of bold x is alpha"),
        ("line\nbreak -- and_dash", "line break and dash"),
    ],
)
def test_disguises_fold_to_the_plain_words(disguised: str, plain: str) -> None:
    assert forms(disguised) == forms(plain)


def test_each_character_of_a_script_without_spaces_is_a_word() -> None:
    assert forms("我有2只猫。") == ["我", "有", "2", "只", "猫"]
    assert [(word.start, word.end) for word in fold_words("我有2")] == [(0, 3), (3, 6), (6, 7)]


def test_an_ampersand_without_an_entity_hides_nothing() -> None:
    assert forms("AT&T; R&D &amp x &;y &#;z") == forms("AT T R D amp x y z")


def test_different_words_stay_different() -> None:
    words = ["мама", "папа", "нос", "сон", "кот", "ток", "ѕ", "word", "world", "中", "国"]
    assert len({tuple(forms(word)) for word in words}) == len(words)


def test_capacity_is_enough_for_the_densest_character() -> None:
    densest = max((len(fold_words(chr(code))) / len(chr(code).encode())) for code in range(0x3300, 0x33FF))
    assert densest == 2.0
    text = "\u3316" * 500
    assert len(fold_words(text)) <= max_words(len(text.encode()))


def test_words_are_shown_as_they_are_in_the_text() -> None:
    assert words_as_written("Die Straße -- caf&eacute;, 2 Кошки 中国") == [
        "die", "straße", "caf&eacute;", "2", "кошки", "中", "国",
    ]  # fmt: skip
    assert words_as_written("") == []
