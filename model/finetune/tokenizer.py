"""The interface of a vocabulary for fine-tuning, and its implementation by a `tokenizer.json`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from model.digests import digest_bytes
from model.errors import InputError, RecipeError
from model.model_files import MAX_VOCABULARY_BYTES, read_bounded

_NAMES = {
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "eos": ("</s>", "[SEP]", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]", "<unk>"),
}


class Vocabulary(Protocol):
    """Converts text to ids and back; a special id that the vocabulary lacks is -1."""

    vocab_size: int
    digest: str
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


class JsonVocabulary:
    """A `tokenizer.json` of the library `tokenizers`; InputError where it cannot be read or has no padding."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        if not path.is_file():
            raise InputError(f"there is no vocabulary {path}; give the path of a tokenizer.json")
        content = read_bounded(path, MAX_VOCABULARY_BYTES)
        try:
            self._engine = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:
            # The library raises bare Exceptions.
            raise InputError(f"{path} is no tokenizer.json that the library tokenizers reads: {error}") from error
        self._engine.no_padding()
        self._engine.no_truncation()
        self._engine.encode_special_tokens = True
        self.digest = digest_bytes(content)
        self.special_names: dict[str, int] = {}
        self.vocab_size = self._engine.get_vocab_size(with_added_tokens=True)
        self.cls, self.sep, self.eos, self.pad = (self._special(*_NAMES[name]) for name in ("cls", "sep", "eos", "pad"))
        if self.pad < 0:
            raise InputError(f"{path} has no padding token ({', '.join(_NAMES['pad'])}), which fills rows of a batch")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._engine.encode(text, add_special_tokens=False).ids

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return ids [tokens] and byte borders [tokens + 1]; a space between tokens belongs to the one after it."""
        found = self._engine.encode(text, add_special_tokens=False)
        bytes_before = np.zeros(len(text) + 1, dtype=np.int64)
        np.cumsum([len(character.encode()) for character in text], out=bytes_before[1:])
        ends = np.maximum.accumulate(np.array([0, *(end for _, end in found.offsets)], dtype=np.int64))
        if found.offsets:
            ends[-1] = len(text)
        return np.array(found.ids, dtype=np.int32), bytes_before[ends]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of ids, without special tokens."""
        return self._engine.decode([int(token) for token in ids], skip_special_tokens=True)

    def encode_following(self, text: str) -> list[int]:
        """Raise RecipeError: the library encodes whole texts only, some of them with a space before."""
        raise RecipeError('kind = "chat" needs the vocabulary of a run; use `bessemer model finetune`')

    def decode_following(self, ids: Sequence[int] | np.ndarray) -> str:
        """Raise RecipeError, for the same reason."""
        return str(self.encode_following(""))

    def _special(self, *names: str) -> int:
        return next((number for name in names if (number := self._engine.token_to_id(name)) is not None), -1)
