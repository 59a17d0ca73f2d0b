"""Misspellings that a recipe lists become the right words: an option, off unless a list is given.

No list comes with the program. What is an error in one text is a name, a dialect or a quotation in another, so only
whole words change, and only those of the user's list for the document's language.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import blake3

from model.digests import read_bytes
from model.errors import InputError
from tasks.clean.config import SpellingConfig
from tasks.clean.document import About
from tasks.clean.edits.emoji import alternatives
from tasks.clean.kernels.characters import has_spaceless_script

_WORD = re.compile(r"\w+(?:['’-]\w+)*")


@dataclass(frozen=True)
class SpellingList:
    """Wrong -> right for documents of one language (ISO 639-1), or of any where it is None."""

    language: str | None
    corrections: Mapping[str, str]

    def digest(self) -> str:
        """BLAKE3-128 over the language and all pairs, whatever their order."""
        pairs = "\n".join(f"{wrong}\t{right}" for wrong, right in sorted(self.corrections.items()))
        return blake3.blake3(f"{self.language}\n{pairs}".encode()).hexdigest(length=16)

    @functools.cached_property
    def words(self) -> dict[str, str]:
        """Those of whole words, looked up word by word."""
        return {wrong: right for wrong, right in self.corrections.items() if not has_spaceless_script(wrong)}

    @functools.cached_property
    def spaceless(self) -> re.Pattern[str] | None:
        """Those of a script that writes no blanks, wherever they stand; the longest first."""
        found = [wrong for wrong in self.corrections if has_spaceless_script(wrong)]
        return re.compile(alternatives(found)) if found else None


def read_spelling_list(config: SpellingConfig) -> SpellingList:
    """The pairs of a file of lines `wrong TAB right`, with the wrong word in lower case.

    Raises InputError, naming file and line, for a line of another form, a wrong form of several words, or one that is
    listed twice with different corrections.
    """
    try:
        lines = read_bytes(config.path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"clean.spelling: {config.path} cannot be read ({error})") from error
    corrections: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        wrong, _, right = (part.strip() for part in line.partition("\t"))
        here = f"clean.spelling: {config.path}, line {number}"
        if not (wrong and right):
            raise InputError(f"{here} is not `wrong TAB right`: {line[:80]!r}")
        wrong = wrong.lower()
        if not has_spaceless_script(wrong) and not _WORD.fullmatch(wrong):
            raise InputError(f"{here}: `{wrong}` is not one word, and words are looked up one by one")
        if corrections.setdefault(wrong, right) != right:
            raise InputError(f"{here}: `{wrong}` is to become `{right}` here and `{corrections[wrong]}` further up")
    if not corrections:
        raise InputError(f"clean.spelling: {config.path} holds no corrections")
    return SpellingList(config.language, corrections)


def correct_spelling(lists: tuple[SpellingList, ...], text: str, about: About) -> str:
    """Words of the lists for the document's language, in the case in which the wrong word was written."""
    for spelling in lists:
        if spelling.language is not None and spelling.language != about.language:
            continue
        if spelling.words:
            text = _WORD.sub(functools.partial(_corrected, spelling.words), text)
        if spelling.spaceless is not None:
            text = spelling.spaceless.sub(lambda match, right=spelling.corrections: right[match[0]], text)
    return text


def _corrected(words: Mapping[str, str], match: re.Match[str]) -> str:
    wrong = match[0]
    right = words.get(wrong.lower())
    if right is None:
        return wrong
    if wrong.isupper() and len(wrong) > 1:
        return right.upper()
    return right[0].upper() + right[1:] if wrong[0].isupper() else right
