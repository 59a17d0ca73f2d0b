"""The validation split: whole groups, always the same, of each label its share."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.errors import InputError
from model.finetune.config import Task
from model.finetune.data import Example, split_validation


def task(kind: str) -> Task:
    names = ("question", "text") if kind == "span" else ("text",)
    return Task.model_validate({"name": kind, "kind": kind, "train": Path("x"), "fields": names, "answer": "answer"})


def labelled(**counts: int) -> list[Example]:
    """So many examples of each label, each a group of its own."""
    return [
        Example((f"{label} {number}",), label, group=f"{label} {number}")
        for label, count in counts.items()
        for number in range(count)
    ]


def test_whole_groups_are_held_out_and_more_examples_move_none_over() -> None:
    examples = [Example((f"question {n}", f"passage {n % 40}"), ("a",), group=f"passage {n % 40}") for n in range(400)]
    kept, out = split_validation(examples, 0.25, task("span"))
    assert len(kept) + len(out) == 400
    assert not {one.group for one in kept} & {one.group for one in out}
    assert 0.1 < len(out) / 400 < 0.4
    fewer, fewer_out = split_validation(examples[:200], 0.25, task("span"))
    assert set(fewer_out) <= set(out)
    assert set(fewer) <= set(kept)
    with pytest.raises(InputError, match="of 10 examples 0 would be held out"):
        split_validation(examples[:1] * 10, 1e-9, task("span"))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"yes": 90, "no": 10}, {"yes": 9, "no": 1}),
        ({"yes": 97, "no": 3}, {"yes": 10}),
        ({"a": 4, "b": 4, "c": 4}, {"a": 1}),  # 1.2 in all
        ({"a": 16, "b": 4, "c": 10}, {"a": 2, "c": 1}),  # 1.6, .4 and 1: the largest remainder is rounded up
        ({"common": 100, **{f"rare {n}": 1 for n in range(100)}}, {"common": 20}),  # the rare ones can give nothing
    ],
)
def test_each_label_gives_its_share(counts: dict[str, int], expected: dict[str, int]) -> None:
    kept, out = split_validation(labelled(**counts), 0.1, task("classification"))
    assert Counter(example.answer for example in out) == expected
    assert Counter(example.answer for example in kept) == Counter(counts) - Counter(expected)


@example([*(("a", number) for number in range(9)), ("b", 9), ("c", 0), ("c", 0)], 0.65)  # 6.5 groups of ten
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), min_size=12, max_size=80), st.floats(0.05, 0.9))
def test_no_group_is_on_both_sides_and_no_label_is_held_out_as_a_whole(
    drawn: list[tuple[str, int]], share: float
) -> None:
    examples = [Example((f"{group}",), label, group=f"{group}") for label, group in drawn]
    try:
        kept, out = split_validation(examples, share, task("classification"))
    except InputError:
        assert len({example.group for example in examples}) <= 3  # each label's only one
        return
    assert Counter(kept) + Counter(out) == Counter(examples)
    groups, left = ({example.group for example in side} for side in (kept, out))
    assert not groups & left
    assert split_validation(examples[::-1], share, task("classification"))[1][::-1] == out


def test_a_group_of_two_labels_counts_for_the_more_frequent() -> None:
    mixed = [Example((f"{number}",), label, group="one") for number, label in enumerate(["no", "no", "yes"])]
    kept, out = split_validation([*labelled(yes=20), *mixed], 0.1, task("classification"))
    assert not [example for example in out if example.group == "one"]
    assert len(out) == 2
    assert len(kept) == 21
