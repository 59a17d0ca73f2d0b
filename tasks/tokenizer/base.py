"""A trained vocabulary at work: text to token ids and back without losing a byte, and the bytes of each token.

Every entry of the vocabulary stands for fixed bytes (text, single bytes through byte fallback, nothing for special
tokens), and the normaliser is the identity. So the ids of a text, looked up in a table of lengths and summed, give each
token's byte offsets, and the bytes joined give the text back.

Many released vocabularies (LLaMA's, Mistral's) put a blank before the first word of a text. `encode` and `decode` treat
whole texts and know of that blank, so ids are those that a base model was trained on; `encode_following` and
`decode_following` treat what comes after other text, where there is none.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from model.digests import digest_bytes
from model.errors import InputError
from tasks.tokenizer.pieces import Encoded, gather, text_by_text, token_dtype

MODEL_FILE = "tokenizer.model"

MODEL_FILES = {"sentencepiece": MODEL_FILE, "byte-level": "byte_level.json", "wordpiece": "word_piece.json"}
"""Kind of vocabulary -> its file; all but the first are a `tokenizer.json` of the library `tokenizers`."""

DESCRIPTION_FILE = "tokenizer.json"

UNK, BOS, EOS, PAD = 0, 1, 2, 3
"""Ids of the special tokens in every vocabulary trained here."""

CLS, SEP, MASK = ("[CLS]", "<cls>"), ("[SEP]", "<sep>"), ("[MASK]", "<mask>")
"""Names of the special tokens of BERT's objective (Devlin et al., 2019)."""

SENTINEL = re.compile(r"<extra_id_(\d+)>")
"""Names of those of T5's (Raffel et al., 2020)."""

BASE = "base"
"""Entry of the description that only a vocabulary grown from another has: what it was grown from."""

ADDED_PIECES = "added_pieces"
"""Table that only such a vocabulary has: each new piece, and the ids with which its base wrote the same bytes."""

SLICE_CHARS = 1 << 20
"""Text in work at a time where texts are encoded one after another."""


