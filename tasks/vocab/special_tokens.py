"""Special tokens that objectives need: T5's sentinels, BERT's `[CLS]`, `[SEP]`, `[MASK]`, or names of one's own.

They are control pieces, which no text ever gives: a page that shows `[MASK]` is text, and is written in other pieces.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from model.errors import InputError
from tasks.tokenizer.base import Tokenizer

USER_DEFINED, CONTROL = 4, 3
"""SentencePiece's types of pieces: one that is cut out of any text, one that stands for no text."""

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
"""Of a special token in a `tokenizer.json`."""


def add_controls(parsed: Any, names: Iterable[str]) -> bool:
    """Append control pieces to a parsed SentencePiece model; True where that changed it. One that stands there already
    keeps its id; a user-defined piece of the name becomes one. InputError where an ordinary piece has the name."""
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
            raise _taken(name)
        changed = True
    return changed


def add_special_tokens(parsed: dict[str, Any], names: Iterable[str]) -> None:
    """The same for a parsed `tokenizer.json`, whose vocabulary holds its added tokens, too."""
    vocabulary = parsed["model"]["vocab"]
    added = {token["content"]: token for token in parsed["added_tokens"]}
    for name in names:
        if name in added:
            added[name].update(FLAGS)
        elif name in vocabulary:
            raise _taken(name)
        else:
            number = max(vocabulary.values(), default=-1) + 1
            vocabulary[name] = number
            parsed["added_tokens"].append({"id": number, "content": name, **FLAGS})


def cut_apart(texts: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    """The texts with a line end within each of `names`, so that none of them can become a piece."""
    if not names:
        yield from texts
        return
    beginning = re.compile(f"(?={'|'.join(map(re.escape, names))})(.)", re.DOTALL)
    for text in texts:
        yield beginning.sub("\\1\n", text)


def check_special(tokenizer: Tokenizer, names: Sequence[str]) -> None:
    """Raise InputError where one of `names` is missing, or a text that shows a special token's name gives its id."""
    missing = sorted(set(names) - tokenizer.special_names.keys())
    if missing:
        raise InputError(f"vocab: the vocabulary has no special token {', '.join(missing)}, which was asked for")
    # A vocabulary that loses text writes names that it does not know as any other unknown word.
    special = frozenset(tokenizer.special) - (frozenset() if tokenizer.exact else {tokenizer.unk})
    for name in tokenizer.special_names:
        if not special.isdisjoint(tokenizer.encode_following(name)):
            raise InputError(
                f"vocab: `{name}` is both a special token and an ordinary piece: a text that shows it would give the"
                f" special id. Take another name, or another base."
            )


def _taken(name: str) -> InputError:
    return InputError(
        f"vocab: `{name}` cannot become a special token: the base has an ordinary piece of that name. Take another name"
        f" in vocab.special_tokens, or another base."
    )
