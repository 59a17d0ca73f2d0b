"""The interface of a tokenizer: text to token ids and back without losing a byte, and the bytes of each token.

Every entry of the vocabulary represents fixed bytes (text, single bytes through byte fallback, nothing for special
tokens), and the normaliser is the identity. So the cumulative lengths of the ids of a text are its tokens' byte
offsets, and their bytes joined are the text.

Many published vocabularies (LLaMA's, Mistral's) put a space before the first word of a text. `encode` and `decode`
handle whole texts with that space, so that ids are those that a base model was trained on; `encode_following` and
`decode_following` handle text that follows other text, without it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from model.digests import digest_bytes
from model.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

MODEL_FILE = "tokenizer.model"

MODEL_FILES = {"sentencepiece": MODEL_FILE, "byte-level": "byte_level.json", "wordpiece": "word_piece.json"}
"""Kind of vocabulary -> its file; all but the first are in the format `tokenizer.json` of the library `tokenizers`."""

DESCRIPTION_FILE = "tokenizer.json"

UNK, BOS, EOS, PAD = 0, 1, 2, 3
"""Ids of the special tokens in every vocabulary trained here."""

CLS, SEP, MASK = ("[CLS]", "<cls>"), ("[SEP]", "<sep>"), ("[MASK]", "<mask>")
"""Names of the special tokens of BERT (Devlin et al., 2019)."""

SENTINEL = re.compile(r"<extra_id_(\d+)>")
"""Names of the sentinels of T5 (Raffel et al., 2020)."""

BASE = "base"
"""Entry of the description of an extended vocabulary: the base from which it was extended."""

ADDED_PIECES = "added_pieces"
"""Table of an extended vocabulary: each added piece, and the ids with which its base encodes the same bytes."""

SLICE_CHARS = 1 << 20
"""Characters encoded at a time when texts are encoded one after another."""


@dataclass(frozen=True)
class Encoded:
    """The concatenated ids of many texts: those of text i are ids[offsets[i] : offsets[i + 1]]."""

    ids: np.ndarray
    """uint16 or uint32 [tokens]."""
    offsets: npt.NDArray[np.int64]
    """int64 [texts + 1]."""

    def begun_with(self, token: int) -> "Encoded":
        """Return the same with `token` before each text."""
        ids = np.insert(self.ids, self.offsets[:-1], token)
        return Encoded(ids, self.offsets + np.arange(len(self.offsets)))


class Tokenizer:
    """Encodes and decodes with one vocabulary; ids are ints in [0, vocab_size). Each kind of vocabulary is a
    subclass."""

    kind: str
    """Kind of vocabulary, a key of MODEL_FILES."""
    leading_space: bool
    """Whether whole texts are encoded with a space before their first word."""
    vocab_size: int
    unk: int
    bos: int
    eos: int
    pad: int
    begin: int = -1
    """Id that programs put before each text of a released model, which it was trained with; -1 for none. Vocabularies
    trained here have none: their texts follow the end-of-text token."""
    cls: int = -1
    sep: int = -1
    mask: int = -1
    """Special ids of BERT's pairs and masks; -1 where the vocabulary has none."""
    sentinels: tuple[int, ...] = ()
    """Ids of T5's sentinels, which replace spans, number 0 first."""
    special: tuple[int, ...]
    """All ids without text, sorted."""
    special_names: dict[str, int]
    """Name -> id, of special ids that have a name."""
    exact = True
    """Whether the bytes of a text's tokens are the sum of their `piece_lengths`."""
    piece_bytes: tuple[bytes, ...]

    def __init__(self, model: bytes, *, pads: bool = True, begins: bool = False) -> None:
        """Open a vocabulary; InputError where it has no end of text, or with `pads` nothing to pad sequences with.

        `begins` says whether texts begin with the token `bos` where the file cannot say it (SentencePiece's).
        """
        self.model = model
        self.digest = digest_bytes(model)
        self._open(model)
        if begins:
            self.begin = self.bos
        if self.eos < 0:
            raise InputError("tokenizer: the vocabulary has no end-of-text token, which must end every document")
        # Published vocabularies often have no padding token (LLaMA, Mistral). With byte pieces the unknown token is
        # never emitted, so it can pad sequences.
        self.pad = self.pad if self.pad >= 0 else self.unk
        if pads and self.pad < 0:
            raise InputError(
                "tokenizer: the vocabulary has neither a padding nor an unknown token to pad sequences with"
            )
        self.special = tuple(number for number, piece in enumerate(self.piece_bytes) if not piece)
        self.piece_lengths = np.array([len(piece) for piece in self.piece_bytes], dtype=np.int64)
        """Number of UTF-8 bytes of each id, int64 [vocab_size]; 0 for special tokens."""
        begins_with_space = np.array([piece.startswith(b" ") for piece in self.piece_bytes], dtype=np.int64)
        self.first_lengths = self.piece_lengths - (begins_with_space if self.leading_space else 0)
        """The same for the first id of a whole text, whose leading space is not part of the text. A text that begins
        with U+2581 gets no space, and its first id is a byte."""

    @property
    def opening(self) -> int:
        """The token that the first token of a text follows: `begin`, or the end of the text before."""
        return self.begin if self.begin >= 0 else self.eos

    def _open(self, model: bytes) -> None:
        """Read the vocabulary's file and set every attribute that the class declares."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Return the ids of a whole text, without special tokens; `decode` returns exactly `text` for them."""
        raise NotImplementedError

    def encode_following(self, text: str) -> list[int]:
        """Return the ids of a text that follows another; `decode_following` returns exactly `text` for them."""
        raise NotImplementedError

    def _encode_slice(self, texts: list[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each of a few texts, int32 [tokens]."""
        raise NotImplementedError

    def description(self) -> dict[str, Any]:
        """Return the content of `tokenizer.json`: kind, number of pieces, special ids, digest of the model file."""
        of_masks = {"cls": self.cls, "sep": self.sep, "mask": self.mask}
        present = {name: number for name, number in {**of_masks, "begin": self.begin}.items() if number >= 0}
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
        """Yield the ids of each text, int32 [tokens], encoding about a million characters at a time."""
        for some in slices(texts):
            yield from self._encode_slice(some)

    def encode_batch_with_borders(self, texts: Iterable[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids int32 [tokens] and byte borders int64 [tokens + 1] of each text, as `encode_with_offsets`.

        The borders cover the whole text: if a vocabulary drops whitespace, its bytes belong to the next token, and
        those after the last token to that one.
        """
        for ids in self.encode_batch(texts):
            yield ids, self.borders(ids)

    def encode_column(self, texts: "pa.Array | pa.ChunkedArray", closing: int | None = None) -> Encoded:
        """Return the ids of each text of a column of strings, as `encode`, each followed by the id `closing` if
        given."""
        return gather(self.encode_batch(text_by_text(texts)), token_dtype(self.vocab_size), closing)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return ids int32 [tokens] and byte borders int64 [tokens + 1]: token i covers UTF-8 bytes [b[i], b[i +
        1])."""
        return next(self.encode_batch_with_borders([text]))

    def borders(self, ids: np.ndarray) -> np.ndarray:
        """Return the byte borders int64 [tokens + 1] of the `ids` of a whole text; special tokens cover no bytes."""
        borders = np.zeros(len(ids) + 1, dtype=np.int64)
        lengths = self.piece_lengths[ids]
        lengths[:1] = self.first_lengths[ids[:1]]
        np.cumsum(lengths, out=borders[1:])
        return borders

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Return the UTF-8 bytes of `ids` inside of a text; special tokens have none."""
        return b"".join([self.piece_bytes[token] for token in ids])

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the whole text of `ids`; bytes that are not UTF-8 (part of a character) become U+FFFD."""
        text = self.decode_following(ids)
        return text.removeprefix(" ") if self.leading_space else text

    def decode_following(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of `ids` that follow others, decoded like `decode`."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def _name_special(self, names: Mapping[str, int]) -> None:
        """Set the special ids of BERT and T5 from `names`, name -> id of all ids without text."""
        self.special_names = dict(names)
        self.cls, self.sep, self.mask = (
            next((names[name] for name in known if name in names), -1) for known in (CLS, SEP, MASK)
        )
        numbered = {int(match[1]): number for name, number in names.items() if (match := SENTINEL.fullmatch(name))}
        self.sentinels = tuple(numbered[number] for number in sorted(numbered))


def slices(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts into lists of at least `SLICE_CHARS` characters; the last one may be shorter."""
    waiting: list[str] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= SLICE_CHARS:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Return uint16 if every id fits, else uint32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def text_by_text(texts: "pa.Array | pa.ChunkedArray") -> Iterator[str]:
    """Yield the strings of a column, converting a chunk at a time."""
    for chunk in getattr(texts, "chunks", [texts]):
        yield from chunk.to_pylist()


def gather(texts: Iterable[np.ndarray], dtype: type[np.uint16] | type[np.uint32], closing: int | None) -> Encoded:
    """Concatenate the ids of texts, each followed by `closing` if given."""
    tail = np.array([] if closing is None else [closing], dtype)
    arrays = [np.zeros(0, dtype)]
    lengths = [0]
    for ids in texts:
        arrays += [ids.astype(dtype), tail]
        lengths.append(len(ids) + len(tail))
    return Encoded(np.concatenate(arrays), np.cumsum(lengths, dtype=np.int64))


def is_json(model: bytes) -> bool:
    """Return whether a vocabulary's file is a `tokenizer.json`."""
    return model.lstrip()[:1] == b"{"


def json_model(model: bytes) -> dict[str, Any]:
    """Return the parsed model of a `tokenizer.json`; empty for another file."""
    try:
        parsed = json.loads(model)
    except (ValueError, RecursionError):
        return {}
    held = parsed.get("model") if isinstance(parsed, dict) else None
    return held if isinstance(held, dict) else {}


def json_model_type(model: bytes) -> str | None:
    """Return the type of the model of a `tokenizer.json`; None for another file."""
    return json_model(model).get("type")
