"""Scanning: seeds and alignments against brute force, what is a match and what is not, the places in the document."""

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import InputError
from tasks.artifacts.tables.columns import text_buffers
from tasks.decontaminate import ngrams, scan
from tasks.decontaminate.benchmarks import Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.leaks import Region, find_leaks, matchable_items, measure_rarity
from tasks.decontaminate.ngrams import build_index
from tasks.decontaminate.scan import scan_texts
from tests.tasks.decontaminate.plain_words import fold_words

CONFIG = DecontaminateConfig()
QUESTION = "Which metal did the workers of Utrecht pour into twelve moulds before the evening bell rang?"
HOST = "The furnace was lit at dawn, and nobody slept. "
END = " Then the iron ran until noon."


def item(text: str, number: int = 0, choices: Sequence[str] = (), answers: Sequence[str] = ()) -> Item:
    return Item("quiz", str(number), None, text, tuple(choices), "0", text, (text,), tuple(answers))


def leaks(texts: Sequence[str], items: Sequence[Item], config: DecontaminateConfig = CONFIG) -> dict[int, list[Region]]:
    index = build_index(items, config)
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    found = scan_texts(data, offsets, index, config)
    rarity = measure_rarity([(found.seeds, found.documents)], len(texts), config)
    return find_leaks(index, found.stretches, rarity)


def forms(passage: str, *items: Item) -> list[str]:
    return [region.form for region in leaks([HOST + passage + END], items).get(0, ())]


def prose(generator: random.Random, words: int) -> str:
    return " ".join(f"w{generator.randrange(2000)}" for _ in range(words))


@given(st.integers(0, 2**32), st.integers(13, 60), st.integers(0, 47))
@settings(deadline=None, max_examples=60)
def test_every_run_of_thirteen_words_is_found_at_its_place(seed: int, width: int, begin: int) -> None:
    generator = random.Random(seed)
    words = prose(generator, 60).split()
    passage = " ".join(words[begin : begin + width])
    # Of words as short as these none is taken for another with typing errors, which would add it to the passage.
    host = " ".join(f"h{generator.randrange(100)}" for _ in range(40))
    found = leaks([f"{host} {passage} {host}"], [item(" ".join(words))]).get(0, [])
    if len(passage.split()) < 13:
        return
    (region,) = found
    assert (region.start, region.end) == (len(host) + 1, len(host) + 1 + len(passage))
    assert region.matched == len(passage.split())


@pytest.mark.parametrize(("changed", "form"), [((), "verbatim"), ((9,), "verbatim"), ((6, 12), "similar")])
def test_an_item_of_which_nineteen_words_in_twenty_are_there_is_whole(changed: tuple[int, ...], form: str) -> None:
    words = prose(random.Random(1), 20).split()
    assert forms(
        " ".join("other" if n in changed else word for n, word in enumerate(words)), item(" ".join(words))
    ) == [form]


def test_finds_items_inside_long_documents_of_random_words_and_nothing_else() -> None:
    generator = random.Random(3)
    items = [item(prose(generator, 30), number) for number in range(300)]
    texts = []
    for number in range(50):
        words = prose(generator, 500).split()
        if number % 2:
            words[100:100] = items[number].match_text.upper().split()
        texts.append(" ".join(words))
    found = leaks(texts, items)
    assert {row: [(region.item, region.matched) for region in regions] for row, regions in found.items()} == {
        row: [(row, 30)] for row in range(1, 50, 2)
    }


@pytest.mark.parametrize(
    ("passage", "form"),
    [
        (QUESTION, "verbatim"),
        (QUESTION.upper().replace(" ", "\n> "), "verbatim"),
        (QUESTION.replace("metal", "mteal").replace("evening", "evenig"), "verbatim"),
        (QUESTION.replace("metal", "alloy"), "ngram"),
        (QUESTION.replace("workers of Utrecht", "workers near old Utrecht").replace("evening", "loud"), "similar"),
        (QUESTION[: QUESTION.index("twelve")], "half"),
        (QUESTION.replace(" ", r"\n"), "verbatim"),
        (QUESTION.replace("evening", r"\textbf{evening}"), "verbatim"),
    ],
)
def test_copies_with_changes_are_found(passage: str, form: str) -> None:
    assert forms(passage, item(QUESTION)) == [form]


