"""Vocabularies on a text of one's own: a run's, before and after it was extended, and released ones side by side."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from flows.lineage import run_artifacts
from flows.peek.difference import EVEN_PIECE, ODD_PIECE
from flows.record import RECORD
from flows.zero_step import weights_beside, zero_step
from model.errors import InputError
from tasks.artifact import Artifact
from tasks.tokenizer import DESCRIPTION_FILE, MODEL_FILES, Tokenizer, json_model_type
from tasks.vocab.comparison import Meter, ratio
from tasks.vocab.fast import FAST_FILE
from tasks.vocab.kinds import first_pieces, kind_of

FILES = ("*.model", "*tokenizer.json")
"""Names of vocabularies' files: SentencePiece's, and those of the library `tokenizers`."""
KNOWN = " or ".join(f"`{pattern}`" for pattern in FILES)


def pieces_of(vocab: Artifact, text: str) -> list[dict[str, Any]]:
    """The text in pieces of a run's vocabulary, and before them, where it extends a base, in pieces of that base."""
    tokenizer = Tokenizer.open(vocab)
    base = vocab.report.facts["vocabulary"].get("base")
    views = [_view("the run's vocabulary" if base is None else "extended", tokenizer, text)]
    if base is not None:
        before = Tokenizer.of(first_pieces(tokenizer.model, base["pieces"] + base["besides"]))
        views.insert(0, _view("the base", before, text))
    return views


def _view(name: str, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    ids, borders = tokenizer.encode_with_offsets(text)
    raw = text.encode()
    pieces = [raw[start:end].decode(errors="backslashreplace") for start, end in pairwise(borders)]
    each = f", {len(ids) / len(text):.3f} a character" if text else ""
    return {
        "title": f"{name}, {tokenizer.vocab_size:,} pieces: {len(ids)} tokens{each}",
        "segments": [(ODD_PIECE if index % 2 else EVEN_PIECE, piece) for index, piece in enumerate(pieces)],
        "pieces": pieces,
        "ids": ids.tolist(),
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
        model = path.read_bytes()
        try:
            kind = kind_of(model)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        meter = Meter(model)
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
            artifacts = run_artifacts(json.loads((base / RECORD).read_text()))
            if "vocab" not in artifacts:
                raise InputError(f"{base}: this run did not get to a vocabulary")
            kind = json.loads(artifacts["vocab"].file(DESCRIPTION_FILE).read_text())["kind"]
            weights = artifacts["train"].path if "train" in artifacts else None
            runs.append((str(base), artifacts["vocab"].file(MODEL_FILES[kind]), weights))
        elif base.is_dir():
            inside = sorted(path for pattern in FILES for path in base.rglob(pattern) if path.name != FAST_FILE)
            # A run's artifacts describe their vocabulary in a file of the same name.
            found += [path for path in inside if path.suffix != ".json" or json_model_type(path.read_bytes())]
        elif base.is_file():
            found.append(base)
        else:
            raise InputError(f"{base} does not exist. Name files of vocabularies ({KNOWN}) or a folder of them.")
    if not found and not runs:
        raise InputError(f"{', '.join(map(str, bases))}: no file there is named {KNOWN}")
    return [*runs, *((str(path), path, weights_beside(path)) for path in dict.fromkeys(found))]
