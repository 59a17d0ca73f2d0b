"""Comparison of a vocabulary with its base on this run's text, language by language."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import sentencepiece

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import LanguageTokens
from tasks.common.numeric import seed64
from tasks.common.text import is_unspaced
from tasks.tokenizer.base import is_json
from tasks.tokenizer.json_format import UNKNOWN, open_engine
from tasks.tokenizer.released import BYTE_TOKEN
from tasks.vocab.bpe import partial_ids, readable_tokens
from tasks.vocab.corpus import draw_documents, rows_by
from tasks.vocab.scripts import Script

MEASURED_BYTES = 1_000_000
"""UTF-8 bytes of each language or source on which vocabularies are measured; documents are drawn by seed."""


class TokenCounter:
    """Encodes lines with one vocabulary and counts their tokens."""

    def __init__(self, model: bytes) -> None:
        self.tokens = self.bytes = self.unknown = self.lines = self.lost_lines = 0
        """Tokens in all, those that are only part of a character, and unknown ones; lines, and those that decoding does
        not restore."""
        if is_json(model):
            engine = open_engine(model)
            self._encode = lambda lines: [
                found.ids for found in engine.encode_batch_fast(lines, add_special_tokens=False)
            ]
            self._decode = lambda ids: engine.decode_batch(ids, skip_special_tokens=False)
            pieces, parts = readable_tokens(model), partial_ids(model)
            self._is_part = np.array(
                [number in parts or BYTE_TOKEN.fullmatch(piece) is not None for number, piece in enumerate(pieces)],
                dtype=np.int64,
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
        """Return the ids of each line."""
        encoded = self._encode(lines)
        for ids in encoded:
            self.tokens += len(ids)
            self.bytes += int(self._is_part[ids].sum())
            self.unknown += int(self._is_unknown[ids].sum())
        return encoded

    def encode_back(self, lines: list[str]) -> None:
        """Encode and decode, to count the lines that are not restored."""
        decoded = self._decode(self.encode(lines))
        self.lines += len(lines)
        self.lost_lines += sum(one != other for one, other in zip(lines, decoded, strict=True))

    def share(self, count: int) -> float:
        """Return a count as a share of all tokens."""
        return round(count / self.tokens, 6) if self.tokens else 0.0


def compare_vocabularies(
    before: bytes, after: bytes, texts: Mapping[str, Sequence[str]], scripts: Sequence[Script]
) -> dict[str, LanguageTokens]:
    """Return for each language tokens per character and word, shares of byte tokens and unknown tokens, each as
    [before, after]; and how many lines without a character of `scripts` have other ids than before.

    Everything is counted line by line, since most vocabularies have no token for a line end. Words are separated by
    whitespace; in text of unsegmented scripts, where that means nothing, `tokens_per_word` is null.
    """
    result: dict[str, LanguageTokens] = {}
    for language, documents in sorted(texts.items()):
        meters = [TokenCounter(before), TokenCounter(after)]
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
        result[language] = {
            "characters": characters,
            "tokens": [meter.tokens for meter in meters],
            "tokens_per_character": [ratio(meter.tokens, characters) for meter in meters],
            "tokens_per_word": [ratio(meter.tokens, words) for meter in meters] if unspaced < characters / 2 else None,
            "byte_share": [meter.share(meter.bytes) for meter in meters],
            "unknown_share": [meter.share(meter.unknown) for meter in meters],
            "untouched_lines": untouched,
            "moved_lines": moved,
        }
    return result


def sample_texts_by(column: str, documents: Artifact, seed: int, most: int = MEASURED_BYTES) -> dict[str, list[str]]:
    """Return for each language or source (`column` is `lang` or `source`) texts of about `most` bytes, whole documents
    that `draw_documents` draws."""
    sizes: Counter[str] = Counter()
    for name, text in rows_by(column, documents, "text"):
        sizes[name] += len(text.encode())
    texts: dict[str, list[str]] = {}
    plan = dict.fromkeys(sizes, most)
    for drawn in draw_documents(column, documents, sizes, plan, seed64(seed, "vocab", "compare")):
        texts.setdefault(drawn.name, []).append(drawn.text)
    return texts


def ratio(tokens: int, units: int) -> float | None:
    """Return tokens per unit; None where there is no unit."""
    return round(tokens / units, 4) if units else None
