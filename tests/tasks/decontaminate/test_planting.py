"""Injected forms keep the item's words, near misses every second one; typing errors and numbers change as said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.decontaminate.benchmarks import Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.recall import (
    CHOICES,
    ESCAPED,
    FORMS,
    HALF,
    INLINE,
    NUMBERS,
    PARAGRAPH,
    SHORT,
    TYPOS,
    VERBATIM,
    holds,
    inject,
    misspelt,
    near_miss,
    passage_of,
    plain_words,
    renumbered,
    rewrapped,
    varied,
)
from tests.tasks.decontaminate.plain_words import fold_words

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
    assert len(folded(injected)) == len(folded(item) + folded(HOST))


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


@given(st.text(st.sampled_from("ab .中Я_"), max_size=200), st.integers(0, 9))
@settings(deadline=None)
def test_a_near_miss_keeps_every_second_word(text: str, seed: int) -> None:
    miss = near_miss(text, HOST, generator(seed))
    words = plain_words(text)
    if len(words) < 2:
        assert miss is None
        return
    assert miss is not None
    missed = plain_words(miss)
    assert missed[::2] == words[::2]
    assert not set(missed[1::2]) & set(words)
    assert near_miss("the furnace", "furnace the", generator()) is None


LONG = Item("quiz", "1", None, f"{ITEM} {ITEM}", ("Iron", "Lead"), "0", "", (f"{ITEM} {ITEM}",))
BRIEF = Item("quiz", "2", None, "Who rang?", ("The founder of it", "Jan"), "0", "", ("Who rang?",))


@pytest.mark.parametrize("seed", range(8))
def test_what_of_an_item_is_planted(seed: int) -> None:
    def planted(form: str, item: Item, passages: tuple[str, ...]) -> str | None:
        return passage_of(form, passages, item, DecontaminateConfig(), generator(seed))

    words = plain_words(LONG.parts[0])
    assert planted(ESCAPED, LONG, LONG.parts) == LONG.parts[0]
    assert planted(SHORT, LONG, LONG.parts) is planted(CHOICES, BRIEF, ()) is planted(INLINE, BRIEF, ()) is None
    assert set(plain_words("Who rang? The founder of it Jan")) <= set(plain_words(str(planted(SHORT, BRIEF, ()))))
    assert {"iron", "lead", *words} <= set(plain_words(str(planted(CHOICES, LONG, LONG.parts))))
    half = plain_words(str(planted(HALF, LONG, LONG.parts)))
    middle = (len(words) + 1) // 2
    assert half in (words[:middle], words[-middle:])
    assert planted(HALF, LONG, (ITEM[:60],)) is None
    typed = plain_words(str(planted(TYPOS, LONG, LONG.parts)))
    assert sum(a != b for a, b in zip(typed, words, strict=True)) == len(words) // 10
    numbered = plain_words(str(planted(NUMBERS, LONG, LONG.parts)))
    assert [a for a, b in zip(words, numbered, strict=True) if a != b] == ["12", "12"]
    for form in (HALF, TYPOS, NUMBERS, CHOICES):
        assert holds(str(planted(form, LONG, LONG.parts)), LONG)
    assert not holds(str(near_miss(LONG.parts[0], HOST, generator(seed))), LONG)


def test_typing_errors_and_numbers_by_hand() -> None:
    assert misspelt("a word", generator()) == "a wrod"
    assert misspelt("too few", generator()) is None
    assert misspelt(CHINESE, generator()) != CHINESE
    changed = renumbered("7 of 12, b12 of 345", generator())
    assert [len(word) for word in plain_words(changed)] == [1, 2, 2, 3, 2, 3]
    assert "b12" in changed
    assert changed != "7 of 12, b12 of 345"
