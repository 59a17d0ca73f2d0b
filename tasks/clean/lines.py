"""Edits that look at a document line by line: repeated lines, and the lines that C4 leaves out.

C4: Raffel et al. 2020, section 2.2. Ends of sentences in Chinese, Japanese, Hindi and Arabic count as ends too.
"""

import functools
import itertools
import re

import numpy as np

from tasks.clean.about import About
from tasks.clean.characters import character_flags
from tasks.clean.short_lines import write_long_lines
from tasks.clean.signs import SPACELESS_SCRIPT
from tasks.clean.texts import Texts

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
