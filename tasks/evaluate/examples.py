"""Which items may stand as solved examples before another: never itself, nor one that gives its text away.

Evaluation tools are known to show an item its own answer where examples come from the evaluated file. Here an item is
no example for another with the same text after normalising, nor for one with which it shares 13 words in a row (GPT-3's
measure of a leak, Brown et al. 2020, appendix C; a character is a word in scripts without blanks). Words that many
items share are their benchmark's form of asking, and tell nothing.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import blake3

from tasks.evaluate.items import SCRIPTS_WITHOUT_BLANKS, Item

NGRAM = 13
TEMPLATE_ITEMS = 20
"""An n-gram in more items than this, or in more than half of them, is the benchmark's form of asking."""
_RUNS = re.compile(r"[^\W_]+")


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
        """The first `shots` items that are not `item` and give none of its text; fewer when the pool is too small."""
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


def normalised(text: str) -> str:
    """For comparing only: NFKC, case folded, letters and digits alone."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if character.isalnum())


def words_of(text: str) -> list[str]:
    """Runs of letters and digits after NFKC and case folding; in scripts without blanks each character by itself."""
    words: list[str] = []
    for run in _RUNS.findall(unicodedata.normalize("NFKC", text).casefold()):
        if run.isascii():
            words.append(run)
        else:
            words += _characters_apart(run)
    return words


def _characters_apart(run: str) -> list[str]:
    words: list[str] = []
    within = False
    for character in run:
        alone = unicodedata.name(character, "").startswith(SCRIPTS_WITHOUT_BLANKS)
        if within and not alone:
            words[-1] += character
        else:
            words.append(character)
        within = not alone
    return words


def _marks(item: Item) -> frozenset[str]:
    texts = (item.context, item.solved, item.match_text)
    return frozenset(text for text in map(normalised, texts) if text)


def _ngrams(item: Item) -> set[bytes]:
    """Digests of the 13-grams of what is asked and answered, and of what is looked for in documents."""
    found: set[bytes] = set()
    for text in {item.solved, item.match_text}:
        words = words_of(text)
        for begin in range(len(words) - NGRAM + 1):
            ngram = "\x1f".join(words[begin : begin + NGRAM])
            found.add(blake3.blake3(ngram.encode()).digest(length=8))
    return found
