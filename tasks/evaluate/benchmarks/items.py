"""Benchmark items: their choices in a shuffled order, the delimiter before an answer, and examples for few-shot
prompts.

Evaluation tools are known to show an item its own answer where examples come from the evaluated file. Here an item is
no example for another one with the same normalised text, nor for one with which it shares 13 words in a row (GPT-3's
measure of a leak, Brown et al. 2020, appendix C; in scripts without spaces a character is a word). Words that many
items share are their benchmark's template and do not count.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import blake3
import pyarrow as pa
import pyarrow.compute as pc
import regex

from tasks.common.numeric import seed64, unit_interval
from tasks.common.text import is_unspaced

UNSEGMENTED_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "yue", "wuu"})
_TIBETAN = range(0x0F00, 0x1000)
"""It has no spaces, and is not among the scripts of which a character is a word: a mark separates its syllables."""
NGRAM = 13
TEMPLATE_ITEMS = 20
"""An n-gram in more items than this, or in more than half of them, belongs to the benchmark's template."""
_RUNS = regex.compile(r"[^\W_]+")
"""Unlike in `re`, the marks of Indian, Arabic and other scripts are parts of a word."""


@dataclass(frozen=True)
class Item:
    """A benchmark item; `answer` is the index of the right choice. Without choices, the answer is the only one."""

    item_id: str
    lang: str | None
    context: str
    choices: tuple[str, ...]
    answer: int
    match_text: str
    free: bool = False
    """Whether the benchmark gives a free text instead of choices."""
    answers: tuple[str, ...] = ()
    """Every free text that is right; the one in `choices` is the first."""
    ending: str = ""
    """The text in which all choices end, where they differ in what precedes it (Winograd schemas)."""

    @property
    def continuations(self) -> tuple[str, ...]:
        """The choices as they follow the context, with the space before them where the language has one."""
        return tuple(delimiter(self.context, choice, self.lang) + choice for choice in self.choices)

    @property
    def solved(self) -> str:
        """Context and right answer, as an example shows them."""
        return self.context + self.continuations[self.answer]


def delimiter(context: str, choice: str, lang: str | None) -> str:
    """Return what separates context and choice: a space in scripts with spaces, else nothing.

    Without a language the script is that of the first letter of the choice, or of the last one of the context where the
    choice has none (`42`).
    """
    if not context or not choice or context[-1].isspace() or choice[0].isspace():
        return ""
    if lang is not None:
        return "" if lang.partition("-")[0].lower() in UNSEGMENTED_LANGUAGES else " "
    letter = ord(next(filter(str.isalpha, choice + context[::-1]), " "))
    return "" if is_unspaced(letter) or letter in _TIBETAN else " "


def items_of(table: pa.Table, benchmark: str) -> list[Item]:
    """Return the items of one benchmark from ITEMS."""
    return [_item(row) for row in table.filter(pc.equal(table.column("benchmark"), benchmark)).to_pylist()]


def _item(row: dict[str, Any]) -> Item:
    choices = tuple(row["choices"])
    answers = tuple(row.get("answers") or (row["answer"],))
    item_id = row["item_id"]
    if not choices:
        order, answer, choices = (0,), 0, answers[:1]
    else:
        # Of equally likely choices the first one counts, and some benchmarks list the right one first.
        order = choice_order(item_id, len(choices))
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


def choice_order(item_id: str, choices: int) -> tuple[int, ...]:
    """Return the numbers of an item's choices in an order that depends on its id alone."""
    draw = seed64(0, "evaluate", "order of choices", item_id)
    return tuple(sorted(range(choices), key=lambda number: (unit_interval(str(number).encode(), draw), number)))


def leak_states(runs: Sequence[pa.Table], benchmark: str) -> dict[str, str]:
    """Return the state of each item by the LEAKS of all runs whose text the model learnt; the items are those of the
    last run.

    A leak in one run makes an item leaked; it is clean where every run searched for it, else unmatchable.
    """
    states: list[dict[str, str]] = []
    for leaks in runs:
        mine = leaks.filter(pc.equal(leaks.column("benchmark"), benchmark))
        states.append(dict(zip(mine.column("item_id").to_pylist(), mine.column("state").to_pylist(), strict=True)))
    order = ("clean", "unmatchable", "leaked")
    return {item: max((of_run.get(item, "unmatchable") for of_run in states), key=order.index) for item in states[-1]}


def shuffle_items(items: Sequence[Item], benchmark: str, seed: int) -> list[Item]:
    """Return all items in a random order that depends on their ids and the seed alone."""
    draw = seed64(seed, "evaluate", "items", benchmark)
    return sorted(items, key=lambda item: (unit_interval(item.item_id.encode(), draw), item.item_id))


class ExamplePool:
    """Items of one benchmark as examples for each other, always offered in the same order.

    The last items come first: those beyond `max_items` are not evaluated themselves.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = list(reversed(items))
        self._marks = {item.item_id: _marks(item) for item in items}
        ngrams = {item.item_id: _ngrams(item) for item in items}
        counts = Counter(ngram for held in ngrams.values() for ngram in held)
        most = min(TEMPLATE_ITEMS, len(items) // 2)
        template = {ngram for ngram, count in counts.items() if count > max(1, most)}
        self._ngrams = {item_id: held - template for item_id, held in ngrams.items()}

    def examples(self, item: Item, shots: int) -> list[Item]:
        """Return the first `shots` items that are not `item` and share no text with it; fewer where the pool is too
        small."""
        marks, ngrams = self._marks[item.item_id], self._ngrams[item.item_id]
        chosen: list[Item] = []
        for other in self._items:
            if len(chosen) == shots:
                break
            if other.item_id == item.item_id or marks & self._marks[other.item_id]:
                continue
            if ngrams.isdisjoint(self._ngrams[other.item_id]):
                chosen.append(other)
        return chosen


def _marks(item: Item) -> frozenset[str]:
    texts = (item.context, item.solved, item.match_text)
    return frozenset(text for text in map(normalised, texts) if text)


def normalised(text: str) -> str:
    """Return a text for comparison only: NFKC, case-folded, letters and digits alone."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if character.isalnum())


def _ngrams(item: Item) -> set[bytes]:
    """Return digests of the 13-grams of question and answer, and of the text that is searched for in documents."""
    found: set[bytes] = set()
    for text in {item.solved, item.match_text}:
        words = words_of(text)
        for begin in range(len(words) - NGRAM + 1):
            ngram = "\x1f".join(words[begin : begin + NGRAM])
            found.add(blake3.blake3(ngram.encode()).digest(length=8))
    return found


def words_of(text: str) -> list[str]:
    """Return runs of letters, marks and digits after NFKC and case folding; in scripts without spaces, single
    characters with their marks."""
    words: list[str] = []
    for run in _RUNS.findall(unicodedata.normalize("NFKC", text).casefold()):
        if run.isascii():
            words.append(run)
        else:
            words += _split_characters(run)
    return words


def _split_characters(run: str) -> list[str]:
    words: list[str] = []
    within = False
    for character in run:
        if words and unicodedata.category(character).startswith("M"):
            words[-1] += character
            continue
        alone = is_unspaced(ord(character))
        if within and not alone:
            words[-1] += character
        else:
            words.append(character)
        within = not alone
    return words
