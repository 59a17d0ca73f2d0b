"""A vocabulary beside the base it came from, on this run's text, language by language."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sentencepiece
import tokenizers

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables import read_table
from tasks.common.numeric import seed64, unit_interval
from tasks.common.text import is_unspaced
from tasks.tokenizer.base import is_json
from tasks.tokenizer.byte_level import UNKNOWN
from tasks.vocab.extenders import piece_names
from tasks.vocab.scripts import Script

MEASURED_BYTES = 1_000_000
"""UTF-8 bytes of each language on which vocabularies are compared, documents drawn by seed."""
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
UNTOLD = "unknown"
"""The language of documents that do not name one."""


class Meter:
    """Encodes lines with one vocabulary and counts what they take."""

    def __init__(self, model: bytes) -> None:
        self.tokens = self.bytes = self.unknown = self.lines = self.lost_lines = 0
        """Tokens, those that are only a part of a character, those that lose what they stand for; lines, and those that
        decoding does not give back."""
        if is_json(model):
            engine = tokenizers.Tokenizer.from_buffer(model)
            engine.encode_special_tokens = True
            self._encode = lambda lines: [
                found.ids for found in engine.encode_batch_fast(lines, add_special_tokens=False)
            ]
            self._decode = lambda ids: engine.decode_batch(ids, skip_special_tokens=False)
            pieces = piece_names(model)
            self._is_part = np.array(
                ["\\x" in piece or BYTE_PIECE.fullmatch(piece) is not None for piece in pieces], dtype=np.int64
            )
            self._is_unknown = np.array([piece in UNKNOWN for piece in pieces], dtype=np.int64)
        else:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            self._encode, self._decode = processor.encode, processor.decode
            pieces = range(processor.get_piece_size())
            self._is_part = np.array([processor.is_byte(piece) for piece in pieces], dtype=np.int64)
            self._is_unknown = np.array([processor.is_unknown(piece) for piece in pieces], dtype=np.int64)
        self.pieces = len(pieces)

    def encode(self, lines: list[str]) -> list[list[int]]:
        """The ids of each line."""
        encoded = self._encode(lines)
        for ids in encoded:
            self.tokens += len(ids)
            self.bytes += int(self._is_part[ids].sum())
            self.unknown += int(self._is_unknown[ids].sum())
        return encoded

    def encode_back(self, lines: list[str]) -> None:
        """Encode and decode, to count the lines that are lost."""
        decoded = self._decode(self.encode(lines))
        self.lines += len(lines)
        self.lost_lines += sum(one != other for one, other in zip(lines, decoded, strict=True))

    def share(self, count: int) -> float:
        """A count among all tokens."""
        return round(count / self.tokens, 6) if self.tokens else 0.0


def compare(
    before: bytes, after: bytes, texts: Mapping[str, Sequence[str]], scripts: Sequence[Script]
) -> dict[str, dict[str, Any]]:
    """Language -> tokens per character and word, shares of bytes and unknowns, each as [before, after]; and how many
    lines without a character of `scripts` have other ids than before.

    Everything is counted line by line: a line end is no piece in most vocabularies. Words are what blanks part; in
    text without blanks, where they would say nothing, `tokens_per_word` is null.
    """
    told: dict[str, dict[str, Any]] = {}
    for language, documents in sorted(texts.items()):
        meters = [Meter(before), Meter(after)]
        characters = words = unspaced = untouched = moved = 0
        for text in documents:
            lines = [line for line in text.split("\n") if line]
            characters += sum(map(len, lines))
            words += sum(len(line.split()) for line in lines)
            unspaced += sum(is_unspaced(ord(character)) for character in text)
            for line, old, new in zip(lines, *(meter.encode(lines) for meter in meters), strict=True):
                if not any(script.occurs_in(line) for script in scripts):
                    untouched += 1
                    moved += old != new
        told[language] = {
            "characters": characters,
            "tokens": [meter.tokens for meter in meters],
            "tokens_per_character": [ratio(meter.tokens, characters) for meter in meters],
            "tokens_per_word": [ratio(meter.tokens, words) for meter in meters] if unspaced < characters / 2 else None,
            "byte_share": [meter.share(meter.bytes) for meter in meters],
            "unknown_share": [meter.share(meter.unknown) for meter in meters],
            "untouched_lines": untouched,
            "moved_lines": moved,
        }
    return told


def texts_by(column: str, documents: Artifact, seed: int, most: int = MEASURED_BYTES) -> dict[str, list[str]]:
    """Language or source (`lang`, `source`) -> texts of about `most` bytes, drawn by document id, so that the same ones
    are drawn however the parts are cut."""
    sizes: dict[str, int] = {}
    for name, size, _, _ in _rows(column, documents):
        sizes[name] = sizes.get(name, 0) + size
    draw = seed64(seed, "vocab", "compare")
    left, texts = dict.fromkeys(sizes, most), dict[str, list[str]]()
    for name, size, doc_id, text in _rows(column, documents):
        if left[name] > 0 and unit_interval(doc_id, draw) < most / max(1, sizes[name]):
            left[name] -= size
            texts.setdefault(name, []).append(text)
    return texts


def _rows(column: str, documents: Artifact) -> Iterator[tuple[str, int, bytes, str]]:
    for path in documents.files("documents"):
        for batch in read_table(path).select([column, "doc_id", "text"]).to_batches():
            names = pc.fill_null(batch.column(column).cast(pa.string()), UNTOLD)
            columns = (names, pc.binary_length(batch.column("text")), batch.column("doc_id"), batch.column("text"))
            yield from zip(*(values.to_pylist() for values in columns), strict=True)


def ratio(tokens: int, units: int) -> float | None:
    """Tokens a unit; None where there is none."""
    return round(tokens / units, 4) if units else None
