"""Growing a SentencePiece BPE vocabulary: new pieces that are all reachable, old ids and old text unmoved.

SentencePiece's BPE joins adjacent symbols whose concatenation is a piece, the highest score first, the leftmost of
equals (Sennrich et al., 2016; Kudo and Richardson, 2018). A piece that no order of such joins leads to is never
emitted: of the pieces that Chinese-LLaMA's merge adds, 345 never are, three-character words mostly with no
two-character piece inside, and its scores of 0 overrule the base's own merges.

Here each piece is reduced in isolation under the merges so far; where it stays in k > 1 symbols, its characters and the
pieces that join the symbols from the left are appended, each below every score before it. The lowest score never
disturbs a merge that works already, so one pass is enough. What is appended belongs to one new script (`scripts.py`),
so that text of the base's languages cannot meet it.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import sentencepiece

from model.errors import InputError
from tasks.sentencepiece_tokenizer import BLANK
from tasks.vocab.base import BPE, NORMAL, read_model, write_model
from tasks.vocab.scripts import Script

LOWEST_MEANT = -1e6
"""Scores below are placeholders: LLaMA gives its runs of blanks -1e9, where float32 cannot tell neighbours apart."""


@dataclass
class Growth:
    """What growing a vocabulary did: the new model, the pieces it added in order of their ids, and what it left out."""

    model: bytes
    added: list[str] = field(default_factory=list)
    intermediates: list[str] = field(default_factory=list)
    """Those of `added` that nobody asked for, but on which others are built."""
    known: list[str] = field(default_factory=list)
    """Asked for, and in the base already."""
    foreign: list[str] = field(default_factory=list)
    """Asked for, and not of the script: they would change how old text is cut."""


def grow(base: bytes, candidates: Iterable[str], script: Script, limit: int | None = None) -> Growth:
    """Append `candidates` in their order, as many as fit into `limit` rows with the pieces they are built on.

    Candidates are written as pieces, a blank as U+2581. Raises InputError for a base that is no BPE.
    """
    model = read_model(base)
    if model.trainer_spec.model_type != BPE:
        raise InputError("vocab.base: this is no BPE model of SentencePiece; only BPE is grown this way")
    scores = {piece.piece: float(piece.score) for piece in model.pieces if piece.type == NORMAL}
    reserved = {piece.piece for piece in model.pieces} - scores.keys()
    floor = min(score for score in scores.values() if score > LOWEST_MEANT)
    growth = Growth(base)
    for candidate in dict.fromkeys(candidates):
        if len(growth.added) == limit:
            break
        if not script.admits(candidate) or candidate in reserved:
            growth.foreign.append(candidate)
            continue
        if candidate in scores:
            growth.known.append(candidate)
            continue
        symbols = reduce(candidate, scores)
        # SentencePiece joins characters that are no pieces, too; other programs spell them in bytes before they merge.
        steps = [*candidate, *("".join(symbols[:end]) for end in range(2, len(symbols) + 1))]
        missing = [step for step in dict.fromkeys(steps) if step not in scores]
        if limit is not None and len(growth.added) + len(missing) > limit:
            continue
        for step in missing:
            floor = float(np.float32(floor) - np.float32(1))
            scores[step] = floor
            model.pieces.add(piece=step, score=floor, type=NORMAL)
            growth.added.append(step)
            if step != candidate:
                growth.intermediates.append(step)
    model.trainer_spec.vocab_size = len(model.pieces)
    growth.model = write_model(model)
    return growth


def reduce(text: str, scores: Mapping[str, float]) -> list[str]:
    """The symbols that BPE leaves of `text`: adjacent pairs joined, best score first, the leftmost of equals."""
    symbols = list(text)
    while len(symbols) > 1:
        joined = [first + second for first, second in itertools.pairwise(symbols)]
        best = max(range(len(joined)), key=lambda place: scores.get(joined[place], -np.inf))
        if joined[best] not in scores:
            break
        symbols[best : best + 2] = [joined[best]]
    return symbols


def unreachable(model: bytes) -> list[str]:
    """The ordinary pieces that SentencePiece itself never emits.

    Exact, not a sample: an emitted piece had no merge across its borders, so its inside was merged as in isolation.
    """
    processor = isolated(model)
    pieces = [(number, piece.piece) for number, piece in enumerate(read_model(model).pieces) if piece.type == NORMAL]
    encoded = processor.encode([piece.replace(BLANK, " ") for _, piece in pieces])
    return [piece for (number, piece), ids in zip(pieces, encoded, strict=True) if ids != [number]]


def isolated(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """The model without its blank before the first word, and with all blanks kept: pieces are encoded as they are."""
    bare = read_model(model)
    bare.normalizer_spec.add_dummy_prefix = False
    bare.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=bare.SerializeToString())
