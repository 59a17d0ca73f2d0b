"""The terminal says where fewer examples were shown than were asked for, in the words that evaluate left."""

from flows.metrics.heldout import describe_few_shot_limits, describe_sampled_items
from tasks.evaluate.benchmarks.items import Item
from tasks.evaluate.benchmarks.prompts import Prompt, Response
from tasks.evaluate.benchmarks.run import TaskResponses


def row(shots: int, shown: list[int]) -> dict[str, object]:
    """One row of SCORES with the note of items that were shown so many examples each."""
    item = Item("1", "en", "the cat", ("sat", "lay"), 0, "the cat sat")
    answered = [Response(item, Prompt((1, 2), count, fits=True), (-1.0, -2.0)) for count in shown]
    asked = TaskResponses(
        "cloze", shots, answered, {}, requested=len(shown), evaluated=len(shown), available=len(shown)
    )
    note = "; ".join(["per chars", "chance 0.500", *asked.notes])
    return {"task": "cloze", "shots": shots, "note": note}


def test_shots_that_do_not_fit_are_reported_once_for_each_number() -> None:
    rows = [row(0, [0, 0, 0, 0]), row(1, [1, 1, 1, 1]), row(3, [1, 1, 1, 2]), row(3, [1, 1, 1, 2])]
    assert describe_few_shot_limits(rows) == (
        "cloze 3-shot shows 1.25 examples on average, for 4 of 4 items leave no room for more. A larger"
        " train.model.context holds more"
    )


def test_where_all_fit_nothing_is_reported() -> None:
    assert describe_few_shot_limits([row(0, [0, 0]), row(1, [1, 1]), {"task": "cloze", "shots": 3, "note": None}]) == ""


def test_items_that_were_drawn_are_reported_once_for_each_benchmark() -> None:
    asked = TaskResponses("cloze", 0, [], {}, requested=160, evaluated=160, available=1320)
    rows = [{"task": "cloze", "note": "; ".join(["per chars", *asked.notes])}] * 2
    assert describe_sampled_items([*rows, {"task": "pairs", "note": "per chars"}, {"task": "none", "note": None}]) == (
        "cloze 160 of 1,320 items, limited by its max_items"
    )
    assert describe_sampled_items([row(0, [0, 0])]) == ""
