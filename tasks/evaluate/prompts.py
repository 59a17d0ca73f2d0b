"""Prompts: an instruction, solved examples, the item. What does not fit into the window loses whole examples from the
front, never the question."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.evaluate.items import Item
from tasks.tokenizer import Tokenizer

BETWEEN = "\n\n"


@dataclass(frozen=True)
class Prompt:
    """Token ids before the continuation, and how many examples are in them."""

    ids: tuple[int, ...]
    shots: int
    fits: bool
    """Whether context and longest continuation fit into the window without cutting the item itself."""


def build_prompt(
    item: Item,
    examples: Sequence[Item],
    tokenizer: Tokenizer,
    *,
    instruction: str,
    room: int,
    context: str | None = None,
) -> Prompt:
    """The prompt with as many examples as leave its tokens within `room`; starts with the end of text.

    `context` stands in place of the item's own. The first example stands next to the question and the last one in
    front, so that what is dropped from the front for want of room is what fewer shots would not have shown either.
    Context and continuation are encoded apart, so that the tokens of the one never reach into the other.
    """
    opening = instruction + BETWEEN if instruction else ""
    asked = item.context if context is None else context
    shown = list(reversed(examples))
    while True:
        solved = "".join(example.solved + BETWEEN for example in shown)
        ids = (tokenizer.eos, *tokenizer.encode(opening + solved + asked))
        if len(ids) <= room or not shown:
            return Prompt(ids, len(shown), len(ids) <= room)
        shown.pop(0)


def reaches_over_border(tokenizer: Tokenizer, context: str, continuation: str) -> bool:
    """Whether the tokens of both texts together are others than those of each: one lies across the border.

    Where contexts are cut off a joint encoding by their number of tokens, as evaluation tools do, such a choice is
    scored from a wrong place on.
    """
    if not context:
        return False
    apart = [*tokenizer.encode(context), *tokenizer.encode_following(continuation)]
    return tokenizer.encode(context + continuation) != apart
