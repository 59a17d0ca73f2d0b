"""Injected forms keep the item's words and nothing else of it; near misses keep no run of an n-gram's length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.decontaminate.normalize import fold_words
from tasks.decontaminate.recall import (
    FORMS,
    INLINE,
    PARAGRAPH,
    VERBATIM,
    inject,
    near_miss,
    plain_words,
    rewrapped,
    varied,
)

HOST = "The furnace was lit at dawn. Nobody slept.\nCoke and ore went in by turns.\n\nAt noon the iron ran."
ITEM = "Which metal, if any, did the workers of Schönhütte pour into the 12 moulds before the evening bell rang?"
CHINESE = "工人们在傍晚钟声响起之前，把哪一种金属倒进了十二个模具里？请用一句话回答。"


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def folded(text: str) -> list[str]:
    return [word.text for word in fold_words(text)]


def has_run(text: str, sought: list[str]) -> bool:
    words = folded(text)
    return any(words[begin : begin + len(sought)] == sought for begin in range(len(words)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("item", [ITEM, CHINESE])
@pytest.mark.parametrize("seed", range(12))
def test_every_form_leaves_the_words_of_item_and_host(form: str, item: str, seed: int) -> None:
    injected = inject(item, HOST, form, generator(seed))
    assert has_run(injected, folded(item))
    assert sorted(folded(injected)) == sorted(folded(item) + folded(HOST))


def test_forms_are_what_their_names_say() -> None:
    assert inject("Q?", HOST, VERBATIM, generator()) == f"Q?\n{HOST}"
    assert "\n\nQ?\n\n" in inject("Q?", HOST, PARAGRAPH, generator())
    assert " Q a? " in inject("Q\na?", HOST, INLINE, generator())
    assert inject("Q?", "one", INLINE, generator()) == "one Q? "


@pytest.mark.parametrize("seed", range(8))
def test_rewrapping_changes_line_ends_and_margins_alone(seed: int) -> None:
    wrapped = rewrapped(ITEM * 3, generator(seed))
    lines = wrapped.split("\n")
    assert len(lines) > 3
    assert max(map(len, lines)) <= 79 + 4 + 1
    assert "".join(line.lstrip("> #\t") for line in lines).replace(" ", "") == (ITEM * 3).replace(" ", "")


def test_varying_changes_letters_in_every_script() -> None:
    for text in (ITEM, CHINESE, "Почему мастер закрыл заслонку?"):
        versions = {varied(text, generator(seed)) for seed in range(40)}
        assert text not in versions
        assert all(folded(version) == folded(text) for version in versions)
    assert len({varied(ITEM, generator(seed)) for seed in range(40)}) == 6


@given(st.text(st.sampled_from("ab .中Я_"), max_size=200), st.integers(5, 9), st.integers(0, 9))
@settings(deadline=None)
def test_a_near_miss_shares_no_run_with_its_text(text: str, ngram: int, seed: int) -> None:
    miss = near_miss(text, HOST, ngram, generator(seed))
    words = plain_words(text)
    if not words:
        assert miss is None
        return
    assert miss is not None
    width = min(ngram, len(words))
    runs = {tuple(words[begin : begin + width]) for begin in range(len(words) - width + 1)}
    missed = plain_words(miss)
    assert not runs & {tuple(missed[begin : begin + width]) for begin in range(len(missed) - width + 1)}


def test_a_near_miss_changes_as_little_as_it_must() -> None:
    words = [f"w{number}" for number in range(30)]
    missed = plain_words(str(near_miss(" ".join(words), HOST, 13, generator())))
    assert [number for number, (a, b) in enumerate(zip(words, missed, strict=True)) if a != b] == [12, 25]
    assert near_miss("furnace", "furnace", 13, generator()) is None
