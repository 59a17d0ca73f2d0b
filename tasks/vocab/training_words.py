"""Training a WordPiece vocabulary as BERT's (Devlin et al., 2019), by the library `tokenizers`.

The library's trainer numbers characters, and then joins pairs of equal counts, in the order of a hash table that
differs from process to process: two runs gave two vocabularies. Given all characters beforehand, in a fixed order, it
gave the same bytes in every run and with any number of threads.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable

import tokenizers

from model.errors import InputError
from tasks.vocab.config import VocabConfig
from tasks.vocab.donor import covering
from tasks.vocab.specials import add_special_tokens, cut_apart
from tasks.vocab.training_bytes import LEAST_COUNT, stretches
from tasks.word_piece import INSIDE, SPECIAL_TOKENS, word_piece_engine


def train_word_pieces(texts: Iterable[str], config: VocabConfig) -> bytes:
    """The bytes of a `tokenizer.json` with `config.vocab_size` pieces; InputError where the text gives fewer, or where
    its characters alone are more."""
    engine = word_piece_engine({}, lowercase=config.lowercase, split_digits=config.split_digits)
    normalised = [engine.normalizer.normalize_str(text) for text in stretches(texts)]
    counts = Counter[str]()
    for text in normalised:
        counts.update(text)
    counts = Counter({character: count for character, count in counts.items() if not character.isspace()})
    frequent = counts.most_common()
    known = {character for character, _ in frequent[: covering(counts, config.character_coverage)]}
    rare = re.compile(f"[{re.escape(''.join(sorted(counts.keys() - known)))}]") if len(known) < len(counts) else None
    names = [name for name in config.special_names if name not in SPECIAL_TOKENS]
    learnt = list(cut_apart((rare.sub(" ", text) if rare else text for text in normalised), names))
    alphabet = _alphabet(learnt, engine.pre_tokenizer)
    least = len(SPECIAL_TOKENS) + len(alphabet) + len(names)
    if least > config.vocab_size:
        raise InputError(
            f"vocab: {config.vocab_size} pieces were asked for, and the characters of the sampled text with the special"
            f" tokens alone need {least}. Set vocab.vocab_size above {least}, or lower vocab.character_coverage (now"
            f" {config.character_coverage}); words with rarer characters become [UNK]."
        )
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=config.vocab_size - len(names),
        min_frequency=LEAST_COUNT,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    engine.train_from_iterator(learnt, trainer)
    vocabulary = json.loads(engine.to_str())["model"]["vocab"]
    pieces = len(vocabulary) + len(names)
    if pieces < config.vocab_size:
        raise InputError(
            f"vocab: {config.vocab_size} pieces were asked for, and the sampled text gives {pieces} at most. Set"
            f" vocab.vocab_size = {pieces} or less, or bring more text (vocab.max_bytes is {config.max_bytes})."
        )
    trained = word_piece_engine(vocabulary, lowercase=config.lowercase, split_digits=config.split_digits)
    parsed = json.loads(trained.to_str())
    add_special_tokens(parsed, names)
    return (json.dumps(parsed, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _alphabet(texts: Iterable[str], splitter: tokenizers.pre_tokenizers.PreTokenizer) -> list[str]:
    """Characters as they begin words, and with the sign of a piece inside a word those that stand there."""
    beginning, inside, seen = set[str](), set[str](), set[str]()
    for text in texts:
        words = set(text.split()) - seen
        seen |= words
        for word in words:
            for part, _ in splitter.pre_tokenize_str(word):
                beginning.update(part)
                inside.update(part[1:])
    return [*sorted(beginning), *(INSIDE + character for character in sorted(inside))]
