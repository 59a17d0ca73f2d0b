"""A WordPiece vocabulary at work (Schuster and Nakajima, 2012; Devlin et al., 2019, BERT): words cut into the longest
pieces from the left.

It loses text: blanks are dropped, case and accents too where its normaliser says so, and a word with a character that
it does not know is `[UNK]`. So the bytes of a text's tokens are not those of their pieces, and come from the library,
which tells of each token where in the text it stood.

The file is a `tokenizer.json` of the library `tokenizers`, or BERT's `vocab.txt`, a piece a line.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from model.errors import Bug, InputError
from tasks.tokenizer.base import CLS, MASK, SEP, SLICE_CHARS, Tokenizer
from tasks.tokenizer.json_format import read_tokenizer_json

INSIDE = "##"
"""Begins the pieces that stand inside a word."""

PADDING, UNKNOWN = "[PAD]", "[UNK]"

SPECIAL_TOKENS = (PADDING, UNKNOWN, CLS[0], SEP[0], MASK[0])
"""Of every such vocabulary, in the order of the ids of one trained here."""


class WordPieceTokenizer(Tokenizer):
    """Encodes with one WordPiece vocabulary; decoding gives words with single blanks between them, as the library does.

    `[SEP]` closes documents. A text of blanks alone has no tokens.
    """

    kind = "wordpiece"
    exact = False

    def _open(self, model: bytes) -> None:
        parsed = read_tokenizer_json(model)
        check_word_pieces(parsed)
        self._engine = tokenizers.Tokenizer.from_buffer(model)
        # A page that shows `[MASK]` is text; only rows put the token itself anywhere.
        self._engine.encode_special_tokens = True
        self._engine.no_padding()
        self._engine.no_truncation()
        self.leading_blank = False
        vocabulary = parsed["model"]["vocab"]
        added = {token["content"]: token["id"] for token in parsed["added_tokens"] if token["special"]}
        self.vocab_size = max([*vocabulary.values(), *added.values()]) + 1
        pieces = [b""] * self.vocab_size
        for piece, number in vocabulary.items():
            pieces[number] = b"" if piece in added or piece in SPECIAL_TOKENS else piece.removeprefix(INSIDE).encode()
        self.piece_bytes = tuple(pieces)
        self._name_special({name: vocabulary[name] for name in SPECIAL_TOKENS if name in vocabulary} | added)
        self.unk, self.pad = self.special_names[UNKNOWN], self.special_names.get(PADDING, -1)
        self.bos, self.eos = self.cls, self.sep

    def encode(self, text: str) -> list[int]:
        return self._engine.encode(text, add_special_tokens=False).ids

    def encode_following(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        return next(self.encode_batch_with_borders([text]))

    def encode_batch_with_borders(self, texts: Iterable[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for some in _slices(texts):
            for text, found in zip(some, self._engine.encode_batch(some, add_special_tokens=False), strict=True):
                yield np.array(found.ids, dtype=np.int32), _borders(text, found.offsets)

    def borders(self, ids: np.ndarray) -> np.ndarray:
        raise Bug("the ids of a WordPiece vocabulary do not tell which bytes of a text they were made of")

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """UTF-8 of the text that the library decodes, `[UNK]` where a word was not known; one inside a word keeps its
        `##` where it comes first."""
        silent = {*self.special} - {self.unk}
        shown = [int(token) for token in ids if int(token) not in silent]
        return self._engine.decode(shown, skip_special_tokens=False).encode()

    def _encode_slice(self, texts: list[str]) -> Iterator[np.ndarray]:
        for encoded in self._engine.encode_batch_fast(texts, add_special_tokens=False):
            yield np.array(encoded.ids, dtype=np.int32)


def check_word_pieces(parsed: dict[str, Any], place: str = "tokenizer") -> None:
    """Raise InputError, which begins with `place`, where a parsed `tokenizer.json` is not such a vocabulary with the
    tokens that rows need."""
    model = parsed.get("model") or {}
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if model.get("type") != "WordPiece" or not isinstance(vocabulary, dict) or not vocabulary:
        raise InputError(f"{place}: this tokenizer.json holds no WordPiece vocabulary")
    if model.get("continuing_subword_prefix", INSIDE) != INSIDE:
        raise InputError(f"{place}: pieces inside words begin with other signs than {INSIDE} in this tokenizer.json")
    names = {*vocabulary, *(token["content"] for token in parsed["added_tokens"] if token["special"])}
    missing = [name for name in (UNKNOWN, *SEP[:1]) if name not in names]
    if missing:
        raise InputError(
            f"{place}: this WordPiece vocabulary has no {' and no '.join(missing)}: unknown words could not be"
            f" written, or documents not be closed"
        )


def of_lines(text: str, place: str = "vocab.base") -> bytes:
    """The `tokenizer.json` of a `vocab.txt`: BERT's normaliser and splitter, in small letters where no piece has a
    capital one."""
    pieces = text.removesuffix("\n").split("\n")
    vocabulary = {piece.rstrip("\r"): number for number, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        raise InputError(f"{place}: in this vocab.txt some piece stands twice, so ids would not be known")
    ordinary = vocabulary.keys() - {*SPECIAL_TOKENS}
    capitals = any(character.isupper() for piece in ordinary for character in piece if not piece.startswith("["))
    engine = word_piece_engine(vocabulary, lowercase=not capitals)
    return (engine.to_str() + "\n").encode()


def word_piece_engine(vocabulary: dict[str, int], *, lowercase: bool, split_digits: bool = False) -> Any:
    """The library's tokenizer of a vocabulary, with BERT's normaliser, splitter and decoder."""
    engine = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=UNKNOWN))
    engine.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    words = tokenizers.pre_tokenizers.BertPreTokenizer()
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([words, digits]) if split_digits else words
    engine.decoder = tokenizers.decoders.WordPiece(prefix=INSIDE)
    engine.add_special_tokens([name for name in SPECIAL_TOKENS if name in vocabulary])
    return engine


def _borders(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Byte borders [tokens + 1]: each token reaches from where the one before ended to its own end, the last one to the
    end of the text."""
    ends = np.zeros(len(offsets) + 1, dtype=np.int64)
    ends[1:] = [end for _, end in offsets]
    # Several tokens may come from one character: only the first of them has bytes.
    ends = np.maximum.accumulate(ends)
    if not text.isascii():
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])[ends]
    if len(offsets):
        ends[-1] = len(text.encode())
    return ends


def _slices(texts: Iterable[str]) -> Iterator[list[str]]:
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


def readable_word_pieces(parsed: dict[str, Any]) -> list[str]:
    """All pieces in the order of their ids, as they stand in the file; nothing for ids that no piece has."""
    named = {number: piece for piece, number in parsed["model"]["vocab"].items()}
    named |= {token["id"]: token["content"] for token in parsed["added_tokens"]}
    return [named.get(number, "") for number in range(max(named) + 1)]
