"""Prompts: an instruction, solved examples, the item; and which examples an item may see.

An item is never an example for itself, nor is another item with the same text after normalising (known trouble of
evaluation tools). What does not fit into the window loses whole examples from the front, never the question.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.seed import seed64, unit_interval
from tasks.tokenizer import Tokenizer

LANGUAGES_WITHOUT_BLANKS = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "yue", "wuu"})
SCRIPTS_WITHOUT_BLANKS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "IDEOGRAPHIC")
BETWEEN = "\n\n"


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

    @property
    def continuations(self) -> tuple[str, ...]:
        """The choices as they follow the context, with the blank between where the language has one."""
        return tuple(delimiter(self.context, choice, self.lang) + choice for choice in self.choices)

    @property
    def solved(self) -> str:
        """Context and right answer, as an example shows them."""
        return self.context + self.continuations[self.answer]


@dataclass(frozen=True)
class Prompt:
    """Token ids before the continuation, and how many examples are in them."""

    ids: tuple[int, ...]
    shots: int
    fits: bool
    """Whether context and longest continuation fit into the window without cutting the item itself."""


def delimiter(context: str, choice: str, lang: str | None) -> str:
    """What stands between context and choice: a blank in scripts with blanks, else nothing."""
    if not context or not choice or context[-1].isspace() or choice[0].isspace():
        return ""
    if lang is not None:
        return "" if lang.partition("-")[0].lower() in LANGUAGES_WITHOUT_BLANKS else " "
    script = unicodedata.name(choice[0], "")
    return "" if script.startswith(SCRIPTS_WITHOUT_BLANKS) else " "


def normalised(text: str) -> str:
    """For comparing only: NFKC, case folded, letters and digits alone."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if character.isalnum())


def chosen_items(items: Sequence[Item], benchmark: str, seed: int) -> list[Item]:
    """All items in a random order that depends on their ids alone."""
    draw = seed64(seed, "evaluate", "items", benchmark)
    return sorted(items, key=lambda item: (unit_interval(item.item_id.encode(), draw), item.item_id))


class ExamplePool:
    """Items of one benchmark as examples for each other, always offered in the same order.

    The last items come first: those beyond `max_items` are not evaluated themselves.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = list(reversed(items))
        self._marks = [_marks(item) for item in self._items]

    def examples(self, item: Item, shots: int) -> list[Item]:
        """The first `shots` items that are not `item` and do not share its text; fewer when the pool is too small."""
        marks = _marks(item)
        chosen: list[Item] = []
        for other, other_marks in zip(self._items, self._marks, strict=True):
            if len(chosen) == shots:
                break
            if other.item_id != item.item_id and not marks & other_marks:
                chosen.append(other)
        return chosen


def _marks(item: Item) -> frozenset[str]:
    texts = (item.context, item.solved, item.match_text)
    return frozenset(text for text in map(normalised, texts) if text)


def build_prompt(item: Item, examples: Sequence[Item], tokenizer: Tokenizer, *, instruction: str, room: int) -> Prompt:
    """The prompt with as many examples as leave its tokens within `room`; starts with the end of text.

    The first example stands next to the question and the last one in front, so that what is dropped from the front
    for want of room is what fewer shots would not have shown either. Context and continuation are encoded apart, so
    that the tokens of the one never reach into the other.
    """
    opening = instruction + BETWEEN if instruction else ""
    shown = list(reversed(examples))
    while True:
        solved = "".join(example.solved + BETWEEN for example in shown)
        ids = (tokenizer.eos, *tokenizer.encode(opening + solved + item.context))
        if len(ids) <= room or not shown:
            return Prompt(ids, len(shown), len(ids) <= room)
        shown.pop(0)
