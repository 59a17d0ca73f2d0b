"""Training a byte-level BPE vocabulary (Radford et al., 2019, GPT-2): its 256 bytes write any text.

The library's merges do not depend on its number of threads (tested); its file is a `tokenizer.json` that other programs
read as it is.
"""

from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from model.errors import InputError
from tasks.vocab.config import VocabConfig
from tasks.vocab.specials import cut_apart

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<pad>")
"""In the order of their ids, which are those of a vocabulary of SentencePiece trained here."""
LEAST_COUNT = 2
"""A pair that the text holds once is no piece."""
LONGEST_STRETCH = 1 << 16
"""Characters of a text taken at once: one without blanks would be one word, and time grows with a word's square."""


def train_merges(texts: Iterable[str], config: VocabConfig) -> bytes:
    """The bytes of a `tokenizer.json` with `config.vocab_size` pieces; InputError where the text gives fewer."""
    engine = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    engine.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if config.split_digits else words
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.trained_pieces,
        min_frequency=LEAST_COUNT,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(stretches(cut_apart(texts, config.special_names)), trainer)
    if config.special_names:
        engine.add_special_tokens(list(config.special_names))
    pieces = engine.get_vocab_size()
    if pieces < config.vocab_size:
        raise InputError(
            f"vocab: {config.vocab_size} pieces were asked for, and the sampled text gives {pieces} at most. Set"
            f" vocab.vocab_size = {pieces} or less, or bring more text (vocab.max_bytes is {config.max_bytes})."
        )
    return (engine.to_str() + "\n").encode()


def stretches(texts: Iterable[str]) -> Iterator[str]:
    """The texts in stretches of at most LONGEST_STRETCH characters."""
    for text in texts:
        for start in range(0, len(text), LONGEST_STRETCH):
            yield text[start : start + LONGEST_STRETCH]
