"""Compare two texts by words: segments that both have, and segments that were removed or added."""

import difflib
import re
from typing import TypedDict

SAME, REMOVED, ADDED, SHARED = "same", "removed", "added", "shared"

ODD_PIECE, EVEN_PIECE = "odd piece", "even piece"
"""Kinds of neighbouring tokens, which differ only so that they can be coloured in turn."""

UNKNOWN_PIECE = "unknown piece"
"""Kind of a token that does not preserve its text."""

MAX_WORDS = 4000
"""Words compared on each side; the comparison takes quadratic time for texts that differ much."""

MIN_SHARED_WORDS = 5

WORD = re.compile(r"\s+|[^\W_]+|.", re.DOTALL)

Segments = list[tuple[str, str]]
"""(kind, text) in order."""


class TokenizedText(TypedDict):
    """A text as tokens of a vocabulary; `unknown` counts those that lose their text, which is shown in their place."""

    title: str
    segments: Segments
    pieces: list[str]
    ids: list[int]
    unknown: int


def inline_difference(before: str, after: str) -> Segments:
    """Return the segments of both texts: without the added ones they are `before`, without the removed ones `after`.

    Long texts are compared by lines, which is fast, and the first lines that differ, of MAX_WORDS in all, by words.
    """
    old, new = WORD.findall(before), WORD.findall(after)
    is_long = len(old) > MAX_WORDS or len(new) > MAX_WORDS
    if is_long:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    segments: Segments = []
    left = MAX_WORDS if is_long else 0
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=is_long).get_opcodes():
        if what == "equal":
            segments.append((SAME, "".join(old[a:b])))
            continue
        removed, added = "".join(old[a:b]), "".join(new[c:d])
        words = max(len(WORD.findall(removed)), len(WORD.findall(added)))
        if removed and added and words <= left:
            left -= words
            segments += inline_difference(removed, added)
        else:
            segments += [(kind, text) for kind, text in ((REMOVED, removed), (ADDED, added)) if text]
    return segments


def shared_passages(text: str, other: str) -> Segments:
    """Return the segments of `text`, with the passages of five words or more that `other` shares marked."""
    old, new = WORD.findall(text)[:MAX_WORDS], WORD.findall(other)[:MAX_WORDS]
    segments: Segments = []
    position = 0
    for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        words = old[block.a : block.a + block.size]
        if sum(not word.isspace() for word in words) < MIN_SHARED_WORDS:
            continue
        segments += [(SAME, "".join(old[position : block.a]))] if block.a > position else []
        segments.append((SHARED, "".join(words)))
        position = block.a + block.size
    rest = "".join(old[position:])
    tail = text[sum(map(len, old)) :]
    return [*segments, (SAME, rest + tail)] if rest or tail else segments
