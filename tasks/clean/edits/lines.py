"""Edits that look at a document line by line: repeated lines, and the lines that C4 drops.

C4: Raffel et al. 2020, section 2.2. Ends of sentences in Chinese, Japanese, Hindi and Arabic count too. Short lines are
dropped by a kernel.
"""

import functools
import itertools
import re

import numpy as np

from model.kernels import kernel
from tasks.clean.batch import REWRITTEN, Texts
from tasks.clean.document import DocumentContext
from tasks.clean.kernels.characters import (
    CHINESE_JAPANESE_UNIT,
    MARK,
    UNITS_PER_WORD,
    UNSEGMENTED,
    UNSEGMENTED_BREAK,
    WHITESPACE,
    character_flags,
    flags_of,
)
from tasks.clean.kernels.prefilter import UNSEGMENTED_SCRIPT
from tasks.common.utf8 import decode

_SENTENCE_ENDS = tuple(".!?\"'”’»。！？…」』؟۔।")
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_JAVASCRIPT = ("javascript",)
_CITATIONS = re.compile(r"\[(?:\d{1,3}|edit|citation needed)\]")


def collapse_repeated_lines(text: str, _context: DocumentContext, run: float = 3) -> str:
    """Collapse a line that is repeated `run` or more times in a row; blank lines do not count."""
    kept: list[str] = []
    for line, equal in itertools.groupby(text.split("\n")):
        repeated = list(equal)
        kept += repeated[:1] if len(repeated) >= run and line.strip() else repeated
    return "\n".join(kept)


def remove_citations(text: str, _context: DocumentContext) -> str:
    """Remove markers such as `[12]`, `[edit]` and `[citation needed]`."""
    return _CITATIONS.sub("", text)


def remove_javascript_lines(text: str, _context: DocumentContext) -> str:
    """Remove lines that mention JavaScript; on the web they mostly ask to switch it on."""
    return _keep_lines(text, lambda line: not _mentions(_JAVASCRIPT, line))


def remove_policy_lines(text: str, _context: DocumentContext) -> str:
    """Remove lines that mention terms of use, privacy or cookies."""
    return _keep_lines(text, lambda line: not _mentions(_POLICIES, line))


def _mentions(phrases: tuple[str, ...], line: str) -> bool:
    """Return whether a line contains one of the phrases (lower case) in any case."""
    if line.isascii():  # A search that ignores case takes ten times as long.
        line = line.lower()
        return any(phrase in line for phrase in phrases)
    return _in_any_case(phrases).search(line) is not None


@functools.cache
def _in_any_case(phrases: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


def remove_unfinished_lines(text: str, _context: DocumentContext) -> str:
    """Remove lines that do not end as a sentence or a quotation ends; blank lines are kept."""
    return _keep_lines(
        text,
        lambda line: (
            line.endswith(_SENTENCE_ENDS) or not line or line.isspace() or line.rstrip().endswith(_SENTENCE_ENDS)
        ),
    )


def _keep_lines(text: str, is_kept) -> str:
    return "\n".join(line for line in text.split("\n") if is_kept(line))


def remove_short_lines(text: str, _context: DocumentContext, words: float = 5) -> str:
    """Remove lines of fewer than `words` words; blank lines are kept."""
    texts = Texts.of([text])
    rewrite_short_lines(texts, np.zeros(1, np.int64), words)
    return texts.text(0)


def rewrite_short_lines(texts: Texts, rows: np.ndarray, words: float) -> tuple[np.ndarray, np.ndarray]:
    """Apply `remove_short_lines` to many texts; returns what `Texts.rewrite` returns."""
    unsegmented = texts.features[rows] & UNSEGMENTED_SCRIPT != 0
    return texts.rewrite(rows, write_long_lines, unsegmented, character_flags(), float(words))


@kernel
def write_long_lines(data, begins, ends, outcomes, place, unsegmented, table, least):
    """Leave out lines of fewer than `least` words, split as in `counting.count_texts`; blank ones are kept.

    A kernel for `Texts.rewrite`. `unsegmented` says which texts contain any character of an unsegmented script.
    """
    for text in range(len(begins)):
        begin, end = begins[text], ends[text]
        first = place
        line = copied = begin
        is_changed = False
        is_kept = True
        while line <= end:
            is_kept, line_end = _is_long(data, line, end, unsegmented[text], table, least)
            if not is_kept:
                place = _copy(data, copied, line, place)
                copied = min(line_end + 1, end)
                is_changed = True
            line = line_end + 1
        if is_changed:
            place = _copy(data, copied, end, place)
            if not is_kept and place > first:
                place -= 1  # Drops the line feed before the last line.
            begins[text], ends[text] = first, place
            outcomes[text] = REWRITTEN


@kernel
def _is_long(data, position, end, unsegmented, table, least):
    """Return (whether the line that begins at a position is blank or long enough, where it ends)."""
    spaced = chinese_japanese = south_east_asian = 0
    has_text = in_word = after_unsegmented = False
    while position < end and data[position] != ord("\n"):
        codepoint, position = decode(data, position)
        flags = flags_of(codepoint, table)
        has_text |= flags & WHITESPACE == 0
        if flags & UNSEGMENTED and not (after_unsegmented and flags & MARK):
            if flags & CHINESE_JAPANESE_UNIT:
                chinese_japanese += 1
            else:
                south_east_asian += 1
            in_word, after_unsegmented = False, True
        elif flags & WHITESPACE or (unsegmented and flags & UNSEGMENTED_BREAK):
            in_word = after_unsegmented = False
            continue
        elif not in_word and not (after_unsegmented and flags & MARK):
            spaced += 1
            in_word, after_unsegmented = True, False
        else:
            continue
        if _count_words(spaced, chinese_japanese, south_east_asian) >= least:
            while position < end and data[position] != ord("\n"):
                position += 1
            return True, position
    return not has_text or _count_words(spaced, chinese_japanese, south_east_asian) >= least, position


@kernel
def _count_words(spaced, chinese_japanese, south_east_asian):
    return spaced + chinese_japanese / UNITS_PER_WORD[0] + south_east_asian / UNITS_PER_WORD[1]


@kernel
def _copy(data, begin, end, place):
    for position in range(begin, end):
        data[place + position - begin] = data[position]
    return place + end - begin
