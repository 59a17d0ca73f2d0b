"""Cloze items: the right phrase goes on, the wrong ones come from elsewhere, and only text and seed decide."""

from flows.recipe.quickstart import CHOICES, CONTEXT_WORDS, ENDING_WORDS, choose, items, passages

WORDS = [f"{first}{second}" for first in ("al", "be", "co", "du", "en", "fo", "gi") for second in "abcdefghij"]


def prose(start: int, count: int = CONTEXT_WORDS + ENDING_WORDS) -> str:
    """`count` different words from a rotation of WORDS, the first one capitalised."""
    rotated = WORDS[start:] + WORDS[:start]
    return " ".join([rotated[0].capitalize(), *rotated[1:count]])


def test_a_passage_is_twenty_words_and_the_eight_that_follow():
    (passage,) = passages("page", prose(0, 60))
    assert passage.context.split() == ["Ala", *WORDS[1:20]]
    assert passage.ending.split() == WORDS[20:28]


def test_line_breaks_within_a_paragraph_do_not_matter():
    broken = prose(0).replace(" ", "\n    ")
    assert list(passages("page", broken)) == list(passages("page", prose(0)))


def test_short_paragraphs_code_and_lower_case_beginnings_give_no_passage():
    code = " ".join(["x = [1]"] * 50)
    assert not list(passages("page", "\n\n".join([prose(0, 27), code, prose(0).lower()])))


def test_equal_passages_are_chosen_once_and_a_text_gives_at_most_two():
    many = "\n\n".join(prose(start) for start in range(5))
    chosen = choose([*passages("a", many), *passages("b", prose(0))], count=10, seed=1)
    assert len({passage.whole for passage in chosen}) == len(chosen)
    assert sum(passage.text == "a" for passage in chosen) == 2


def test_the_answer_names_the_true_ending_and_the_passage_is_what_decontamination_matches():
    chosen = choose((p for start in range(8) for p in passages(f"text {start}", prose(start))), count=8, seed=1)
    by_context = {passage.context: passage for passage in chosen}
    made = items("page", chosen, seed=1)
    assert [item["id"] for item in made] == [f"page-{number:03d}" for number in range(8)]
    for item in made:
        passage = by_context[item["context"]]
        assert item["choices"][item["answer"]] == passage.ending
        assert len(set(item["choices"])) == CHOICES
        assert item["match_text"] == passage.whole


def test_the_order_of_texts_does_not_matter_and_the_seed_does():
    found = [p for start in range(20) for p in passages(f"text {start}", prose(start))]
    forwards, backwards = choose(found, 10, seed=1), choose(reversed(found), 10, seed=1)
    assert items("page", forwards, seed=1) == items("page", backwards, seed=1)
    assert choose(found, 10, seed=2) != forwards
