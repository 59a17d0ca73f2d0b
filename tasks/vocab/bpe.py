"""Extend a BPE vocabulary, SentencePiece's or byte-level, by tokens that are all reachable; old ids and old text stay.

SentencePiece's BPE joins adjacent symbols whose concatenation is a token, the highest score first, the leftmost of
equals (Sennrich et al. 2016; Kudo and Richardson 2018). A token that no sequence of such merges leads to is never
emitted. Of the tokens that Chinese-LLaMA's merge of two vocabularies adds, 345 never are, mostly three-character words
without a two-character token inside, and its scores of 0 take precedence over the base's own merges.

Here each candidate is encoded alone with the merges so far. Where it stays in k > 1 symbols, its characters and the
tokens that join the symbols from the left are appended, each below every earlier score. The lowest score never disturbs
an existing merge, so one pass is enough. Added tokens belong to one new script (`scripts.py`), so that text of the
base's languages never matches them.

Byte-level BPE (Radford et al. 2019) is extended in the same way by merges appended to its `tokenizer.json`. Symbols are
bytes there, so a new character takes up to two merges, and its first bytes may occur in other characters as well: a
token that is not made of whole characters is added only where it can begin nothing but characters of the script.
"""

import itertools
import json
import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import sentencepiece
import tokenizers

from model.errors import InputError
from tasks.tokenizer.base import json_model_type
from tasks.tokenizer.byte_level import BYTE_OF_CHARACTER, check_exact, piece_raw, piece_text
from tasks.tokenizer.json_format import PADDING, open_engine, parse_merges, read_tokenizer_json, to_json_bytes
from tasks.tokenizer.model_file import BLANK, BPE, NORMAL, read_model, write_model
from tasks.vocab.config import VocabConfig
from tasks.vocab.scripts import Script
from tasks.vocab.special_tokens import add_requested_tokens

Pair = tuple[str, str]
MIN_REAL_SCORE = -1e6
"""Lower scores are placeholders: LLaMA gives its runs of spaces -1e9, where float32 cannot represent consecutive
integers."""


@dataclass
class Extension:
    """An extended vocabulary: the new model, and its added tokens in the order of their ids."""

    model: bytes
    added: list[str] = field(default_factory=list)
    intermediates: list[str] = field(default_factory=list)
    """Those of `added` that are no candidates, but from which candidates are merged."""


def extend_bpe(base: bytes, candidates: Iterable[str], script: Script, limit: int | None = None) -> Extension:
    """Append `candidates` in their order, as many as fit into `limit` tokens with the intermediate tokens that they
    need.

    Candidates are in SentencePiece's notation, a space as U+2581. Raises InputError for a base that is no SentencePiece
    BPE.
    """
    model = read_model(base)
    if model.trainer_spec.model_type != BPE:
        raise InputError("vocab.base: this is not a BPE model of SentencePiece")
    scores = {piece.piece: float(piece.score) for piece in model.pieces if piece.type == NORMAL}
    reserved = {piece.piece for piece in model.pieces} - scores.keys()
    floor = min(score for score in scores.values() if score > MIN_REAL_SCORE)
    extension = Extension(base)
    for candidate in dict.fromkeys(candidates):
        if len(extension.added) == limit:
            break
        # Tokens of another script would change the tokens of old text.
        if not script.admits(candidate) or candidate in reserved or candidate in scores:
            continue
        symbols = merge_symbols(candidate, scores)
        # SentencePiece also joins characters that are no tokens; other programs spell them in bytes before they merge.
        steps = [*candidate, *("".join(symbols[:end]) for end in range(2, len(symbols) + 1))]
        missing = [step for step in dict.fromkeys(steps) if step not in scores]
        if limit is not None and len(extension.added) + len(missing) > limit:
            continue
        for step in missing:
            floor = float(np.float32(floor) - np.float32(1))
            scores[step] = floor
            model.pieces.add(piece=step, score=floor, type=NORMAL)
            extension.added.append(step)
            if step != candidate:
                extension.intermediates.append(step)
    model.trainer_spec.vocab_size = len(model.pieces)
    extension.model = write_model(model)
    return extension


