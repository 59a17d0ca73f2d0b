"""The interface of a vocabulary for fine-tuning."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Vocabulary(Protocol):
    """Converts text to ids and back; a special id that the vocabulary lacks is -1."""

    vocab_size: int
    digest: str
    begin: int
    """What texts begin with; -1 where they follow the end-of-text token."""
    eos: int
    pad: int
    cls: int
    sep: int
    special_names: dict[str, int]
    """Name -> id of special tokens, for chat templates."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        ...

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return ids [tokens] and byte borders b [tokens + 1]: token i covers the UTF-8 bytes [b[i], b[i + 1])."""
        ...

    def encode_following(self, text: str) -> list[int]:
        """Return the ids of a text that follows another."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of ids, without special tokens."""
        ...

    def decode_following(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of ids that follow others."""
        ...
