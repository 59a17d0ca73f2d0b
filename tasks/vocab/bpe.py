"""Growing a SentencePiece BPE vocabulary: new pieces that are all reachable, old ids and old text unmoved.

SentencePiece's BPE joins adjacent symbols whose concatenation is a piece, the highest score first, the leftmost of
equals (Sennrich et al., 2016; Kudo and Richardson, 2018). A piece that no order of such joins leads to is never
emitted: of the pieces that Chinese-LLaMA's merge adds, 345 never are, three-character words mostly with no
two-character piece inside, and its scores of 0 overrule the base's own merges.

Here each piece is reduced in isolation under the merges so far; where it stays in k > 1 symbols, its characters and the
pieces that join the symbols from the left are appended, each below every score before it. The lowest score never
disturbs a merge that works already, so one pass is enough. What is appended belongs to one new script (`scripts.py`),
so that text of the base's languages cannot meet it.

Growing a byte-level BPE vocabulary (Radford et al., 2019): merges appended behind all others, nothing else moved.

The file is a `tokenizer.json`; `growing.py` tells the same idea for SentencePiece. Symbols here are bytes, so a new
character takes up to two merges, and what its first bytes make up may stand in other characters, too: a stretch of
bytes that is no whole character is added only where it can begin nothing but characters of the script.
"""

import itertools
import json
import math
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sentencepiece
import tokenizers

from model.errors import InputError
from tasks.tokenizer.byte_level import BYTE_OF_CHARACTER, PADDING, check_exact, piece_raw, piece_text
from tasks.tokenizer.json_format import read_tokenizer_json
from tasks.tokenizer.model_file import BPE, NORMAL, read_model, write_model
from tasks.tokenizer.sentencepiece import BLANK
from tasks.vocab.config import VocabConfig, sentinel_names
from tasks.vocab.scripts import Script
from tasks.vocab.special_tokens import add_special_tokens

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


Pair = tuple[str, str]


def prepared_merges(given: bytes, config: VocabConfig) -> bytes:
    """A `tokenizer.json` ready to be extended: without its normaliser where `config` says so, with sentinels, spare
    rows of the base model's embedding, a padding token where it has none, and special tokens.

    Raises InputError for a file of another kind, or one that would lose text.
    """
    place = f"vocab.base: {config.base}"
    parsed = read_tokenizer_json(given, place)
    if config.normaliser == "none":
        parsed["normalizer"] = None
    check_exact(parsed, place)
    vocabulary = parsed["model"]["vocab"]
    # Programs number added tokens from the end of the vocabulary unless they stand in it.
    vocabulary.update({token["content"]: token["id"] for token in parsed["added_tokens"]})
    add_special_tokens(parsed, sentinel_names(config.sentinels))
    spare = range(max(vocabulary.values()) + 1, config.embedding_rows)
    add_special_tokens(parsed, [f"<|reserved_{number}|>" for number in spare])
    if not any(name in vocabulary for name in PADDING):
        add_special_tokens(parsed, PADDING[:1])
    add_special_tokens(parsed, config.special_tokens)
    return written(parsed)


def grow_merges(base: bytes, candidates: Iterable[str], script: Script, limit: int) -> Growth:
    """Append `candidates` in their order, as many as fit into `limit` rows with the pieces they are built on."""
    parsed = json.loads(base)
    model, splitter = parsed["model"], tokenizers.Tokenizer.from_buffer(base).pre_tokenizer
    vocabulary: dict[str, int] = model["vocab"]
    ranks: dict[Pair, int] = {pair: rank for rank, pair in enumerate(pairs_of(model["merges"]))}
    next_id = max(vocabulary.values()) + 1
    growth = Growth(base)
    for candidate in dict.fromkeys(candidates):
        if len(growth.added) == limit:
            break
        text = candidate.replace(BLANK, " ")
        whole = piece_text(text.encode())
        if whole in vocabulary:
            growth.known.append(candidate)
            continue
        steps = _steps_to(text, ranks)
        missing = [piece for piece in map("".join, steps) if piece not in vocabulary]
        pretokens = splitter.pre_tokenize_str(text) if splitter is not None else [text]
        safe = all(_begins(left + right, script) for left, right in steps)
        if not script.admits(candidate) or len(pretokens) > 1 or not safe:
            growth.foreign.append(candidate)
            continue
        if len(growth.added) + len(missing) > limit:
            continue
        for pair in steps:
            ranks[pair] = len(ranks)
        for piece in missing:
            vocabulary[piece] = next_id
            next_id += 1
            growth.added.append(readable(piece))
            if piece != whole:
                growth.intermediates.append(readable(piece))
    model["merges"] = [list(pair) for pair in ranks]
    growth.model = written(parsed)
    return growth


