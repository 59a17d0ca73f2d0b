"""Cloze items made from texts: twenty words of a passage, and four phrases of which one goes on.

The wrong phrases are the endings of other passages of the same kind, so that grammar and style alone don't tell.
Items depend on the texts and the seed alone.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tasks.seed import seed64

CONTEXT_WORDS = 20
ENDING_WORDS = 8
CHOICES = 4
MOST_PER_TEXT = 2
PROSE_SHARE = 0.85
"""Share of a passage's words that must be letters with at most a punctuation mark behind them."""

_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*[.,;:)]?")


@dataclass(frozen=True)
class Passage:
    """The first words of a paragraph of prose, in one line; `text` names the text it stands in."""

    text: str
    context: str
    ending: str

    @property
    def whole(self) -> str:
        """Context and ending together, as they stand in the text."""
        return f"{self.context} {self.ending}"


def passages(name: str, text: str) -> Iterator[Passage]:
    """The passages of one text: the beginning of every paragraph that is long enough and reads as prose."""
    for paragraph in re.split(r"\n\s*\n", text):
        words = paragraph.split()[: CONTEXT_WORDS + ENDING_WORDS]
        plain = sum(1 for word in words if _PLAIN_WORD.fullmatch(word))
        if len(words) == CONTEXT_WORDS + ENDING_WORDS and plain >= PROSE_SHARE * len(words) and _is_sentence(words):
            yield Passage(name, " ".join(words[:CONTEXT_WORDS]), " ".join(words[CONTEXT_WORDS:]))


def choose(found: Iterable[Passage], count: int, seed: int) -> list[Passage]:
    """`count` different passages, at most two of one text, in an order that only the seed decides."""
    chosen: list[Passage] = []
    wholes: set[str] = set()
    per_text: Counter[str] = Counter()
    for passage in sorted(found, key=lambda passage: (seed64(seed, "cloze", "choose", passage.whole), passage.text)):
        if len(chosen) == count:
            break
        if passage.whole not in wholes and per_text[passage.text] < MOST_PER_TEXT:
            chosen.append(passage)
            wholes.add(passage.whole)
            per_text[passage.text] += 1
    return chosen


def items(kind: str, chosen: list[Passage], seed: int) -> list[dict[str, Any]]:
    """One benchmark item a passage, ids `KIND-000` on; needs at least four passages with different endings."""
    endings = sorted({passage.ending for passage in chosen})
    assert len(endings) >= CHOICES, f"{kind}: {len(endings)} different endings cannot fill {CHOICES} choices"
    made: list[dict[str, Any]] = []
    for number, passage in enumerate(chosen):
        key = f"{kind}-{number:03d}"
        others = sorted(
            (ending for ending in endings if ending != passage.ending),
            key=lambda ending: seed64(seed, "cloze", key, ending),
        )
        answer = seed64(seed, "cloze", "answer", key) % CHOICES
        choices = others[: CHOICES - 1]
        choices.insert(answer, passage.ending)
        made.append(
            {
                "id": key,
                "context": passage.context,
                "choices": choices,
                "answer": answer,
                "match_text": passage.whole,
                "lang": "en",
            }
        )
    return made


def _is_sentence(words: list[str]) -> bool:
    return words[0][:1].isupper() and len({word.lower() for word in words}) >= len(words) // 2
