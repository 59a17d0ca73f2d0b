"""Special tokens that objectives need: T5's sentinels, BERT's `[CLS]`, `[SEP]`, `[MASK]`, or names of one's own.

They are control tokens, which no text encodes to: a page with `[MASK]` is text, and is encoded in other tokens.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from model.errors import InputError
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.model_file import CONTROL, USER_DEFINED
from tasks.vocab.config import VocabConfig, sentinel_names

SPECIAL_TOKEN_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
"""Flags of a special token in a `tokenizer.json`."""


def add_controls(parsed: Any, names: Iterable[str]) -> bool:
    """Append control tokens to a parsed SentencePiece model; return whether that changed it.

    A control token that exists keeps its id; a user-defined token of the name becomes one. Raises InputError where an
    ordinary token has the name.
    """
    present = {piece.piece: piece for piece in parsed.pieces}
    changed = False
    for name in names:
        piece = present.get(name)
        if piece is None:
            parsed.pieces.add(piece=name, score=0.0, type=CONTROL)
        elif piece.type == USER_DEFINED:
            piece.type = CONTROL
        elif piece.type == CONTROL:
            continue
        else:
            raise _name_taken(name)
        changed = True
    return changed


def add_special_tokens(parsed: dict[str, Any], names: Iterable[str]) -> None:
    """Do the same for a parsed `tokenizer.json`, whose vocabulary includes its added tokens."""
    vocabulary = parsed["model"]["vocab"]
    added = {token["content"]: token for token in parsed["added_tokens"]}
    for name in names:
        if name in added:
            added[name].update(SPECIAL_TOKEN_FLAGS)
        elif name in vocabulary:
            raise _name_taken(name)
        else:
            number = max(vocabulary.values(), default=-1) + 1
            vocabulary[name] = number
            parsed["added_tokens"].append({"id": number, "content": name, **SPECIAL_TOKEN_FLAGS})


def add_requested_tokens(parsed: dict[str, Any], config: VocabConfig, placeholder: str, padding: Sequence[str]) -> None:
    """Add to a base's parsed `tokenizer.json` what the settings request: sentinels, the first of the names `padding`
    where it has none of them, placeholders (named by their ids) for further rows of the embedding, and special
    tokens."""
    vocabulary = parsed["model"]["vocab"]
    add_special_tokens(parsed, sentinel_names(config.sentinels))
    if vocabulary.keys().isdisjoint(padding):
        add_special_tokens(parsed, padding[:1])
    # Special tokens of one's own get rows behind these, which are new ones, so that training new rows trains them.
    spare = range(max(vocabulary.values()) + 1, config.embedding_rows)
    add_special_tokens(parsed, map(placeholder.format, spare))
    add_special_tokens(parsed, config.special_tokens)


def break_special_names(texts: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the texts with a line end within each of `names`, so that none of them can become a token."""
    if not names:
        yield from texts
        return
    beginning = re.compile(f"(?={'|'.join(map(re.escape, names))})(.)", re.DOTALL)
    for text in texts:
        yield beginning.sub("\\1\n", text)


def check_special(tokenizer: Tokenizer, names: Sequence[str]) -> None:
    """Raise InputError where one of `names` is missing, or a text with a special token's name encodes to its id."""
    missing = sorted(set(names) - tokenizer.special_names.keys())
    if missing:
        raise InputError(
            f"vocab: the vocabulary has no special token {', '.join(missing)}, which vocab.special_tokens or"
            f" vocab.sentinels requests"
        )
    # A lossy vocabulary encodes unknown names as the unknown token, like any other unknown word.
    special = frozenset(tokenizer.special) - (frozenset() if tokenizer.exact else {tokenizer.unk})
    for name in tokenizer.special_names:
        if not special.isdisjoint(tokenizer.encode_following(name)):
            raise InputError(
                f"vocab: `{name}` is both a special token and an ordinary token: a text with it would give the special"
                f" id. Choose another name, or another base."
            )


def _name_taken(name: str) -> InputError:
    return InputError(
        f"vocab: `{name}` cannot become a special token: the base has an ordinary token of that name. Choose another"
        f" name in vocab.special_tokens, or another base."
    )
