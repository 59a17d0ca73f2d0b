"""Candidate tokens for an extension: characters and words of one script in this run's text, the most useful first.

Words come from a BPE vocabulary (Sennrich et al. 2016) trained on the script's own runs of text, without normalisation.
With a BPE base such a vocabulary needed no intermediate tokens on Chinese, and trained in 8 to 11 s on 12 million
characters; a Unigram vocabulary took 172 to 432 s.

A candidate is worth the tokens that it saves: a word one at each merge that makes it, a character all but one of its
bytes wherever it occurs.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

import numpy as np

from tasks.tokenizer.model_file import NORMAL, read_model
from tasks.vocab.bpe import bare_processor, merge_symbols
from tasks.vocab.corpus import train_on_lines, training_lines
from tasks.vocab.scripts import Script

META_TOKENS = 3
"""SentencePiece's unknown, begin and end tokens."""

LINES_AT_ONCE = 10_000

UNSEEN_TEXT_SHARE = 0.02
"""Expected text beyond the sample, as a share of the sample, in which all of the script's own characters are equally
frequent: the worth of a character that the sample happens to lack."""

MAX_SIZE_IN_ERROR = re.compile(r"set it to a value <= (\d+)")

ScriptText = Callable[[], Iterable[str]]
"""Returns the script's runs of the sampled text, from the beginning at each call."""


@dataclass(frozen=True)
class CandidateVocabulary:
    """Characters and words of one script in the sampled text."""

    characters: Counter[str]
    """Occurrences of each character."""
    words: Counter[str]
    """How often a merge makes each token of more than one character, in SentencePiece's notation; in the order of
    merges."""

    def without(self, words: Set[str]) -> "CandidateVocabulary":
        """Return the same without some words."""
        return CandidateVocabulary(
            self.characters, Counter({word: n for word, n in self.words.items() if word not in words})
        )

    def ranked(self, script: Script) -> list[str]:
        """Return characters and words by the tokens that each saves, the most first; of equals characters first,
        then words in the order of their merges."""
        beyond = UNSEEN_TEXT_SHARE * self.characters.total() / max(1, len(script.characters))
        saved = dict.fromkeys(self.characters, 0.0)
        saved |= dict.fromkeys(script.characters, beyond)
        for character in saved:
            saved[character] += self.characters[character]
            saved[character] *= len(character.encode()) - 1
        saved |= {word: float(count) for word, count in self.words.items()}
        return sorted(saved, key=lambda candidate: -saved[candidate])


def train_candidates(runs: ScriptText, words: int, coverage: float) -> CandidateVocabulary:
    """Return the characters with their counts, and at most `words` words made of those that cover `coverage` of the
    text."""
    counts: Counter[str] = Counter()
    for run in runs():
        counts.update(run)
    counts.pop(" ", None)
    if not counts:
        return CandidateVocabulary(counts, Counter())
    size = META_TOKENS + characters_to_cover(counts, coverage) + words + 1
    options = {"model_type": "bpe", "character_coverage": coverage}
    try:
        model = train_on_lines(runs(), vocab_size=size, **options)
    except RuntimeError as error:
        match = MAX_SIZE_IN_ERROR.search(str(error))
        if match is None:
            raise
        model = train_on_lines(runs(), vocab_size=int(match[1]), **options)
    return CandidateVocabulary(counts, count_merges(model, runs()))


def count_merges(model: bytes, runs: Iterable[str]) -> Counter[str]:
    """Return how often each merge of a BPE model happens on a text: for emitted tokens, and for those that others
    are made of."""
    emitted = count_emitted_ids(model, runs)
    pieces = [(number, piece) for number, piece in enumerate(read_model(model).pieces) if piece.type == NORMAL]
    counts = Counter({piece.piece: int(emitted[number]) for number, piece in pieces})
    words = {piece.piece: float(piece.score) for _, piece in pieces if len(piece.piece) > 1}
    merges = sorted(words, key=lambda word: -words[word])
    for word in reversed(merges):
        # Without itself and all later merges, a word is encoded as the two symbols that its merge joins.
        del words[word]
        for symbol in merge_symbols(word, words):
            counts[symbol] += counts[word]
    return Counter({word: counts[word] for word in merges if counts[word]})


def count_emitted_ids(model: bytes, runs: Iterable[str]) -> np.ndarray:
    """Return how often each id of a SentencePiece model is emitted on runs of a script, int64 [tokens]."""
    processor = bare_processor(model)
    return count_ids(processor.encode, processor.get_piece_size(), runs)


def count_ids(encode: Callable[[list[str]], Iterable[Iterable[int]]], size: int, runs: Iterable[str]) -> np.ndarray:
    """Return how often each of `size` ids occurs where `encode` encodes the lines of the runs, int64 [size]."""
    counts = np.zeros(size, dtype=np.int64)
    lines = training_lines(runs)
    while some := list(itertools.islice(lines, LINES_AT_ONCE)):
        ids = np.fromiter(itertools.chain.from_iterable(encode(some)), dtype=np.int64)
        counts += np.bincount(ids, minlength=size)
    return counts


def characters_to_cover(counts: Counter[str], coverage: float) -> int:
    """Return how many of the most frequent characters make up `coverage` of all."""
    wanted = coverage * counts.total()
    for number, (_, count) in enumerate(counts.most_common()):
        if wanted <= 0:
            return number
        wanted -= count
    return len(counts)
