"""Correction of misspellings that a recipe lists: an option, off unless a list is given.

No list comes with the program. What is an error in one text is a name, a dialect or a quotation in another, so only
whole words change, and only those of the user's list for the document's language.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import regex

from model.digests import digest_bytes
from model.errors import InputError
from tasks.clean.config import SpellingConfig
from tasks.clean.document import DocumentContext
from tasks.clean.edits.emoji import alternatives
from tasks.clean.kernels.characters import has_unsegmented_script
from tasks.clean.presets import identified_as
from tasks.clean.user_lists import read_list

# Unlike `re`, this takes the marks of Indian, Arabic and other scripts for parts of a word.
_WORD = regex.compile(r"[\w\p{N}]+(?:['’-][\w\p{N}]+)*")


@dataclass(frozen=True)
class SpellingList:
    """Wrong -> right for documents of one language (ISO 639-1), or of any where it is None."""

    language: str | None
    corrections: Mapping[str, str]

    def digest(self) -> str:
        """Return BLAKE3-128 over the language and all pairs, whatever their order."""
        pairs = "\n".join(f"{wrong}\t{right}" for wrong, right in sorted(self.corrections.items()))
        return digest_bytes(f"{self.language}\n{pairs}".encode())

    def is_for(self, context: DocumentContext) -> bool:
        """Return whether a document is of the language, whose name a recipe and the identifier may write otherwise."""
        if self.language is None:
            return True
        codes = identified_as(self.language)
        return context.language in codes or context.base_language in codes

    @functools.cached_property
    def words(self) -> dict[str, str]:
        """Return the corrections of whole words, looked up word by word."""
        return {wrong: right for wrong, right in self.corrections.items() if not has_unsegmented_script(wrong)}

    @functools.cached_property
    def unsegmented(self) -> re.Pattern[str] | None:
        """Return a pattern of the wrong forms in unsegmented scripts, which match anywhere; the longest first."""
        found = [wrong for wrong in self.corrections if has_unsegmented_script(wrong)]
        return re.compile(alternatives(found)) if found else None


def read_spelling_list(config: SpellingConfig) -> SpellingList:
    """Read a file of lines `wrong TAB right`; wrong words are lower-cased.

    Raises InputError, naming file and line, for a line of another form, a wrong form of several words, or one that is
    listed twice with different corrections.
    """
    corrections: dict[str, str] = {}
    for number, line in enumerate(read_list("clean.spelling", config.path), start=1):
        if not line.strip():
            continue
        wrong, _, right = (part.strip() for part in line.partition("\t"))
        where = f"clean.spelling: {config.path}, line {number}"
        if not (wrong and right):
            raise InputError(f"{where} is not `wrong TAB right`: {line[:80]!r}")
        wrong = wrong.lower()
        if not has_unsegmented_script(wrong) and not _WORD.fullmatch(wrong):
            raise InputError(
                f"{where}: `{wrong}` is not one word. List single words, since words are looked up one by one"
            )
        if corrections.setdefault(wrong, right) != right:
            raise InputError(
                f"{where}: `{wrong}` becomes `{right}` here and `{corrections[wrong]}` further up. Remove one"
            )
    if not corrections:
        raise InputError(f"clean.spelling: {config.path} contains no corrections. Write a line `wrong TAB right` each.")
    return SpellingList(config.language, corrections)


def correct_spelling(lists: tuple[SpellingList, ...], text: str, context: DocumentContext) -> str:
    """Correct the words of the lists for the document's language, keeping the case in which they were written."""
    for spelling in lists:
        if not spelling.is_for(context):
            continue
        if spelling.words:
            text = _WORD.sub(functools.partial(_corrected, spelling.words), text)
        if spelling.unsegmented is not None:
            text = spelling.unsegmented.sub(lambda match, right=spelling.corrections: right[match[0]], text)
    return text


def _corrected(words: Mapping[str, str], match: "regex.Match[str]") -> str:
    wrong = match[0]
    right = words.get(wrong.lower())
    if right is None:
        return wrong
    if wrong.isupper() and len(wrong) > 1:
        return right.upper()
    return right[0].upper() + right[1:] if wrong[0].isupper() else right
