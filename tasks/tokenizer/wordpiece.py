"""WordPiece vocabularies (Schuster and Nakajima, 2012; Devlin et al., 2019, BERT): each word is cut into the longest
pieces from the left.

They lose text: whitespace is dropped, case and accents too if the normaliser does so, and a word with an unknown
character becomes `[UNK]`. So the bytes of a text's tokens are not those of their pieces; the library gives the position
of each token in the text.

The file is a `tokenizer.json` of the library `tokenizers`, or BERT's `vocab.txt` with a piece on each line.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from model.errors import Bug, InputError
from tasks.tokenizer.base import CLS, MASK, SEP, slices
from tasks.tokenizer.json_format import LibraryTokenizer, open_engine, read_tokenizer_json

INSIDE = "##"
"""Prefix of pieces inside of a word."""

PADDING, UNKNOWN = "[PAD]", "[UNK]"

SPECIAL_TOKENS = (PADDING, UNKNOWN, CLS[0], SEP[0], MASK[0])
"""Special tokens in the order of the ids of a vocabulary trained here."""


class WordPieceTokenizer(LibraryTokenizer):
    """Encodes with one WordPiece vocabulary; decoding separates words by single spaces, as the library does.

    `[SEP]` ends documents. A text of whitespace alone has no tokens.
    """

    kind = "wordpiece"
    exact = False

    def _open(self, model: bytes) -> None:
        parsed = read_tokenizer_json(model)
        check_word_pieces(parsed)
        self._engine = open_engine(model)
        added = parsed["added_tokens"]
        vocabulary = parsed["model"]["vocab"] | {token["content"]: token["id"] for token in added}
        special = {*SPECIAL_TOKENS, *(token["content"] for token in added if token["special"])}
        self.vocab_size = max(vocabulary.values()) + 1
        pieces = [b""] * self.vocab_size
        for piece, number in vocabulary.items():
            pieces[number] = b"" if piece in special else piece.removeprefix(INSIDE).encode()
        self.piece_bytes = tuple(pieces)
        self._name_special({piece: number for piece, number in vocabulary.items() if piece in special})
        self.unk, self.pad = self.special_names[UNKNOWN], self.special_names.get(PADDING, -1)
        self.bos, self.eos = self.cls, self.sep

    def encode_batch_with_borders(self, texts: Iterable[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for some in slices(texts):
            for text, found in zip(some, self._engine.encode_batch(some, add_special_tokens=False), strict=True):
                yield np.array(found.ids, dtype=np.int32), _borders(text, found.offsets)

    def borders(self, ids: np.ndarray) -> np.ndarray:
        raise Bug("the ids of a WordPiece vocabulary do not determine their bytes in the text")

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Return the UTF-8 of the text that the library decodes, with `[UNK]` for unknown words; a first piece from
        inside of a word keeps its `##`."""
        hidden = {*self.special} - {self.unk}
        visible = [int(token) for token in ids if int(token) not in hidden]
        return self._engine.decode(visible, skip_special_tokens=False).encode()


def check_word_pieces(parsed: dict[str, Any], place: str = "tokenizer") -> None:
    """Raise InputError, which begins with `place`, if a parsed `tokenizer.json` is not a WordPiece vocabulary with the
    special tokens that training needs."""
    model = parsed["model"]
    if model.get("type") != "WordPiece":
        raise InputError(f"{place}: this tokenizer.json has no WordPiece vocabulary")
    if model.get("continuing_subword_prefix", INSIDE) != INSIDE:
        raise InputError(f"{place}: pieces inside of words do not begin with {INSIDE} in this tokenizer.json")
    names = {*model["vocab"], *(token["content"] for token in parsed["added_tokens"] if token["special"])}
    missing = [name for name in (UNKNOWN, *SEP[:1]) if name not in names]
    if missing:
        raise InputError(
            f"{place}: this WordPiece vocabulary has no {' and no '.join(missing)}: unknown words could not be"
            f" encoded, or documents not be ended"
        )


def from_vocab_txt(text: str, place: str = "vocab.base") -> bytes:
    """Return the `tokenizer.json` for a `vocab.txt`: with BERT's normaliser and pre-tokenizer, lowercasing if no piece
    has a capital letter."""
    pieces = text.removesuffix("\n").split("\n")
    vocabulary = {piece.rstrip("\r"): number for number, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        raise InputError(f"{place}: in this vocab.txt a piece occurs twice, so its id is ambiguous")
    ordinary = vocabulary.keys() - {*SPECIAL_TOKENS}
    capitals = any(character.isupper() for piece in ordinary for character in piece if not piece.startswith("["))
    engine = word_piece_engine(vocabulary, lowercase=not capitals)
    return (engine.to_str() + "\n").encode()


def word_piece_engine(vocabulary: dict[str, int], *, lowercase: bool, split_digits: bool = False) -> Any:
    """Return the library's tokenizer for a vocabulary, with BERT's normaliser, pre-tokenizer and decoder."""
    engine = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=UNKNOWN))
    engine.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    words = tokenizers.pre_tokenizers.BertPreTokenizer()
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([words, digits]) if split_digits else words
    engine.decoder = tokenizers.decoders.WordPiece(prefix=INSIDE)
    engine.add_special_tokens([name for name in SPECIAL_TOKENS if name in vocabulary])
    return engine


def _borders(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return byte borders int64 [tokens + 1]: each token reaches from the end of the one before to its own end, the
    last one to the end of the text."""
    ends = np.zeros(len(offsets) + 1, dtype=np.int64)
    ends[1:] = [end for _, end in offsets]
    # Several tokens may come from one character: the first of them gets its bytes.
    ends = np.maximum.accumulate(ends)
    if not text.isascii():
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])[ends]
    if len(offsets):
        ends[-1] = len(text.encode())
    return ends


def readable_word_pieces(parsed: dict[str, Any]) -> list[str]:
    """Return all pieces as spelled in the file, in the order of their ids; an empty text for unused ids."""
    named = {number: piece for piece, number in parsed["model"]["vocab"].items()}
    named |= {token["id"]: token["content"] for token in parsed["added_tokens"]}
    return [named.get(number, "") for number in range(max(named) + 1)]
