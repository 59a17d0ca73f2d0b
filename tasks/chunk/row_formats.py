"""The row format of a vocabulary: its special ids, whether it has what the objective needs, and which of its tokens
continue a word."""

import unicodedata

import numpy as np

from model.data.row_format import RowFormat, WordBorders
from model.data.span_lengths import corrupted_lengths, raw_length
from model.errors import InputError
from tasks.chunk.config import ChunkConfig
from tasks.common.text import is_unspaced
from tasks.tokenizer.base import Tokenizer

MIN_INPUT = 8
"""Least context of a network."""
FIRST_BYTE_OF_THREE = 0xE0
"""From here on a byte begins a character of three or four bytes. Most letters below are of scripts with spaces; most
characters above are words of their own or symbols."""


def row_format(tokenizer: Tokenizer, config: ChunkConfig) -> RowFormat:
    """Return what a trainer must know of rows in this vocabulary.

    Raises InputError where it lacks BERT's special tokens or has fewer sentinels than a row has spans.
    """
    if config.objective == "masked_lm":
        _check_pair_tokens(tokenizer)
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


def _check_pair_tokens(tokenizer: Tokenizer) -> None:
    ids = {"[CLS]": tokenizer.cls, "[SEP]": tokenizer.sep, "[MASK]": tokenizer.mask}
    missing = [name for name, number in ids.items() if number < 0]
    if missing:
        raise InputError(
            f"chunk: objective = masked_lm needs [CLS] and [SEP] around its pairs and [MASK] for masked tokens, and the"
            f" vocabulary has no {', '.join(missing)}. Add them with vocab.special_tokens ="
            f' ["[CLS]", "[SEP]", "[MASK]"], or choose a vocabulary that has them.'
        )


def _check_sentinels(sentinels: int, config: ChunkConfig) -> None:
    needed = config.noise_spans
    if needed <= sentinels:
        return
    if needed == 1:
        raise InputError(
            f"chunk: denoising = {config.denoising} replaces corrupted tokens by the first sentinel, and the vocabulary"
            f" has none. Set vocab.sentinels = 1 or more."
        )
    longest = _max_input_length(sentinels, config)
    shorter = f", or train.model.context = {longest} or less" if longest >= MIN_INPUT else ""
    raise InputError(
        f"chunk: objective = span_corruption removes {needed} spans from a sequence of {config.row_length} tokens (an"
        f" input of {config.input_length}), each replaced by a sentinel of its own, and the vocabulary has {sentinels}"
        f" sentinels. Set vocab.sentinels = {needed} or more{shorter}."
    )


def _max_input_length(sentinels: int, config: ChunkConfig) -> int:
    """Return the longest input whose spans the sentinels can replace, 0 where there is none."""
    inputs, most = 0, config.input_length or 0
    noise = (config.noise_density, config.mean_noise_span, config.denoising)
    while inputs < most:
        middle = (inputs + most + 1) // 2
        if corrupted_lengths(raw_length(middle, *noise), *noise).sentinels <= sentinels:
            inputs = middle
        else:
            most = middle - 1
    return inputs


def word_borders(tokenizer: Tokenizer) -> WordBorders:
    """Return which ids continue a word and which may be continued.

    WordPiece marks it by `##`. In other vocabularies a word is a run of letters and digits without a space; in
    unsegmented scripts (Chinese) every token is a word, punctuation too, as in BERT's own vocabularies.
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


def _is_letter(raw: bytes, position: int) -> bool:
    """Return whether the character at one end of a token may be inside a word; a partial character is judged by its
    byte."""
    text = raw.decode(errors="replace")
    character = text[position : position + 1 or None]
    if character == "\ufffd":
        return raw[position] < FIRST_BYTE_OF_THREE
    return bool(character) and unicodedata.category(character)[0] in "LMN" and not is_unspaced(ord(character))
