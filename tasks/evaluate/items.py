"""Benchmark items as they are asked: their choices in an order of their own, and what stands before an answer."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.seed import seed64, unit_interval

LANGUAGES_WITHOUT_BLANKS = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "yue", "wuu"})
SCRIPTS_WITHOUT_BLANKS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "IDEOGRAPHIC")


@dataclass(frozen=True)
class Item:
    """A benchmark item; `answer` is the index of the right choice. Without choices the answer is the only one."""

    item_id: str
    lang: str | None
    context: str
    choices: tuple[str, ...]
    answer: int
    match_text: str
    free: bool = False
    """The benchmark gives a free text instead of choices."""
    answers: tuple[str, ...] = ()
    """Every free text that is right, the one that stands in `choices` first."""
    ending: str = ""
    """What all choices end in, where they differ in what comes before it (Winograd schemas)."""

    @property
    def continuations(self) -> tuple[str, ...]:
        """The choices as they follow the context, with the blank between where the language has one."""
        return tuple(delimiter(self.context, choice, self.lang) + choice for choice in self.choices)

    @property
    def solved(self) -> str:
        """Context and right answer, as an example shows them."""
        return self.context + self.continuations[self.answer]


def delimiter(context: str, choice: str, lang: str | None) -> str:
    """What stands between context and choice: a blank in scripts with blanks, else nothing."""
    if not context or not choice or context[-1].isspace() or choice[0].isspace():
        return ""
    if lang is not None:
        return "" if lang.partition("-")[0].lower() in LANGUAGES_WITHOUT_BLANKS else " "
    script = unicodedata.name(choice[0], "")
    return "" if script.startswith(SCRIPTS_WITHOUT_BLANKS) else " "


def items_of(table: pa.Table, benchmark: str) -> list[Item]:
    """The items of one benchmark from ITEMS."""
    return [_item(row) for row in table.to_pylist() if row["benchmark"] == benchmark]


def _item(row: dict[str, Any]) -> Item:
    choices = tuple(row["choices"])
    answers = tuple(row.get("answers") or (row["answer"],))
    item_id = row["item_id"]
    if not choices:
        order, answer, choices = (0,), 0, answers[:1]
    else:
        # Of choices that are equally likely the first counts, and some benchmarks list the right one first.
        order = in_order_of_their_own(item_id, len(choices))
        answer, answers = order.index(int(row["answer"])), (choices[int(row["answer"])],)
    return Item(
        item_id=item_id,
        lang=row["lang"],
        context=row["context"],
        choices=tuple(choices[number] for number in order),
        answer=answer,
        match_text=row["match_text"],
        free=not row["choices"],
        answers=answers,
        ending=row.get("ending") or "",
    )


def in_order_of_their_own(item_id: str, choices: int) -> tuple[int, ...]:
    """The numbers of an item's choices in an order that depends on its id alone."""
    draw = seed64(0, "evaluate", "order of choices", item_id)
    return tuple(sorted(range(choices), key=lambda number: (unit_interval(str(number).encode(), draw), number)))


def leak_states(leaks: pa.Table, benchmark: str) -> dict[str, str]:
    """Item id -> leaked, clean or unmatchable; one leak makes an item leaked."""
    states: dict[str, str] = {}
    for row in leaks.select(["benchmark", "item_id", "state"]).to_pylist():
        if row["benchmark"] == benchmark and states.get(row["item_id"]) != "leaked":
            states[row["item_id"]] = row["state"]
    return states


def chosen_items(items: Sequence[Item], benchmark: str, seed: int) -> list[Item]:
    """All items in a random order that depends on their ids alone."""
    draw = seed64(seed, "evaluate", "items", benchmark)
    return sorted(items, key=lambda item: (unit_interval(item.item_id.encode(), draw), item.item_id))
