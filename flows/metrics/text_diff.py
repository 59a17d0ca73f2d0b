"""Two texts as one: stretches that stayed, went and came, by words and the blanks between them."""

import difflib
import re

SAME, REMOVED, ADDED, SHARED = "same", "removed", "added", "shared"

ODD_PIECE, EVEN_PIECE = "odd piece", "even piece"
"""Neighbours in a row of pieces, told apart by nothing but their turn."""

UNKNOWN_PIECE = "unknown piece"
"""A token that loses the text it stands for."""

MOST_WORDS = 4000
"""Words compared at most on each side: the comparison takes quadratic time where texts differ much."""

LEAST_SHARED_WORDS = 5

_WORDS = re.compile(r"\s+|[^\W_]+|.", re.DOTALL)

Segments = list[tuple[str, str]]
"""(kind, text) in order."""


def inline_difference(before: str, after: str) -> Segments:
    """The segments of `before` and `after`: without the added ones they give `before`, without the removed `after`."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    if len(old) > MOST_WORDS or len(new) > MOST_WORDS:
        return _by_ends(before, after)
    segments: Segments = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            segments.append((SAME, "".join(old[a:b])))
            continue
        if b > a:
            segments.append((REMOVED, "".join(old[a:b])))
        if d > c:
            segments.append((ADDED, "".join(new[c:d])))
    return segments


def _by_ends(before: str, after: str) -> Segments:
    """Long texts by lines, which is coarse and fast."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    segments: Segments = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=True).get_opcodes():
        if what == "equal":
            segments.append((SAME, "".join(old[a:b])))
            continue
        segments += [(REMOVED, "".join(old[a:b]))] if b > a else []
        segments += [(ADDED, "".join(new[c:d]))] if d > c else []
    return segments


def shared_passages(text: str, other: str) -> Segments:
    """`text` with the passages marked that also stand in `other`, from five words on."""
    old, new = _WORDS.findall(text)[:MOST_WORDS], _WORDS.findall(other)[:MOST_WORDS]
    segments: Segments = []
    position = 0
    for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        words = old[block.a : block.a + block.size]
        if sum(not word.isspace() for word in words) < LEAST_SHARED_WORDS:
            continue
        segments += [(SAME, "".join(old[position : block.a]))] if block.a > position else []
        segments.append((SHARED, "".join(words)))
        position = block.a + block.size
    rest = "".join(old[position:])
    tail = text[sum(map(len, old)) :]
    return [*segments, (SAME, rest + tail)] if rest or tail else segments
