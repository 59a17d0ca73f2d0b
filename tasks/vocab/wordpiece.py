"""Growing a WordPiece vocabulary (Devlin et al., 2019): new pieces of one script behind all others.

A word is cut into the longest piece from the left, then the longest that may stand inside a word, and so on; where none
fits, the whole word is `[UNK]`. A longer piece changes how every word that holds it is cut, so only pieces of the new
script come in, and each character comes in twice: at the beginning of a word and inside.

What the base's normaliser or splitter would change can never be met in a text: BERT parts Chinese characters, so that
Chinese words are no pieces; its vocabularies of small letters strip accents, and with them the bow of the Russian й.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

import tokenizers

from model.errors import InputError
from tasks.tokenizer.json_format import read_tokenizer_json
from tasks.tokenizer.sentencepiece import BLANK
from tasks.tokenizer.wordpiece import INSIDE, PADDING, SPECIAL_TOKENS, check_word_pieces
from tasks.vocab.bpe import Growth, written
from tasks.vocab.config import VocabConfig, sentinel_names
from tasks.vocab.scripts import Script
from tasks.vocab.special_tokens import FLAGS, add_special_tokens

LEADERS = 50
"""Pieces tried before one that stands inside a word, until it is emitted behind one of them."""


def prepared_word_pieces(given: bytes, config: VocabConfig) -> bytes:
    """A WordPiece `tokenizer.json` ready to be extended: with sentinels, spare rows of the base model's embedding, a
    padding token where it has none, and special tokens."""
    if config.normaliser == "none":
        raise InputError(
            "vocab.normaliser: a WordPiece vocabulary needs its own, for its pieces are written as that leaves them."
            ' Set it to "keep".'
        )
    place = f"vocab.base: {config.base}"
    parsed = read_tokenizer_json(given, place)
    check_word_pieces(parsed, place)
    vocabulary = parsed["model"]["vocab"]
    added = {token["content"]: token["id"] for token in parsed["added_tokens"]}
    vocabulary.update(added)
    # Some files name BERT's special tokens in the vocabulary alone.
    own = [name for name in SPECIAL_TOKENS if name in vocabulary and name not in added]
    parsed["added_tokens"] += [{"id": vocabulary[name], "content": name, **FLAGS} for name in own]
    add_special_tokens(parsed, sentinel_names(config.sentinels))
    spare = range(max(vocabulary.values()) + 1, config.embedding_rows)
    add_special_tokens(parsed, [f"[reserved_{number}]" for number in spare])
    if PADDING not in vocabulary:
        add_special_tokens(parsed, [PADDING])
    add_special_tokens(parsed, config.special_tokens)
    return written(parsed)


def grow_word_pieces(base: bytes, candidates: Iterable[str], script: Script, limit: int) -> Growth:
    """Append `candidates`, which begin with U+2581 where they begin a word, as many as fit into `limit` rows.

    A script without blanks between words has no such sign: each of its candidates comes in for both places. The same is
    done for single characters of any script; what comes in for the beginning of words counts as an intermediate.
    """
    parsed = json.loads(base)
    engine = tokenizers.Tokenizer.from_buffer(base)
    vocabulary: dict[str, int] = parsed["model"]["vocab"]
    special = {token["content"] for token in parsed["added_tokens"]}
    next_id = max(vocabulary.values()) + 1
    growth = Growth(base)
    for candidate in dict.fromkeys(candidates):
        if len(growth.added) == limit:
            break
        body = candidate.removeprefix(BLANK)
        if not script.admits(candidate) or body in special or _parts(engine, body) != [body]:
            growth.foreign.append(candidate)
            continue
        missing = [piece for piece in _forms(candidate, script, engine) if piece not in vocabulary]
        if not missing:
            growth.known.append(candidate)
        # The two places do not need each other, so the last row may be given to one of them.
        for piece in missing[: limit - len(growth.added)]:
            vocabulary[piece] = next_id
            next_id += 1
            growth.added.append(as_candidate(piece))
            if growth.added[-1] != candidate:
                growth.intermediates.append(growth.added[-1])
    growth.model = written(parsed)
    return growth


def as_candidate(piece: str) -> str:
    """A piece as candidates are written: a sign where it begins a word, none inside."""
    return piece.removeprefix(INSIDE) if piece.startswith(INSIDE) else BLANK + piece


def normaliser_of(model: bytes) -> Callable[[str], str]:
    """The vocabulary's normaliser as a function of a text."""
    normaliser = tokenizers.Tokenizer.from_buffer(model).normalizer
    return normaliser.normalize_str if normaliser is not None else str


