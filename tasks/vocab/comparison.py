"""A vocabulary beside the base it came from, on this run's text, language by language."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sentencepiece

from tasks.artifact import Artifact, read_table
from tasks.scripts import is_unspaced
from tasks.seed import seed64, unit_interval
from tasks.vocab.scripts import Script

MEASURED_BYTES = 1_000_000
"""UTF-8 bytes of each language on which vocabularies are compared, documents drawn by seed."""
UNTOLD = "unknown"
"""The language of documents that do not name one."""


@dataclass
class Cost:
    """What writing some text takes."""

    tokens: int = 0
    byte_tokens: int = 0
    """Tokens that are single bytes of a character without a piece."""
    unknown: int = 0
    """Tokens that lose what they stand for."""

    def share(self, name: str) -> float:
        """A count among all tokens."""
        return round(getattr(self, name) / self.tokens, 6) if self.tokens else 0.0


def compare(
    before: bytes, after: bytes, texts: Mapping[str, Sequence[str]], scripts: Sequence[Script]
) -> dict[str, dict[str, Any]]:
    """Language -> tokens per character and word, shares of bytes and unknowns, each as [before, after]; and how many
    lines without a character of `scripts` have other ids than before.

    Everything is counted line by line: a line end is no piece in most vocabularies. Words are what blanks part; in
    text without blanks, where they would say nothing, `tokens_per_word` is null.
    """
    processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in (before, after)]
    kinds = [_kinds(processor) for processor in processors]
    told: dict[str, dict[str, Any]] = {}
    for language, documents in sorted(texts.items()):
        costs = [Cost(), Cost()]
        characters = words = unspaced = untouched = moved = 0
        for text in documents:
            lines = [line for line in text.split("\n") if line]
            encoded = [processor.encode(lines) for processor in processors]
            for cost, kind, ids_of_lines in zip(costs, kinds, encoded, strict=True):
                _count(cost, kind, ids_of_lines)
            characters += sum(map(len, lines))
            words += sum(len(line.split()) for line in lines)
            unspaced += sum(is_unspaced(ord(character)) for character in text)
            for line, old, new in zip(lines, *encoded, strict=True):
                if not any(script.occurs_in(line) for script in scripts):
                    untouched += 1
                    moved += old != new
        told[language] = {
            "characters": characters,
            "tokens": [cost.tokens for cost in costs],
            "tokens_per_character": [_ratio(cost.tokens, characters) for cost in costs],
            "tokens_per_word": [_ratio(cost.tokens, words) for cost in costs] if unspaced < characters / 2 else None,
            "byte_share": [cost.share("byte_tokens") for cost in costs],
            "unknown_share": [cost.share("unknown") for cost in costs],
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


def _kinds(processor: sentencepiece.SentencePieceProcessor) -> np.ndarray:
    """For each id: 1 where it is a byte, 2 where it is the unknown token, else 0."""
    pieces = range(processor.get_piece_size())
    return np.array([processor.is_byte(piece) + 2 * processor.is_unknown(piece) for piece in pieces], dtype=np.int8)


def _count(cost: Cost, kinds: np.ndarray, ids_of_lines: Sequence[Sequence[int]]) -> None:
    for ids in ids_of_lines:
        of_kind = np.bincount(kinds[ids], minlength=3) if ids else (0, 0, 0)
        cost.tokens += len(ids)
        cost.byte_tokens += int(of_kind[1])
        cost.unknown += int(of_kind[2])


def _ratio(tokens: int, units: int) -> float | None:
    return round(tokens / units, 4) if units else None