@pytest.mark.parametrize(
    "passage",
    [
        " ".join(reversed(QUESTION.split())),
        "Which metal did the workers of Utrecht choose?",
        "They were asked to stop before the evening bell rang, as always.",
        "",
    ],
)
def test_the_same_words_in_another_order_and_phrases_are_no_leak(passage: str) -> None:
    assert forms(passage, item(QUESTION)) == []


def test_numbers_may_differ_and_are_no_evidence_by_themselves() -> None:
    sums = "Ann has 12 pears and gives 5 of them to each of her 2 friends. How many are left?"
    assert forms(sums.replace("12", "340").replace("5", "71"), item(sums)) == ["verbatim"]
    assert (
        forms("Evaluate 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", item("Compute 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15")) == []
    )


def test_short_parts_are_evidence_only_together_in_any_order() -> None:
    short = item("Who cast the bell?", choices=("Jan the Elder", "Piet the Younger"))
    assert forms("Who cast the bell?", short) == []
    assert forms("Jan the Elder", short) == []
    assert forms("Who cast the bell? A. Piet the Younger B. Jan the Elder", short) == ["together"]
    assert forms("(1) Jan the Elder (2) Piet the Younger. Who cast the bell?", short) == ["together"]
    free = item("Who cast the bell?", answers=("Jan the Elder",))
    assert forms("Who cast the bell? Jan the Elder.", free) == ["together"]


def test_a_short_question_of_long_words_is_evidence_where_it_is_rare() -> None:
    rare = item("Metallurgists misunderstood superheated crucibles.")
    assert forms("Metallurgists misunderstood superheated crucibles.", rare) == ["short"]
    texts = [f"{number} {HOST} Metallurgists misunderstood superheated crucibles." for number in range(11)]
    assert leaks(texts, [rare]) == {}


def test_a_choice_is_evidence_from_ten_words_on() -> None:
    long = "because the moulds had cooled overnight and cracked along every seam"
    assert forms(long, item("Why did it fail?", choices=(long, "no"))) == ["verbatim"]
    assert forms(long[: long.index(" along")], item("Why did it fail?", choices=(long[: long.index(" along")],))) == []


def test_the_stem_of_many_items_is_no_evidence() -> None:
    stem = "Which of the following best describes the main purpose of the"
    items = [item(f"{stem} w{number} x{number} y{number}?", number) for number in range(30)]
    assert leaks([f"{HOST}{stem} essay? {END}"], items) == {}
    assert [region.item for region in leaks([f"{HOST}{stem} w7 x7 y7? {END}"], items)[0]] == [7]


def test_words_of_many_items_are_no_evidence_in_any_order() -> None:
    generator = random.Random(6)
    usual = [f"u{number}" for number in range(40)]
    items = [item(" ".join(generator.sample(usual, 30)), number) for number in range(500)]
    items += [item(" ".join(f"r{number}x{place}" for place in range(30)), 500 + number) for number in range(5000)]
    puzzle, rare = items[7].match_text.split(), items[600].match_text.split()
    assert leaks([f"{HOST}{' '.join(puzzle[:14])}{END}", f"{HOST}{' '.join(rare[:14])}{END}"], items).keys() == {1}
    assert [region.item for region in leaks([f"{HOST}{items[7].match_text}{END}"], items)[0]] == [7]


def test_a_short_question_is_no_leak_with_other_numbers() -> None:
    short = item("Find the value of 6 * 24 / (8 - 5).")
    assert forms("Find the value of 6 * 24 / (8 - 5).", short) == ["verbatim"]
    assert forms("Find the value of 11 * 20 / (7 - 3).", short) == []


def test_a_passage_of_many_questions_is_one_text() -> None:
    passage = prose(random.Random(5), 60)
    items = [
        Item("quiz", str(n), None, passage, (), "x", f"{passage}\nq{n} r{n}", (passage, f"q{n} r{n}"), ("x",))
        for n in range(30)
    ]
    assert len(leaks([HOST + passage], items)[0]) == 30