def dead_word_pieces(model: bytes) -> list[str]:
    """The pieces that the library never emits: at the beginning of a word those that are not cut out of their own text,
    inside a word those that follow none of the base's short pieces."""
    parsed = json.loads(model)
    engine = tokenizers.Tokenizer.from_buffer(model)
    engine.encode_special_tokens = True
    special = {*SPECIAL_TOKENS, *(token["content"] for token in parsed["added_tokens"])}
    pieces = {piece: number for piece, number in parsed["model"]["vocab"].items() if piece not in special}
    beginning = {piece: number for piece, number in pieces.items() if not piece.startswith(INSIDE)}
    left = {piece for piece, number in beginning.items() if _ids(engine, piece) != [number]}
    inside = {piece: number for piece, number in pieces.items() if piece.startswith(INSIDE)}
    for piece, number in inside.items():
        body = piece.removeprefix(INSIDE)
        leaders = (leader for leader in _leaders(body, beginning) if leader + body not in beginning)
        if not any(_ids(engine, leader + body) == [beginning[leader], number] for leader in leaders):
            left.add(piece)
    return sorted(left, key=pieces.__getitem__)


def first_word_pieces(model: bytes, count: int) -> bytes:
    """The vocabulary without the pieces from `count` on."""
    parsed = json.loads(model)
    parsed["model"]["vocab"] = {piece: number for piece, number in parsed["model"]["vocab"].items() if number < count}
    return written(parsed)


def base_ids_of(base: bytes, model: bytes, first: int) -> Iterator[tuple[int, list[int]]]:
    """Each piece of `model` from the id `first` on, and the ids of the pieces into which `base` would cut it; none
    where that would write `[UNK]`."""
    old: dict[str, int] = json.loads(base)["model"]["vocab"]
    new = json.loads(model)
    special = {token["content"] for token in new["added_tokens"]}
    for piece, number in new["model"]["vocab"].items():
        if number >= first and piece not in special:
            yield number, _longest(piece.removeprefix(INSIDE), old, inside=piece.startswith(INSIDE))


def _longest(word: str, vocabulary: Mapping[str, int], *, inside: bool) -> list[int]:
    ids: list[int] = []
    start = 0
    while start < len(word):
        prefix = INSIDE if inside or start else ""
        ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary)
        end = next(ends, None)
        if end is None:
            return []
        ids.append(vocabulary[prefix + word[start:end]])
        start = end
    return ids


def _forms(candidate: str, script: Script, engine: tokenizers.Tokenizer) -> list[str]:
    """The pieces that a candidate becomes."""
    body = candidate.removeprefix(BLANK)
    if candidate.startswith(BLANK):
        return [body]
    # Where the splitter parts the characters of a script, none ever stands inside a word.
    if _parts(engine, body + body) != [body + body]:
        return [body] if len(body) == 1 else []
    return [body, INSIDE + body] if len(body) == 1 or not script.spaced else [INSIDE + body]


def _parts(engine: tokenizers.Tokenizer, text: str) -> list[str]:
    """The stretches in which a text meets the vocabulary."""
    read = engine.normalizer.normalize_str(text) if engine.normalizer is not None else text
    if engine.pre_tokenizer is None:
        return [read]
    return [part for part, _ in engine.pre_tokenizer.pre_tokenize_str(read)]


def _ids(engine: tokenizers.Tokenizer, text: str) -> list[int]:
    return engine.encode(text, add_special_tokens=False).ids


def _leaders(body: str, beginning: Mapping[str, int]) -> list[str]:
    """Short pieces that might stand before one inside a word, its own first character and those near it first."""
    near = sorted(
        (piece for piece in beginning if len(piece) == 1 and (piece.isalnum() or piece == body[0])),
        key=lambda piece: abs(ord(piece) - ord(body[0])),
    )
    return near[:LEADERS]