def merge_symbols(text: str, scores: Mapping[str, float]) -> list[str]:
    """Return the symbols into which BPE encodes `text`: adjacent pairs are joined, the best score first, the
    leftmost of equals."""
    return _merge(list(text), lambda pair: -scores.get(pair[0] + pair[1], -math.inf))


def unreachable_tokens(model: bytes) -> list[str]:
    """Return the ordinary tokens that SentencePiece never emits.

    Exact, not a sample: no merge crosses the boundaries of an emitted token, so its inside is merged as it is alone.
    """
    processor = bare_processor(model)
    pieces = [(number, piece.piece) for number, piece in enumerate(read_model(model).pieces) if piece.type == NORMAL]
    encoded = processor.encode([piece.replace(BLANK, " ") for _, piece in pieces])
    return [piece for (number, piece), ids in zip(pieces, encoded, strict=True) if ids != [number]]


def bare_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return a processor of the model that adds no space before the first word and keeps all spaces, so that a token
    is encoded as it is."""
    bare = read_model(model)
    bare.normalizer_spec.add_dummy_prefix = False
    bare.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=bare.SerializeToString())


def prepare_byte_level(given: bytes, config: VocabConfig, *, pads: bool = True) -> bytes:
    """Return a byte-level `tokenizer.json` ready to be extended: without its normaliser where `config` removes it, with
    sentinels, placeholders for further embedding rows, with `pads` a padding token where it has none, and special
    tokens.

    Raises InputError for a file of another kind, or one that would lose text.
    """
    place = f"vocab.base: {config.base}"
    parsed = read_tokenizer_json(given, place)
    if config.normaliser == "none":
        parsed["normalizer"] = None
    check_exact(parsed, place)
    vocabulary = parsed["model"]["vocab"]
    # Programs number added tokens from the end of the vocabulary unless it contains them.
    vocabulary.update({token["content"]: token["id"] for token in parsed["added_tokens"]})
    add_requested_tokens(parsed, config, "<|reserved_{}|>", PADDING if pads else ())
    return to_json_bytes(parsed)


def extend_byte_level(base: bytes, candidates: Iterable[str], script: Script, limit: int) -> Extension:
    """Append `candidates` in their order, as many as fit into `limit` tokens with the intermediate tokens that they
    need."""
    parsed = json.loads(base)
    model, splitter = parsed["model"], tokenizers.Tokenizer.from_buffer(base).pre_tokenizer
    vocabulary: dict[str, int] = model["vocab"]
    ranks: dict[Pair, int] = {pair: rank for rank, pair in enumerate(parse_merges(model["merges"]))}
    next_id = max(vocabulary.values()) + 1
    extension = Extension(base)
    for candidate in dict.fromkeys(candidates):
        if len(extension.added) == limit:
            break
        text = candidate.replace(BLANK, " ")
        whole = piece_text(text.encode())
        if whole in vocabulary:
            continue
        steps = _steps_to(text, ranks)
        missing = [piece for piece in map("".join, steps) if piece not in vocabulary]
        pretokens = splitter.pre_tokenize_str(text) if splitter is not None else [text]
        safe = all(_begins(left + right, script) for left, right in steps)
        if not script.admits(candidate) or len(pretokens) > 1 or not safe:
            continue
        if len(extension.added) + len(missing) > limit:
            continue
        for pair in steps:
            ranks[pair] = len(ranks)
        for piece in missing:
            vocabulary[piece] = next_id
            next_id += 1
            extension.added.append(readable_token(piece))
            if piece != whole:
                extension.intermediates.append(readable_token(piece))
    model["merges"] = [list(pair) for pair in ranks]
    extension.model = to_json_bytes(parsed)
    return extension


def _steps_to(text: str, ranks: dict[Pair, int]) -> list[Pair]:
    """Return the merges that BPE lacks to join each character of a text into one symbol, and then the text.

    The first two symbols that stay apart are joined, and everything is merged again, since a merge may apply in several
    places.
    """
    steps: list[Pair] = []
    for part in (*text, text):
        known = ChainMap({pair: len(ranks) + number for number, pair in enumerate(steps)}, ranks)
        while len(symbols := merge_pairs(list(piece_text(part.encode())), known)) > 1:
            known[symbols[0], symbols[1]] = len(ranks) + len(steps)
            steps.append((symbols[0], symbols[1]))
    return steps


def merge_pairs(symbols: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    """Return the symbols that BPE leaves: adjacent pairs are joined, the earliest merge first, the leftmost of
    equals."""
    return _merge(list(symbols), lambda pair: ranks.get(pair, math.inf))


def _merge(symbols: list[str], rank: Callable[[Pair], float]) -> list[str]:
    """Join adjacent symbols, the pair of the lowest rank first, until all pairs have an infinite one."""
    while len(symbols) > 1:
        ranks = list(map(rank, itertools.pairwise(symbols)))
        lowest = min(ranks)
        if lowest == math.inf:
            break
        place = ranks.index(lowest)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    return symbols


def _begins(piece: str, script: Script) -> bool:
    """Return whether only characters of the script (after a space, where it has them) can begin with the bytes of a
    token."""
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
    """Return whether every character whose UTF-8 begins with these bytes belongs to the script."""
    length = 2 if first_bytes[0] < 0xE0 else 3 if first_bytes[0] < 0xF0 else 4
    if first_bytes[0] < 0xC2 or length <= len(first_bytes):
        return False
    low, high = (first_bytes + fill * (length - len(first_bytes)) for fill in (b"\x80", b"\xbf"))
    try:
        return any(start <= ord(low.decode()) and ord(high.decode()) <= end for start, end in script.ranges)
    except UnicodeDecodeError:
        return False


def unreachable_byte_level(model: bytes) -> list[str]:
    """Return the tokens of whole characters that the library never emits for their own text."""
    engine = open_engine(model)
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


def _text(piece: str) -> str | None:
    try:
        return piece_raw(piece).decode()
    except (UnicodeDecodeError, KeyError):
        return None


def is_byte_level(model: bytes) -> bool:
    """Return whether a vocabulary's file is the `tokenizer.json` of a byte-level BPE."""
    return json_model_type(model) == "BPE" and b'"ByteLevel"' in model