def test_phrases_in_many_documents_count_less_than_rare_ones() -> None:
    texts = [f"{number} {HOST}{QUESTION[: QUESTION.index('twelve')]}" for number in range(11)]
    assert leaks(texts[:1], [item(QUESTION)])[0][0].form == "half"
    assert leaks(texts, [item(QUESTION)]) == {}


def test_places_are_bytes_of_the_document_whatever_the_escapes() -> None:
    text = f"«о» {QUESTION.replace('Utrecht', 'Utr&#101;cht').replace(' ', chr(92) + 'n')} конец"
    (region,) = leaks([text], [item(QUESTION)])[0]
    found = text.encode()[region.start : region.end].decode()
    assert [word.text for word in fold_words(found)] == [word.text for word in fold_words(QUESTION)]


def test_no_benchmarks_and_empty_texts_are_no_matches() -> None:
    assert leaks(["a b c"], []) == leaks([], [item(QUESTION)]) == leaks(["", ""], [item(QUESTION)]) == {}
    assert leaks(["a b c"], [item("")]) == {}


def test_more_matches_than_the_first_capacity_are_all_found() -> None:
    text = " ".join(QUESTION if number % 2 else prose(random.Random(number), 70) for number in range(3000))
    assert len(leaks([text, "nothing here"], [item(QUESTION)])[0]) == 1500


@pytest.mark.parametrize("capacity", [1, 2, 3, 5])
def test_a_text_at_which_the_capacity_ends_has_the_same_matches(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{HOST}{QUESTION} {prose(random.Random(n), 70)} {QUESTION}" for n in range(9)]
    expected = leaks(texts, [item(QUESTION)])
    assert [region.matched for region in expected[8]] == [16, 16]
    monkeypatch.setattr(scan, "_FIRST_FOUND", capacity)
    assert leaks(texts, [item(QUESTION)]) == expected


def test_which_items_can_be_found_at_all() -> None:
    items = [
        item("too short"),
        item("seven words are just enough for this"),
        item("Short?", choices=("only", "one", "word", "each", "but", "seven of them")),
        item("!!!"),
        item("1 2 3 4 5 6 7 8"),
    ]
    assert matchable_items(build_index(items, CONFIG), CONFIG).tolist() == [False, True, True, False, False]


def test_rarity_is_the_same_whatever_the_parts() -> None:
    parts = [(np.array([1, 4]), np.array([2, 1])), (np.array([4, 9]), np.array([3, 20]))]
    rarity = measure_rarity(parts, 100, CONFIG)
    assert (rarity.seeds.tolist(), rarity.documents.tolist(), rarity.limit) == ([1, 4, 9], [2, 4, 20], 10)
    assert rarity.weights(np.array([0, 9])).tolist() == [0.0, 0.0]
    assert rarity.with_seen(np.array([0, 1])).weights(np.array([0]))[0] == 1.0


def test_a_word_of_one_item_in_32768_has_fifteen_bits_and_a_number_none() -> None:
    items = [item(f"only{number} shared{number // 2} every {number}", number) for number in range(1 << 15)]
    index = build_index(items, CONFIG)
    bits = [
        [index.information_of(np.array([place])) for place in index.words_of(number)[0][0] + np.arange(4)]
        for number in range(500)
    ]
    only, shared, every, digits = np.mean(bits, axis=0)
    # Words whose hashes agree in 18 bits are counted together: one in four has such a neighbour.
    assert 14.5 < only < 15
    assert 13.5 < shared < 14
    assert every == pytest.approx(0, abs=0.01)
    assert digits == 0


def test_items_of_more_words_than_have_a_place_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    count = build_index([item(QUESTION)], CONFIG).words.size
    monkeypatch.setattr(ngrams, "MOST_WORDS", count)
    assert build_index([item(QUESTION)], CONFIG).words.size == count
    with pytest.raises(InputError, match=f"have {2 * count} words, and at most {count} can be searched for at once"):
        build_index([item(QUESTION), item(QUESTION, 1)], CONFIG)
