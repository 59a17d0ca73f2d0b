"""Word lists that a recipe brings, such as slurs: a document in which their share is too large is dropped.

No list comes with the program and none is on by default. Word lists for toxicity remove texts by and about the people
whom the words are used against (Dodge et al. 2021, on C4), so which words, and how many, is the user's decision.
"""

import functools
from collections import Counter
from dataclasses import dataclass

import regex

from model.digests import digest_bytes
from model.errors import InputError
from tasks.clean.config import WordListConfig
from tasks.clean.edits.emoji import alternatives
from tasks.clean.filters.rule import Rule, TextStatistics
from tasks.clean.kernels.characters import has_unsegmented_script
from tasks.clean.user_lists import read_list

# Unlike `re`, this takes the marks of Indian, Arabic and other scripts for parts of a word.
_WORD = regex.compile(r"[\w\p{N}]+")


@dataclass(frozen=True)
class WordList:
    """Case-folded entries: `words` of one word, `phrases` of several words or of an unsegmented script."""

    words: frozenset[str]
    phrases: frozenset[str]

    def digest(self) -> str:
        """Return BLAKE3-128 over all entries, whatever their order."""
        return digest_bytes("\n".join(sorted(self.words | self.phrases)).encode())


def read_word_list(config: WordListConfig) -> WordList:
    """Read a list's file, an entry a line; raises InputError where it cannot be read or holds none."""
    lines = read_list(f"clean.word_lists `{config.name}`", config.path)
    entries = frozenset(line.strip().casefold() for line in lines if line.strip())
    if not entries:
        raise InputError(f"clean.word_lists `{config.name}`: {config.path} contains no words. Write one entry a line.")
    words = frozenset(entry for entry in entries if _WORD.fullmatch(entry) and not has_unsegmented_script(entry))
    return WordList(words, entries - words)


def word_list_rule(config: WordListConfig, entries: WordList) -> tuple[Rule, float]:
    """Return the rule `words_NAME` and its limit."""
    return Rule(f"words_{config.name}", functools.partial(listed_share, entries)), config.limit


def listed_share(entries: WordList, statistics: TextStatistics, _limit: float) -> float:
    """Return the share of the text's words that are on the list; a phrase counts as one."""
    text = statistics.text.casefold()
    counts = Counter(_WORD.findall(text))
    listed = sum(counts[word] for word in entries.words if word in counts)
    if entries.phrases:
        listed += len(_pattern(entries.phrases).findall(text))
    return listed / statistics.words if statistics.words else 0.0


@functools.cache
def _pattern(phrases: frozenset[str]) -> "regex.Pattern[str]":
    unsegmented = [phrase for phrase in phrases if has_unsegmented_script(phrase)]
    spaced = [phrase for phrase in phrases if not has_unsegmented_script(phrase)]
    parts = [alternatives(unsegmented)] if unsegmented else []
    if spaced:
        parts.append(rf"(?<![\w\p{{N}}])(?:{alternatives(spaced)})(?![\w\p{{N}}])")
    return regex.compile("|".join(parts))
