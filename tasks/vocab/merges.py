"""Growing a byte-level BPE vocabulary (Radford et al., 2019): merges appended behind all others, nothing else moved.

The file is a `tokenizer.json`; `growing.py` tells the same idea for SentencePiece. Symbols here are bytes, so a new
character takes up to two merges, and what its first bytes make up may stand in other characters, too: a stretch of
bytes that is no whole character is added only where it can begin nothing but characters of the script.
"""

import json
import math
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from tasks.byte_level import BYTE_OF_CHARACTER, PADDING, check_exact, piece_raw, piece_text
from tasks.sentencepiece_tokenizer import BLANK
from tasks.tokenizer_json import read_tokenizer_json
from tasks.vocab.config import VocabConfig, sentinel_names
from tasks.vocab.growing import Growth
from tasks.vocab.scripts import Script
from tasks.vocab.specials import add_special_tokens

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