class Tokenizer:
    """Encode and decode with one vocabulary; ids are ints in [0, vocab_size). Each kind of vocabulary is a subclass."""

    kind: str
    """Kind of vocabulary, a key of MODEL_FILES."""
    leading_blank: bool
    """Whether whole texts are written with a blank before their first word."""
    vocab_size: int
    unk: int
    bos: int
    eos: int
    pad: int
    cls: int = -1
    sep: int = -1
    mask: int = -1
    """Special ids of BERT's pairs and masks; -1 where the vocabulary has none."""
    sentinels: tuple[int, ...] = ()
    """Ids that stand for spans in T5's objective, number 0 first."""
    special: tuple[int, ...]
    """All ids that stand for no text, sorted."""
    special_names: dict[str, int]
    """Names of those that have one."""
    exact = True
    """Whether the bytes of a text's tokens are the sum of their `piece_lengths`."""
    piece_bytes: tuple[bytes, ...]

    def __init__(self, model: bytes) -> None:
        self.model = model
        self.digest = digest_bytes(model)
        self._open(model)
        if self.eos < 0:
            raise InputError("tokenizer: the vocabulary has no end-of-text token, which closes every document")
        # Released bases often have no padding (LLaMA, Mistral). With byte pieces the unknown token is never emitted, so
        # it can fill rows.
        self.pad = self.pad if self.pad >= 0 else self.unk
        if self.pad < 0:
            raise InputError("tokenizer: the vocabulary has neither a padding nor an unknown token to fill rows with")
        self.special = tuple(number for number, piece in enumerate(self.piece_bytes) if not piece)
        self.piece_lengths = np.array([len(piece) for piece in self.piece_bytes], dtype=np.int64)
        """UTF-8 bytes that each id stands for, shape [vocab_size]; 0 for special tokens."""
        blank_first = np.array([piece.startswith(b" ") for piece in self.piece_bytes], dtype=np.int64)
        self.first_lengths = self.piece_lengths - (blank_first if self.leading_blank else 0)
        """The same for the first id of a whole text, whose leading blank is not the text's own. A text that begins with
        U+2581 gets no blank, and its first id is a byte."""

    def _open(self, model: bytes) -> None:
        """Read the vocabulary's file and set every attribute that the class declares."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Ids of a whole text, without special tokens; `decode` gives exactly `text` back."""
        raise NotImplementedError

    def encode_following(self, text: str) -> list[int]:
        """Ids of a text that follows another; `decode_following` gives exactly `text` back."""
        raise NotImplementedError

    def _encode_slice(self, texts: list[str]) -> Iterator[np.ndarray]:
        """Ids of each of a few texts as int32 arrays [tokens]."""
        raise NotImplementedError

    def description(self) -> dict[str, Any]:
        """The content of `tokenizer.json`: kind, number of pieces, special ids, digest of the model file."""
        of_masks = {"cls": self.cls, "sep": self.sep, "mask": self.mask}
        present = {name: number for name, number in of_masks.items() if number >= 0}
        return {
            "kind": self.kind,
            "vocab_size": self.vocab_size,
            "unk": self.unk,
            "bos": self.bos,
            "eos": self.eos,
            "pad": self.pad,
            "digest": self.digest,
            **present,
            **({"sentinels": list(self.sentinels)} if self.sentinels else {}),
        }

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text as int32 arrays [tokens], about a million characters of text in work at a time."""
        waiting: list[str] = []
        size = 0
        for text in texts:
            waiting.append(text)
            size += len(text)
            if size >= SLICE_CHARS:
                yield from self._encode_slice(waiting)
                waiting, size = [], 0
        yield from self._encode_slice(waiting)

    def encode_batch_with_borders(self, texts: Iterable[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of each text its ids int32 [tokens] and byte borders int64 [tokens + 1], as `encode_with_offsets` gives them.

        The borders tile the text: where a vocabulary drops blanks, they belong to the token that follows, and what
        stands behind the last token to that one.
        """
        for ids in self.encode_batch(texts):
            yield ids, self.borders(ids)

    def encode_column(self, texts: pa.Array | pa.ChunkedArray, closing: int | None = None) -> Encoded:
        """Ids of each text of a column of strings as `encode` gives them, the id `closing` behind each."""
        return gather(self.encode_batch(text_by_text(texts)), token_dtype(self.vocab_size), closing)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids int32 [tokens] and byte borders int64 [tokens + 1]: token i covers UTF-8 bytes [b[i], b[i + 1])."""
        ids = np.array(self.encode(text), dtype=np.int32)
        return ids, self.borders(ids)

    def borders(self, ids: np.ndarray) -> np.ndarray:
        """Byte borders int64 [tokens + 1] of the `ids` of a whole text; special tokens cover no bytes."""
        borders = np.zeros(len(ids) + 1, dtype=np.int64)
        lengths = self.piece_lengths[ids]
        lengths[:1] = self.first_lengths[ids[:1]]
        np.cumsum(lengths, out=borders[1:])
        return borders

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """The UTF-8 bytes that `ids` stand for within a text; special tokens give none."""
        return b"".join([self.piece_bytes[token] for token in ids])

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The whole text of `ids`; bytes that are no UTF-8 (a character cut in two) become U+FFFD."""
        text = self.decode_following(ids)
        return text.removeprefix(" ") if self.leading_blank else text

    def decode_following(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of `ids` that follow others, decoded like `decode`."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def _name_special(self, names: Mapping[str, int]) -> None:
        """Find the special ids of BERT and T5 among the `names` of all that stand for no text."""
        self.special_names = dict(names)
        self.cls, self.sep, self.mask = (
            next((names[name] for name in known if name in names), -1) for known in (CLS, SEP, MASK)
        )
        numbered = {int(match[1]): number for name, number in names.items() if (match := SENTINEL.fullmatch(name))}
        self.sentinels = tuple(numbered[number] for number in sorted(numbered))


def is_json(model: bytes) -> bool:
    """Whether a vocabulary's file is a `tokenizer.json`."""
    return model.lstrip()[:1] == b"{"


def json_model(model: bytes) -> dict[str, Any]:
    """The model that a `tokenizer.json` holds, as parsed; empty for another file."""
    try:
        parsed = json.loads(model)
    except (ValueError, RecursionError):
        return {}
    held = parsed.get("model") if isinstance(parsed, dict) else None
    return held if isinstance(held, dict) else {}


def json_model_type(model: bytes) -> str | None:
    """The type of model that a `tokenizer.json` holds; None for another file."""
    return json_model(model).get("type")
