"""SentencePiece vocabularies (Kudo and Richardson, 2018): Unigram and BPE with byte fallback.

SentencePiece spells a space as U+2581 inside of pieces, and would read a U+2581 in the text as a space. Here that
character is always encoded as its three bytes.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import sentencepiece

from model.errors import InputError
from tasks.tokenizer.base import Encoded, Tokenizer
from tasks.tokenizer.model_file import BLANK, read_model


class SentencePieceTokenizer(Tokenizer):
    """Encodes and decodes with one SentencePiece vocabulary."""

    kind = "sentencepiece"

    def _open(self, model: bytes) -> None:
        self._processor = _processor(model)
        self.leading_space, self._following = _following(model, self._processor)
        pieces = range(self._processor.get_piece_size())
        self.vocab_size = len(pieces)
        self.unk = int(self._processor.unk_id())
        self.bos = int(self._processor.bos_id())
        self.eos = int(self._processor.eos_id())
        self.pad = int(self._processor.pad_id())
        self.piece_bytes = tuple(self._bytes_of(piece) for piece in pieces)
        self._name_special(
            {self._processor.id_to_piece(piece): piece for piece in pieces if not self.piece_bytes[piece]}
        )
        self._blank_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in BLANK.encode()]
        if self.unk in self._blank_ids:
            raise InputError(
                "tokenizer: the vocabulary has no byte pieces, so some text could not be decoded exactly."
                " Train it with byte fallback."
            )
        if self.decode_bytes(self._following.encode(" ")) != b" ":
            raise InputError(
                f"tokenizer: the vocabulary has no piece for a space ({BLANK}), so some text could not be decoded"
                " exactly. Train it again, or take another base."
            )

    def encode(self, text: str) -> list[int]:
        return self._encode(text, self._processor)

    def encode_following(self, text: str) -> list[int]:
        return self._encode(text, self._following)

    def encode_column(self, texts: pa.Array | pa.ChunkedArray, closing: int | None = None) -> Encoded:
        from tasks.tokenizer.encoder import open_encoder

        encoder = open_encoder(self.model)
        return super().encode_column(texts, closing) if encoder is None else encoder.encode(texts, closing)

    def _encode(self, text: str, first: sentencepiece.SentencePieceProcessor) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(text.split(BLANK)):
            if number:
                ids += self._blank_ids
            if part:
                ids += (self._following if number else first).encode(part)
        return ids

    def _encode_slice(self, texts: list[str]) -> Iterator[np.ndarray]:
        plain = [text for text in texts if BLANK not in text]
        encoded = iter(self._processor.encode(plain, num_threads=1) if plain else ())
        for text in texts:
            yield np.array(self.encode(text) if BLANK in text else next(encoded), dtype=np.int32)

    def _bytes_of(self, piece: int) -> bytes:
        if self._processor.is_control(piece) or self._processor.is_unknown(piece):
            return b""
        name = self._processor.id_to_piece(piece)
        if self._processor.is_byte(piece):
            return bytes([int(name[3:5], 16)])
        return name.replace(BLANK, " ").encode()


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"tokenizer: SentencePiece cannot read this vocabulary ({error}). The file may be damaged or truncated:"
            f" download it again."
        ) from error


def _following(
    model: bytes, processor: sentencepiece.SentencePieceProcessor
) -> tuple[bool, sentencepiece.SentencePieceProcessor]:
    """Return whether the model puts a space before a text, and the processor for text that follows other text."""
    parsed = read_model(model, "tokenizer")
    if not parsed.normalizer_spec.add_dummy_prefix:
        return False, processor
    parsed.normalizer_spec.add_dummy_prefix = False
    return True, sentencepiece.SentencePieceProcessor(model_proto=parsed.SerializeToString())