def partial_ids(model: bytes) -> set[int]:
    """Return the ids of a byte-level vocabulary whose bytes are no whole characters; none of another kind."""
    if not is_byte_level(model):
        return set()
    parsed = json.loads(model)
    named = {token["id"] for token in parsed["added_tokens"]}
    return {
        number for piece, number in parsed["model"]["vocab"].items() if number not in named and _text(piece) is None
    }


def readable_tokens(model: bytes) -> list[str]:
    """Return all tokens of a `tokenizer.json` in the order of their ids, an empty text for unused ids.

    Those of a byte-level vocabulary are in the notation of `readable_token`; all others, and special tokens, as in the
    file.
    """
    parsed = json.loads(model)
    named = {token["id"]: token["content"] for token in parsed["added_tokens"]}
    vocabulary = parsed["model"]["vocab"]
    if isinstance(vocabulary, list):
        # Unigram's is a list of tokens with their scores.
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    spell = readable_token if is_byte_level(model) else str
    names = {number: spell(piece) for piece, number in vocabulary.items()} | named
    return [names.get(number, "") for number in range(max(names) + 1)]


def readable_token(piece: str) -> str:
    """Return a token of a byte-level vocabulary as text, with a space as U+2581, and bytes that are no whole character
    as `\\xe9`; one that is not spelled in bytes as it is."""
    if not BYTE_OF_CHARACTER.keys() >= set(piece):
        return piece
    return piece_raw(piece).decode(errors="backslashreplace").replace(" ", BLANK)


def truncate_json(model: bytes, count: int) -> bytes:
    """Return a byte-level or WordPiece vocabulary without the tokens from id `count` on, and without the merges that
    lead to them."""
    parsed = json.loads(model)
    held = parsed["model"]
    held["vocab"] = {piece: number for piece, number in held["vocab"].items() if number < count}
    if "merges" in held:
        held["merges"] = [list(pair) for pair in parse_merges(held["merges"]) if "".join(pair) in held["vocab"]]
    return to_json_bytes(parsed)
