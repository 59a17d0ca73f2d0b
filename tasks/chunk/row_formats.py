"""The format of rows from a vocabulary, and whether the vocabulary has what the objective needs.

Which ids of a vocabulary stand inside words, by what their pieces look like.
"""

import unicodedata

import numpy as np

from model.data.row_format import RowFormat, WordBorders
from model.data.span_lengths import corrupted_lengths, raw_length
from model.errors import InputError
from tasks.chunk.config import ChunkConfig
from tasks.common.text import is_unspaced
from tasks.tokenizer.base import Tokenizer

SHORTEST_INPUT = 8
"""The least context of a network."""


def row_format(tokenizer: Tokenizer, config: ChunkConfig) -> RowFormat:
    """What a trainer must know of rows in this vocabulary.

    Raises InputError where it lacks BERT's special tokens or has fewer sentinels than a row has spans.
    """
    if config.objective == "masked_lm":
        _check_pairs(tokenizer)
    elif config.objective == "span_corruption":
        _check_sentinels(len(tokenizer.sentinels), config)
    return RowFormat(
        objective=config.objective,
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        eos=tokenizer.eos,
        pad=tokenizer.pad,
        cls=tokenizer.cls,
        sep=tokenizer.sep,
        mask=tokenizer.mask,
        sentinels=tokenizer.sentinels,
        special=tokenizer.special,
        word_borders=word_borders(tokenizer).packed() if config.whole_words else "",
        denoising=config.denoising,
        noise_density=config.noise_density,
        mean_noise_span=config.mean_noise_span,
    )


def _check_pairs(tokenizer: Tokenizer) -> None:
    ids = {"[CLS]": tokenizer.cls, "[SEP]": tokenizer.sep, "[MASK]": tokenizer.mask}
    missing = [name for name, number in ids.items() if number < 0]
    if missing:
        raise InputError(
            f"chunk: objective = masked_lm lays rows out as [CLS] A [SEP] B [SEP] and hides tokens behind [MASK], and"
            f" the vocabulary has no {', '.join(missing)}. Add them with vocab.special_tokens ="
            f' ["[CLS]", "[SEP]", "[MASK]"], or take a vocabulary that has them.'
        )


def _check_sentinels(sentinels: int, config: ChunkConfig) -> None:
    needed = config.noise_spans
    if needed <= sentinels:
        return
    if needed == 1:
        raise InputError(
            f"chunk: denoising = {config.denoising} puts the first sentinel in place of what is corrupted, and the"
            f" vocabulary has none. Set vocab.sentinels = 1 or more."
        )
    longest = _longest_input(sentinels, config)
    shorter = f", or train.model.context = {longest} or less" if longest >= SHORTEST_INPUT else ""
    raise InputError(
        f"chunk: objective = span_corruption takes {needed} spans out of a row of {config.row_length} tokens (an input"
        f" of {config.input_length}), each leaves a sentinel of its own, and the vocabulary has {sentinels} sentinels."
        f" Set vocab.sentinels = {needed} or more{shorter}."
    )


def _longest_input(sentinels: int, config: ChunkConfig) -> int:
    """The longest input whose spans the sentinels can stand for, 0 where there is none."""
    inputs, most = 0, config.input_length or 0
    law = (config.noise_density, config.mean_noise_span, config.denoising)
    while inputs < most:
        middle = (inputs + most + 1) // 2
        if corrupted_lengths(raw_length(middle, *law), *law).sentinels <= sentinels:
            inputs = middle
        else:
            most = middle - 1
    return inputs


FIRST_BYTE_OF_THREE = 0xE0
"""From here on a byte begins a character of three or four bytes: most letters below are of scripts with blanks, most
characters above are words or signs."""


def word_borders(tokenizer: Tokenizer) -> WordBorders:
    """Which ids go on with a word and leave one open.

    WordPiece says it by `##`. Elsewhere a word is letters and digits without a blank between them; what is written
    without blanks (Chinese) is a word a piece, punctuation too, as in BERT's own vocabularies.
    """
    special = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    special[list(tokenizer.special)] = True
    if tokenizer.kind == "wordpiece":
        from tasks.tokenizer.json_format import read_tokenizer_json
        from tasks.tokenizer.wordpiece import INSIDE, readable_word_pieces

        pieces = readable_word_pieces(read_tokenizer_json(tokenizer.model))
        return WordBorders(np.array([piece.startswith(INSIDE) for piece in pieces]) & ~special, ~special)
    first = np.array([_is_letter(piece[:4], 0) for piece in tokenizer.piece_bytes])
    last = np.array([_is_letter(piece[-4:], -1) for piece in tokenizer.piece_bytes])
    return WordBorders(first & ~special, last & ~special)


def _is_letter(raw: bytes, place: int) -> bool:
    """Whether the character at one end of a piece stands inside a word; what a cut character is, its byte must tell."""
    text = raw.decode(errors="replace")
    character = text[place : place + 1 or None]
    if character == "\ufffd":
        return raw[place] < FIRST_BYTE_OF_THREE
    return bool(character) and unicodedata.category(character)[0] in "LMN" and not is_unspaced(ord(character))
