"""Which ids of a vocabulary stand inside words, by what their pieces look like."""

import unicodedata

import numpy as np

from model.word_borders import WordBorders
from tasks.scripts import is_unspaced
from tasks.tokenizer import Tokenizer

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
        from tasks.tokenizer_json import read_tokenizer_json
        from tasks.word_piece import INSIDE, readable_word_pieces

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
