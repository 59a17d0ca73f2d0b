"""Vocabularies on a text of one's own: a run's, before and after it was extended, and released ones side by side."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flows.lineage import run_artifacts
from flows.peek.difference import EVEN_PIECE, ODD_PIECE, UNKNOWN_PIECE
from flows.record import RECORD, read_record
from flows.vocabulary_files import (
    EXPECTED,
    KNOWN,
    read_vocabulary,
    refuse_compressed,
    vocabularies_within,
    vocabulary_described,
)
from flows.zero_step import weights_beside, zero_step
from model.errors import InputError
from tasks.artifact import Artifact
from tasks.open_tokenizer import open_tokenizer, tokenizer_of
from tasks.tokenizer import DESCRIPTION_FILE, MODEL_FILES, Tokenizer
from tasks.vocab.comparison import Meter, ratio
from tasks.vocab.kinds import first_pieces
from tasks.word_piece import UNKNOWN


def pieces_of(vocab: Artifact, text: str) -> list[dict[str, Any]]:
    """The text in pieces of a run's vocabulary, and before them, where it extends a base, in pieces of that base.

    `unknown` counts the tokens that lose the text they stand for; their pieces are that text.
    """
    tokenizer = open_tokenizer(vocab)
    base = vocab.report.facts["vocabulary"].get("base")
    if base is None:
        return [_view("the run's vocabulary", tokenizer, text)]
    rows = base["pieces"] + base["besides"]
    if rows == tokenizer.vocab_size:
        return [_view("the base", tokenizer, text)]
    return [
        _view("the base", tokenizer_of(first_pieces(tokenizer.model, rows)), text),
        _view("extended", tokenizer, text),
    ]


def _view(name: str, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    ids, borders = tokenizer.encode_with_offsets(text)
    raw = text.encode()
    pieces = [raw[start:end].decode(errors="backslashreplace") for start, end in pairwise(borders)]
    each = f", {len(ids) / len(text):.3f} a character" if text else ""
    is_unknown = (ids == tokenizer.unk).tolist()
    lost = f", {sum(is_unknown)} of them unknown" if any(is_unknown) else ""
    segments = [(ODD_PIECE if index % 2 else EVEN_PIECE, piece) for index, piece in enumerate(pieces)]
    for index in np.flatnonzero(is_unknown):
        segments[index] = (UNKNOWN_PIECE, f"{UNKNOWN}{pieces[index]}")
    return {
        "title": f"{name}, {tokenizer.vocab_size:,} pieces: {len(ids)} tokens{each}{lost}",
        "segments": segments,
        "pieces": pieces,
        "ids": ids.tolist(),
        "unknown": sum(is_unknown),
    }


def compare_bases(text: Path, bases: Sequence[Path], most_bytes: int = 0) -> list[dict[str, Any]]:
    """What each vocabulary needs for the lines of a text file, the fewest tokens first; folders are searched. Where
    weights lie beside a vocabulary, their bits per byte on the first `most_bytes` of the text.
    Raises InputError where there is no text or no vocabulary.
    """
    whole = _read(text)
    lines = [line for line in whole.split("\n") if line]
    if not lines:
        raise InputError(f"{text} holds no text to compare vocabularies on")
    characters, words = sum(map(len, lines)), sum(len(line.split()) for line in lines)
    told = []
    for name, path, weights in _models(bases):
        model, kind = read_vocabulary(path)
        try:
            meter = Meter(model)
        except ValueError as error:
            raise InputError(f"{path}: the library tokenizers cannot read it ({error}). {EXPECTED}") from error
        meter.encode_back(lines)
        told.append(
            {
                "path": name,
                "kind": kind,
                "pieces": meter.pieces,
                "tokens": meter.tokens,
                "tokens_per_character": ratio(meter.tokens, characters),
                "tokens_per_word": ratio(meter.tokens, words),
                "byte_share": meter.share(meter.bytes),
                "unknown_share": meter.share(meter.unknown),
                "lines": meter.lines,
                "lost_lines": meter.lost_lines,
                **_zero_step(path, weights, whole, most_bytes),
            }
        )
    return sorted(told, key=lambda line: line["tokens"])


def _zero_step(path: Path, weights: Path | None, text: str, most_bytes: int) -> dict[str, Any]:
    if weights is None or not most_bytes:
        return {"bits_per_byte": None, "scored_bytes": 0, "note": ""}
    return zero_step(weights, path, text, most_bytes)


def _read(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}. Name a file of plain text.")
    refuse_compressed(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start}). Name a file of plain text.") from error


def _models(bases: Sequence[Path]) -> list[tuple[str, Path, Path | None]]:
    """What to call each vocabulary, its file, and the folder of the weights that belong to it."""
    runs: list[tuple[str, Path, Path | None]] = []
    found: list[Path] = []
    for base in bases:
        if (base / RECORD).is_file():
            artifacts = run_artifacts(read_record(base / RECORD))
            if "vocab" not in artifacts:
                raise InputError(f"{base}: this run did not get to a vocabulary")
            kind = json.loads(artifacts["vocab"].file(DESCRIPTION_FILE).read_text())["kind"]
            weights = artifacts["train"].path if "train" in artifacts else None
            runs.append((str(base), artifacts["vocab"].file(MODEL_FILES[kind]), weights))
        elif base.is_dir():
            inside = vocabularies_within(base)
            if not inside:
                raise InputError(f"{base}: no file there is named {KNOWN}")
            found += inside
        elif base.is_file():
            found.append(vocabulary_described(base) or base)
        else:
            raise InputError(f"{base} does not exist. Name files of vocabularies ({KNOWN}) or a folder of them.")
    return [*runs, *((str(path), path, weights_beside(path)) for path in dict.fromkeys(found))]
