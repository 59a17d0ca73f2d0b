"""Which tokens make a word together, told by their ids alone, so that rows can say it without their tokenizer.

Two neighbours belong to one word where the first leaves a word open and the second goes on with one: `play` `##ing` of
WordPiece, a letter behind a letter without a blank between them elsewhere.
"""

import base64
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class WordBorders:
    """What each id is to the word that it stands in."""

    goes_on_V: np.ndarray
    """bool[V]: it may go on with the word of the token before it."""
    leaves_open_V: np.ndarray
    """bool[V]: the token behind it may go on with its word."""

    def packed(self) -> str:
        """Two bits an id, as text."""
        return base64.b64encode(np.packbits(np.stack([self.goes_on_V, self.leaves_open_V])).tobytes()).decode()

    @staticmethod
    def unpacked(text: str, vocab_size: int) -> "WordBorders":
        """The borders that `packed` gave for so many ids; ValueError where they are of another number."""
        bits = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
        if len(bits) != -(-2 * vocab_size // 8):
            raise ValueError(f"{len(bits)} bytes of word borders are not those of {vocab_size} ids")
        goes_on, leaves_open = np.unpackbits(bits, count=2 * vocab_size).reshape(2, vocab_size).astype(np.bool_)
        return WordBorders(goes_on, leaves_open)