def _steps_to(text: str, ranks: dict[Pair, int]) -> list[Pair]:
    """The merges that are missing until BPE makes one symbol of each character of a text, and then of the text: the
    first two that stay apart are joined, and all is merged again, since a merge may apply in several places."""
    steps: list[Pair] = []
    for part in (*text, text):
        known = ChainMap({pair: len(ranks) + number for number, pair in enumerate(steps)}, ranks)
        while len(symbols := reduce_pairs(list(piece_text(part.encode())), known)) > 1:
            known[symbols[0], symbols[1]] = len(ranks) + len(steps)
            steps.append((symbols[0], symbols[1]))
    return steps


def reduce_pairs(symbols: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    """The symbols that BPE leaves: adjacent pairs joined, the earliest merge first, the leftmost of equals."""
    left = list(symbols)
    while len(left) > 1:
        pairs = [(left[place], left[place + 1]) for place in range(len(left) - 1)]
        best = min(range(len(pairs)), key=lambda place: ranks.get(pairs[place], math.inf))
        if pairs[best] not in ranks:
            break
        left[best : best + 2] = ["".join(pairs[best])]
    return left


def dead_pieces(model: bytes) -> list[str]:
    """The pieces of whole characters that the library itself never emits for their own text."""
    engine = tokenizers.Tokenizer.from_buffer(model)
    engine.encode_special_tokens = True
    parsed = json.loads(model)
    added = {token["content"] for token in parsed["added_tokens"]}
    texts: dict[str, int] = {}
    for piece, number in parsed["model"]["vocab"].items():
        if piece not in added:
            text = _text(piece)
            if text is not None:
                texts[text] = number
    encoded = engine.encode_batch_fast(list(texts), add_special_tokens=False)
    return [text for (text, number), found in zip(texts.items(), encoded, strict=True) if found.ids != [number]]


def readable_pieces(model: bytes) -> list[str]:
    """All pieces in the order of their ids, as `readable` writes them; special tokens by their names."""
    parsed = json.loads(model)
    named = {token["id"]: token["content"] for token in parsed["added_tokens"]}
    vocabulary = parsed["model"]["vocab"]
    if isinstance(vocabulary, list):
        # Unigram's is a list of pieces with their scores.
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    pieces = {number: piece for piece, number in vocabulary.items() if number not in named}
    size = max([*named, *pieces]) + 1
    return [named.get(number) or readable(pieces.get(number, "")) for number in range(size)]


def pairs_of(merges: Iterable[str | Sequence[str]]) -> list[Pair]:
    """Merges as pairs; older files write each as two pieces with a blank between."""
    split = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    return [(left, right) for left, right in split]


def first_merges(model: bytes, count: int) -> bytes:
    """The vocabulary without the pieces from `count` on, and without the merges that lead to them."""
    parsed = json.loads(model)
    vocabulary = {piece: number for piece, number in parsed["model"]["vocab"].items() if number < count}
    parsed["model"]["vocab"] = vocabulary
    parsed["model"]["merges"] = [
        [left, right] for left, right in pairs_of(parsed["model"]["merges"]) if left + right in vocabulary
    ]
    return written(parsed)


def readable(piece: str) -> str:
    """A piece as text, a blank as U+2581; bytes that are no whole character as `\\xe9`. Pieces of a vocabulary of
    characters stand as they are."""
    if not BYTE_OF_CHARACTER.keys() >= set(piece):
        return piece
    return piece_raw(piece).decode(errors="backslashreplace").replace(" ", BLANK)


def written(parsed: dict[str, Any]) -> bytes:
    """The bytes of a `tokenizer.json`; the same content gives the same bytes."""
    return (json.dumps(parsed, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _begins(piece: str, script: Script) -> bool:
    """Whether only characters of the script (behind a blank, where it has them) can begin with the bytes of a piece."""
    raw = piece_raw(piece).removeprefix(b" ") if script.spaced else piece_raw(piece)
    if not raw:
        return False
    for cut in range(4):
        try:
            whole = raw[: len(raw) - cut].decode()
        except UnicodeDecodeError:
            continue
        rest = raw[len(raw) - cut :]
        return all(map(script.holds, whole)) and (not rest or _owns(rest, script))
    return False


def _owns(first_bytes: bytes, script: Script) -> bool:
    """Whether every character whose UTF-8 begins with these bytes belongs to the script."""
    length = 2 if first_bytes[0] < 0xE0 else 3 if first_bytes[0] < 0xF0 else 4
    if first_bytes[0] < 0xC2 or length <= len(first_bytes):
        return False
    low, high = (first_bytes + fill * (length - len(first_bytes)) for fill in (b"\x80", b"\xbf"))
    try:
        return any(start <= ord(low.decode()) and ord(high.decode()) <= end for start, end in script.ranges)
    except UnicodeDecodeError:
        return False


def _text(piece: str) -> str | None:
    try:
        return piece_raw(piece).decode()
    except (UnicodeDecodeError, KeyError):
        return None
