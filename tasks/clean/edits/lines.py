"""Edits that look at a document line by line: repeated lines, and the lines that C4 leaves out.

C4: Raffel et al. 2020, section 2.2. Ends of sentences in Chinese, Japanese, Hindi and Arabic count as ends too.

The kernel behind C4's edit on short lines.
"""

import functools
import itertools
import re

import numpy as np

from tasks.clean.batch import REWRITTEN, Texts
from tasks.clean.document import About
from tasks.clean.kernels.characters import (
    BLANK,
    CHINESE_JAPANESE_UNIT,
    MARK,
    PARTS_SPACELESS,
    SPACELESS,
    UNITS_PER_WORD,
    character_flags,
    decode,
    flags_of,
)
from tasks.clean.kernels.prefilter import SPACELESS_SCRIPT
from tasks.common.kernels import kernel

_ENDS = tuple(".!?\"'”’»。！？…」』؟۔।")

_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")

_JAVASCRIPT = ("javascript",)

_CITATIONS = re.compile(r"\[(?:\d{1,3}|edit|citation needed)\]")


def collapse_repeated_lines(text: str, about: About, run: float = 3) -> str:
    """A line that stands `run` or more times in a row stands once; blank lines do not count as repeated."""
    del about
    lines = text.split("\n")
    if not any(line == after and line.strip() for line, after in itertools.pairwise(lines)):
        return text
    kept: list[str] = []
    begin = 0
    for end in range(1, len(lines) + 1):
        if end < len(lines) and lines[end] == lines[begin]:
            continue
        repeated = end - begin >= run and lines[begin].strip()
        kept += lines[begin : begin + 1] if repeated else lines[begin:end]
        begin = end
    return "\n".join(kept)


def remove_citations(text: str, about: About) -> str:
    """Markers such as `[12]`, `[edit]` and `[citation needed]` go."""
    del about
    return _CITATIONS.sub("", text)


def remove_javascript_lines(text: str, about: About) -> str:
    """Lines that speak of JavaScript go; on the web they mostly ask to switch it on."""
    del about
    return _keep(text, lambda line: not _speaks_of(_JAVASCRIPT, line))


def remove_policy_lines(text: str, about: About) -> str:
    """Lines that speak of terms of use, privacy or cookies go."""
    del about
    return _keep(text, lambda line: not _speaks_of(_POLICIES, line))


def remove_unfinished_lines(text: str, about: About) -> str:
    """Lines that do not end as a sentence or a quotation ends go; blank lines stay."""
    del about
    return _keep(text, lambda line: line.endswith(_ENDS) or not line or line.isspace() or line.rstrip().endswith(_ENDS))


def remove_short_lines(text: str, about: About, words: float = 5) -> str:
    """Lines of fewer than `words` words go; blank lines stay."""
    del about
    texts = Texts.of([text])
    rewrite_short_lines(texts, np.zeros(1, np.int64), words)
    return texts.text(0)


def rewrite_short_lines(texts: Texts, rows: np.ndarray, words: float) -> tuple[np.ndarray, np.ndarray]:
    """`remove_short_lines` of many texts, as `Texts.rewrite` gives it."""
    spaceless = texts.signs[rows] & SPACELESS_SCRIPT != 0
    return texts.rewrite(rows, write_long_lines, spaceless, character_flags(), float(words))


def _speaks_of(phrases: tuple[str, ...], line: str) -> bool:
    """Whether one of the phrases, in small letters, stands in a line in any case."""
    if line.isascii():  # A search that ignores case takes ten times as long.
        line = line.lower()
        return any(phrase in line for phrase in phrases)
    return _in_any_case(phrases).search(line) is not None


@functools.cache
def _in_any_case(phrases: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


def _keep(text: str, is_kept) -> str:
    return "\n".join(line for line in text.split("\n") if is_kept(line))


@kernel
def write_long_lines(data, begins, ends, outcomes, place, spaceless, table, least):
    """Leave out lines of fewer than `least` words, told as in `counting.count_texts`; blank ones stay.

    `spaceless` says which texts hold any character of a spaceless script. As `Texts.rewrite` wants it.
    """
    for text in range(len(begins)):
        begin, end = begins[text], ends[text]
        first = place
        line = copied = begin
        is_changed = False
        is_kept = True
        while line <= end:
            is_kept, line_end = _is_long(data, line, end, spaceless[text], table, least)
            if not is_kept:
                place = _copy(data, copied, line, place)
                copied = min(line_end + 1, end)
                is_changed = True
            line = line_end + 1
        if is_changed:
            place = _copy(data, copied, end, place)
            if not is_kept and place > first:
                place -= 1  # The line feed before the last line.
            begins[text], ends[text] = first, place
            outcomes[text] = REWRITTEN


@kernel
def _copy(data, begin, end, place):
    for position in range(begin, end):
        data[place + position - begin] = data[position]
    return place + end - begin


@kernel
def _is_long(data, position, end, spaceless, table, least):
    """(whether the line that begins at a position is blank or long enough, where it ends)."""
    spaced = chinese_japanese = south_east_asian = 0
    has_text = in_word = after_spaceless = False
    while position < end and data[position] != 10:
        codepoint, position = decode(data, position)
        flags = flags_of(codepoint, table)
        has_text |= flags & BLANK == 0
        if flags & SPACELESS and not (after_spaceless and flags & MARK):
            if flags & CHINESE_JAPANESE_UNIT:
                chinese_japanese += 1
            else:
                south_east_asian += 1
            in_word, after_spaceless = False, True
        elif flags & BLANK or (spaceless and flags & PARTS_SPACELESS):
            in_word = after_spaceless = False
            continue
        elif not in_word and not (after_spaceless and flags & MARK):
            spaced += 1
            in_word, after_spaceless = True, False
        else:
            continue
        if _words(spaced, chinese_japanese, south_east_asian) >= least:
            while position < end and data[position] != 10:
                position += 1
            return True, position
    return not has_text or _words(spaced, chinese_japanese, south_east_asian) >= least, position


@kernel
def _words(spaced, chinese_japanese, south_east_asian):
    return spaced + chinese_japanese / UNITS_PER_WORD[0] + south_east_asian / UNITS_PER_WORD[1]
