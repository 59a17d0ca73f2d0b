"""Candidates for new pieces: characters and words of one script, found in this run's text, the most useful first.

Words come from a BPE vocabulary (Sennrich et al., 2016) trained on the script's own stretches of text, under the
identity normaliser. With a BPE base such a donor needed no intermediates on Chinese, and trained in 8 to 11 s on 12
million characters, where a Unigram donor took 172 to 432 s.

A candidate is worth the tokens that it saves: a word one at each merge that makes it, a character all but one of its
bytes wherever it stands.
"""

import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

import numpy as np
import sentencepiece

from tasks.tokenizer.model_file import NORMAL, read_model
from tasks.vocab.bpe import isolated, reduce
from tasks.vocab.corpus import training_lines
from tasks.vocab.scripts import Script

META_PIECES = 3

LINES_AT_ONCE = 10_000

BEYOND = 0.02
"""Text beyond the sample that is expected besides it, as a share of it, with the script's own characters all equally
frequent in it: what a character is worth that the sample happens to lack."""

_CAN_GIVE = re.compile(r"set it to a value <= (\d+)")

Runs = Callable[[], Iterable[str]]
"""Gives the script's stretches of the sampled text, from the beginning each time."""


@dataclass(frozen=True)
class Donor:
    """What the text offers for one script."""

    characters: Counter[str]
    """How often each character occurs."""
    words: Counter[str]
    """How often each piece of more than one character is made by a merge, written as in SentencePiece's file; in the
    order of merges."""

    def without(self, words: Set[str]) -> "Donor":
        """The same without some words."""
        return Donor(self.characters, Counter({word: n for word, n in self.words.items() if word not in words}))

    def candidates(self, script: Script) -> list[str]:
        """Characters and words by the tokens that each saves, the most first; among equals characters, then words in
        the order of their merges."""
        beyond = BEYOND * self.characters.total() / max(1, len(script.characters))
        saved = dict.fromkeys(self.characters, 0.0)
        saved |= dict.fromkeys(script.characters, beyond)
        for character in saved:
            saved[character] += self.characters[character]
            saved[character] *= len(character.encode()) - 1
        saved |= {word: float(count) for word, count in self.words.items()}
        return sorted(saved, key=lambda candidate: -saved[candidate])


def train_donor(runs: Runs, words: int, coverage: float) -> Donor:
    """Characters with their counts, and at most `words` words made of those that cover `coverage` of the text."""
    counts: Counter[str] = Counter()
    for run in runs():
        counts.update(run)
    counts.pop(" ", None)
    if not counts:
        return Donor(counts, Counter())
    size = META_PIECES + covering(counts, coverage) + words + 1
    try:
        model = _train(runs(), size, coverage)
    except RuntimeError as error:
        match = _CAN_GIVE.search(str(error))
        if match is None:
            raise
        model = _train(runs(), int(match[1]), coverage)
    return Donor(counts, merge_counts(model, runs()))


def merge_counts(model: bytes, runs: Iterable[str]) -> Counter[str]:
    """How often each merge of a BPE model happens on a text: emitted pieces, and those that others are made of."""
    emitted = emissions(model, runs)
    pieces = [(number, piece) for number, piece in enumerate(read_model(model).pieces) if piece.type == NORMAL]
    counts = Counter({piece.piece: int(emitted[number]) for number, piece in pieces})
    words = {piece.piece: float(piece.score) for _, piece in pieces if len(piece.piece) > 1}
    merges = sorted(words, key=lambda word: -words[word])
    for word in reversed(merges):
        # Without itself and all later merges, a word falls into the two symbols that its merge joins.
        del words[word]
        for symbol in reduce(word, words):
            counts[symbol] += counts[word]
    return Counter({word: counts[word] for word in merges if counts[word]})


def emissions(model: bytes, runs: Iterable[str]) -> np.ndarray:
    """How often each id of a model is emitted on stretches of a script, int64 [pieces]."""
    processor = isolated(model)
    emitted = np.zeros(processor.get_piece_size(), dtype=np.int64)
    lines = training_lines(runs)
    while some := list(itertools.islice(lines, LINES_AT_ONCE)):
        ids = np.fromiter(itertools.chain.from_iterable(processor.encode(some)), dtype=np.int64)
        emitted += np.bincount(ids, minlength=len(emitted))
    return emitted


def covering(counts: Counter[str], coverage: float) -> int:
    """How many of the most frequent characters make up `coverage` of all."""
    wanted = coverage * counts.total()
    for number, (_, count) in enumerate(counts.most_common()):
        if wanted <= 0:
            return number
        wanted -= count
    return len(counts)


def _train(runs: Iterable[str], size: int, coverage: float) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=training_lines(runs),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        character_coverage=coverage,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        max_sentence_length=2**30,
        input_sentence_size=0,
        shuffle_input_sentence=False,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()
