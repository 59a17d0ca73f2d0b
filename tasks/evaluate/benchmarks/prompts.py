"""Prompts: an instruction, solved examples, the item. What does not fit into the window loses whole examples from the
front, never the question.

How an item is put to a network under one number of examples, and what came back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.evaluate.benchmarks.items import Item, delimiter
from tasks.evaluate.benchmarks.likelihood import Choices
from tasks.evaluate.config import Scoring
from tasks.tokenizer.base import Tokenizer

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


@dataclass(frozen=True)
class Answered:
    """One item under one number of examples: log p of each choice, or a text; and the prompt it was asked with."""

    item: Item
    prompt: Prompt
    log_probabilities: tuple[float, ...] = ()
    unconditional: tuple[float, ...] = ()
    """log p of each choice behind `answer_prompt` alone; empty where it was not asked for."""
    spelled: bool | None = None
    """Whether the likeliest tokens spell the answer; asked only of items without choices, and not of a BERT."""
    text: str = ""
    """What the network wrote, where it was to write."""
    crossing: int = 0
    """Choices of which a token lies across the border to the context where both are encoded together."""


class Asker:
    """One network and the way one benchmark is asked. What was asked once with the same prompt is not asked again."""

    def __init__(self, choices: Choices, tokenizer: Tokenizer, scoring: Scoring, instruction: str) -> None:
        self.choices, self.tokenizer, self.scoring = choices, tokenizer, scoring
        self._instruction = scoring.instruction if scoring.instruction is not None else instruction
        self._known: dict[tuple[str, tuple[int, ...]], Answered] = {}
        self._unconditional: dict[tuple[str, ...], tuple[float, ...]] = {}

    def likelihoods(
        self, item: Item, examples: Sequence[Item], *, unconditional: bool = False, spelled: bool = False
    ) -> Answered | None:
        """log p of each choice behind the prompt; None where one is empty or leaves no room for any context."""
        continuations = [self._encode(item.context)(text) for text in item.continuations]
        if not self._can_be_scored(continuations):
            return None
        prompt, seen = self._prompt(item, examples, self.choices.room(max(map(len, continuations))))
        key = (item.item_id, prompt.ids)
        if key not in self._known:
            # Every choice sees the same context, whatever its own length: what does not fit is cut by the longest.
            self._known[key] = Answered(
                item,
                prompt,
                tuple(self.choices.score(seen, continuations)),
                self._without_context(item, continuations) if unconditional and item.context else (),
                self.choices.spelled(seen, continuations[item.answer]) if spelled and self.choices.spells else None,
                crossing=self._crossing(item),
            )
        return self._known[key]

    def partial(self, item: Item, examples: Sequence[Item]) -> Answered | None:
        """log p of the ending behind each of the item's beginnings (partial scoring, Trinh and Le 2018)."""
        beginnings = [choice.removesuffix(item.ending).rstrip() for choice in item.choices]
        scores: list[float] = []
        prompts: list[Prompt] = []
        for beginning in beginnings:
            ending = delimiter(beginning, item.ending, item.lang) + item.ending
            ids = self._encode(beginning)(ending)
            if not self._can_be_scored([ids]):
                return None
            prompt, seen = self._prompt(item, examples, self.choices.room(len(ids)), context=beginning)
            scores += self.choices.score(seen, [ids])
            prompts.append(prompt)
        fewest = min(prompts, key=lambda prompt: (prompt.fits, prompt.shots))
        return Answered(item, fewest, tuple(scores))

    def written(self, item: Item, examples: Sequence[Item]) -> Answered:
        """The likeliest text behind the prompt, up to a stop string."""
        most = min(self.scoring.answer_tokens, self.choices.longest // 2)
        prompt, seen = self._prompt(item, examples, self.choices.room(most))
        key = (item.item_id, prompt.ids)
        if key not in self._known:
            text = self.choices.write(seen, self.tokenizer, most, self.scoring.stop)
            self._known[key] = Answered(item, prompt, text=text)
        return self._known[key]

    def _can_be_scored(self, continuations: Sequence[Sequence[int]]) -> bool:
        return max(map(len, continuations)) <= self.choices.longest and all(continuations)

    def _encode(self, context: str) -> Callable[[str], list[int]]:
        return self.tokenizer.encode_following if context else self.tokenizer.encode

    def _prompt(
        self, item: Item, examples: Sequence[Item], room: int, context: str | None = None
    ) -> tuple[Prompt, Sequence[int]]:
        """The prompt, and as much of it as the network reads."""
        unread = 0 if self.choices.opens else 1
        prompt = build_prompt(
            item, examples, self.tokenizer, instruction=self._instruction, room=room + unread, context=context
        )
        text = prompt.ids[unread:]
        return prompt, text[max(0, len(text) - room) :]

    def _without_context(self, item: Item, continuations: Sequence[Sequence[int]]) -> tuple[float, ...]:
        key = item.continuations
        if key not in self._unconditional:
            opening = (self.tokenizer.eos,) if self.choices.opens else ()
            prompt = (*opening, *self.tokenizer.encode(self.scoring.answer_prompt))
            room = self.choices.room(max(map(len, continuations)))
            self._unconditional[key] = tuple(self.choices.score(prompt[max(0, len(prompt) - room) :], continuations))
        return self._unconditional[key]

    def _crossing(self, item: Item) -> int:
        return sum(reaches_over_border(self.tokenizer, item.context, text) for text in item.continuations)
