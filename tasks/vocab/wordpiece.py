"""Extend a WordPiece vocabulary (Devlin et al. 2019): new tokens of one script appended to all others.

A word is split into the longest token from the left, then the longest inside token, and so on; where none fits, the
whole word is `[UNK]`. A longer token changes how every word that contains it is split, so only tokens of the new script
are added, and each character twice: for the beginning of a word and for inside.

What the base's normaliser or splitter would change never reaches the vocabulary: BERT separates Chinese characters, so
that Chinese words are no candidates; its lowercase vocabularies strip accents, and with them the breve of the Russian
й.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

import tokenizers

from model.errors import InputError
from tasks.tokenizer.json_format import open_engine, read_tokenizer_json, to_json_bytes
from tasks.tokenizer.model_file import BLANK
from tasks.tokenizer.wordpiece import INSIDE, PADDING, SPECIAL_TOKENS, check_word_pieces
from tasks.vocab.bpe import Extension
from tasks.vocab.config import VocabConfig
from tasks.vocab.scripts import Script
from tasks.vocab.special_tokens import SPECIAL_TOKEN_FLAGS, add_requested_tokens

LEADERS = 50
"""Number of tokens tried before an inside token, until it is emitted after one of them."""


def prepare_wordpiece(given: bytes, config: VocabConfig) -> bytes:
    """Return a WordPiece `tokenizer.json` ready to be extended: with sentinels, placeholders for further embedding
    rows, a padding token where it has none, and special tokens."""
    if config.normaliser == "none":
        raise InputError(
            "vocab.normaliser: a WordPiece vocabulary needs its normaliser, since its tokens are in normalised form."
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
    parsed["added_tokens"] += [{"id": vocabulary[name], "content": name, **SPECIAL_TOKEN_FLAGS} for name in own]
    add_requested_tokens(parsed, config, "[reserved_{}]", (PADDING,))
    return to_json_bytes(parsed)


def extend_wordpiece(base: bytes, candidates: Iterable[str], script: Script, limit: int) -> Extension:
    """Append `candidates`, which begin with U+2581 where they begin a word, as many as fit into `limit` tokens.

    A script without spaces between words has no such mark: each of its candidates is added for both positions. The same
    holds for single characters of any script; the token for the beginning of words counts as an intermediate one.
    """
    parsed = json.loads(base)
    engine = tokenizers.Tokenizer.from_buffer(base)
    vocabulary: dict[str, int] = parsed["model"]["vocab"]
    special = {token["content"] for token in parsed["added_tokens"]}
    next_id = max(vocabulary.values()) + 1
    extension = Extension(base)
    for candidate in dict.fromkeys(candidates):
        if len(extension.added) == limit:
            break
        body = candidate.removeprefix(BLANK)
        if not script.admits(candidate) or body in special or _pretokens(engine, body) != [body]:
            continue
        missing = [piece for piece in _pieces_of_candidate(candidate, script, engine) if piece not in vocabulary]
        # The two tokens do not need each other, so the last id may go to one of them alone.
        for piece in missing[: limit - len(extension.added)]:
            vocabulary[piece] = next_id
            next_id += 1
            added = piece.removeprefix(INSIDE) if piece.startswith(INSIDE) else BLANK + piece
            extension.added.append(added)
            if added != candidate:
                extension.intermediates.append(added)
    extension.model = to_json_bytes(parsed)
    return extension


def unreachable_wordpieces(model: bytes) -> list[str]:
    """Return the tokens that the library never emits: at the beginning of a word those that their own text is not
    encoded to, inside a word those that follow none of the base's short tokens."""
    parsed = json.loads(model)
    engine = open_engine(model)
    special = {*SPECIAL_TOKENS, *(token["content"] for token in parsed["added_tokens"])}
    pieces = {piece: number for piece, number in parsed["model"]["vocab"].items() if piece not in special}
    # `##` alone is no token from inside of a word: nothing would be left of it.
    inside = {piece: number for piece, number in pieces.items() if piece.startswith(INSIDE) and piece != INSIDE}
    beginning = {piece: number for piece, number in pieces.items() if piece not in inside}
    left = {piece for piece, number in beginning.items() if _ids(engine, piece) != [number]}
    for piece, number in inside.items():
        body = piece.removeprefix(INSIDE)
        leaders = (leader for leader in _leaders(body, beginning) if leader + body not in beginning)
        if not any(_ids(engine, leader + body) == [beginning[leader], number] for leader in leaders):
            left.add(piece)
    return sorted(left, key=pieces.__getitem__)


def wordpiece_base_ids(base: bytes, model: bytes, first: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (id, base ids) of each token of `model` from the id `first` on: how `base` would split it; no ids where
    that would be `[UNK]`."""
    old: dict[str, int] = json.loads(base)["model"]["vocab"]
    new = json.loads(model)
    special = {token["content"] for token in new["added_tokens"]}
    for piece, number in new["model"]["vocab"].items():
        if number >= first and piece not in special:
            yield number, _longest_match_ids(piece.removeprefix(INSIDE), old, inside=piece.startswith(INSIDE))


def _longest_match_ids(word: str, vocabulary: Mapping[str, int], *, inside: bool) -> list[int]:
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


def _pieces_of_candidate(candidate: str, script: Script, engine: tokenizers.Tokenizer) -> list[str]:
    """Return the tokens that a candidate becomes."""
    body = candidate.removeprefix(BLANK)
    if candidate.startswith(BLANK):
        return [body]
    # Where the splitter separates the characters of a script, none ever occurs inside a word.
    if _pretokens(engine, body + body) != [body + body]:
        return [body] if len(body) == 1 else []
    return [body, INSIDE + body] if len(body) == 1 or not script.spaced else [INSIDE + body]


def _pretokens(engine: tokenizers.Tokenizer, text: str) -> list[str]:
    """Return the words of a text, as the splitter passes them to the vocabulary."""
    read = engine.normalizer.normalize_str(text) if engine.normalizer is not None else text
    if engine.pre_tokenizer is None:
        return [read]
    return [part for part, _ in engine.pre_tokenizer.pre_tokenize_str(read)]


def _ids(engine: tokenizers.Tokenizer, text: str) -> list[int]:
    return engine.encode(text, add_special_tokens=False).ids


def _leaders(body: str, beginning: Mapping[str, int]) -> list[str]:
    """Return short tokens that might precede one inside a word, its own first character and those near it first."""
    near = sorted(
        (piece for piece in beginning if len(piece) == 1 and (piece.isalnum() or piece == body[0])),
        key=lambda piece: abs(ord(piece) - ord(body[0])),
    )
    return near[:LEADERS]
