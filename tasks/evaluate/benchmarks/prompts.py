"""Prompts and requests: an instruction, solved examples and the item; what is asked of a network, and its response.

A prompt that does not fit into the context loses whole examples from the front, never the question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.evaluate.benchmarks.items import Item, delimiter
from tasks.evaluate.benchmarks.likelihood import LikelihoodScorer
from tasks.evaluate.config import Scoring
from tasks.tokenizer.base import Tokenizer

BETWEEN = "\n\n"

Asked = tuple[Item, Sequence[Item]]
"""An item, and the examples before it."""


@dataclass(frozen=True)
class Prompt:
    """Token ids before the continuation, and how many examples they contain."""

    ids: tuple[int, ...]
    shots: int
    fits: bool
    """Whether the item's context and the longest continuation fit into the window without truncating the item
    itself."""


def build_prompt(
    item: Item,
    examples: Sequence[Item],
    tokenizer: Tokenizer,
    *,
    instruction: str,
    max_tokens: int,
    context: str | None = None,
) -> Prompt:
    """Return the prompt with as many examples as fit into `max_tokens` tokens; it begins with its `opening`.

    `context` replaces the item's own. Examples are in reverse order, the first one next to the question, so that those
    dropped from the front are the ones that fewer shots would not include. Context and continuation are tokenized
    separately, so that no token spans the boundary between them.
    """
    opening = instruction + BETWEEN if instruction else ""
    question = item.context if context is None else context
    shown = list(reversed(examples))
    while True:
        solved = "".join(example.solved + BETWEEN for example in shown)
        ids = (tokenizer.opening, *tokenizer.encode(opening + solved + question))
        if len(ids) <= max_tokens or not shown:
            return Prompt(ids, len(shown), len(ids) <= max_tokens)
        shown.pop(0)


def crosses_boundary(tokenizer: Tokenizer, context: str, continuation: str) -> bool:
    """Return whether the tokens of both texts together differ from those of each, so that one spans the boundary.

    Evaluation tools that cut contexts off a joint encoding by their number of tokens score such a choice from the wrong
    position.
    """
    if not context:
        return False
    apart = [*tokenizer.encode(context), *tokenizer.encode_following(continuation)]
    return tokenizer.encode(context + continuation) != apart


@dataclass(frozen=True)
class Response:
    """A network's response to one item with one number of examples: log p of each choice, or a text; and the prompt."""

    item: Item
    prompt: Prompt
    log_probabilities: tuple[float, ...] = ()
    unconditional: tuple[float, ...] = ()
    """log p of each choice after `answer_prompt` alone; empty where it was not requested."""
    is_greedy: bool | None = None
    """Whether the likeliest tokens spell the answer; None of items with choices, and of a BERT."""
    text: str = ""
    """Generated text, of tasks that generate."""
    crossing: int = 0
    """Choices with a token that spans the boundary to the context where both are tokenized together."""


class Requester:
    """Sends the items of one benchmark to one network. Responses are cached by item and prompt."""

    def __init__(self, scorer: LikelihoodScorer, tokenizer: Tokenizer, scoring: Scoring, instruction: str) -> None:
        self.scorer, self.tokenizer, self.scoring = scorer, tokenizer, scoring
        self._instruction = scoring.instruction if scoring.instruction is not None else instruction
        self._cache: dict[tuple[str, tuple[int, ...]], Response] = {}
        self._unconditional: dict[tuple[str, ...], tuple[float, ...]] = {}

    def likelihoods(
        self, item: Item, examples: Sequence[Item], *, unconditional: bool = False, greedy: bool = False
    ) -> Response | None:
        """Return log p of each choice after the prompt; None where a choice is empty or longer than the network can
        score."""
        continuations = [self._encode(item.context)(text) for text in item.continuations]
        if not self._can_be_scored(continuations):
            return None
        prompt, seen = self._prompt(item, examples, self.scorer.max_prompt_tokens(max(map(len, continuations))))
        key = (item.item_id, prompt.ids)
        if key not in self._cache:
            # Every choice has the same context, truncated to what fits with the longest choice.
            self._cache[key] = Response(
                item,
                prompt,
                tuple(self.scorer.score(seen, continuations)),
                self._without_context(item, continuations) if unconditional and item.context else (),
                self.scorer.is_greedy(seen, continuations[item.answer])
                if greedy and self.scorer.can_generate
                else None,
                crossing=sum(crosses_boundary(self.tokenizer, item.context, text) for text in item.continuations),
            )
        return self._cache[key]

    def partial(self, item: Item, examples: Sequence[Item]) -> Response | None:
        """Return log p of the ending after each of the item's beginnings, which follow its context (partial scoring,
        Trinh and Le 2018); all of them follow as many examples."""
        starts = [choice.removesuffix(item.ending).rstrip() for choice in item.choices]
        beginnings = [item.context + delimiter(item.context, start, item.lang) + start for start in starts]
        endings = [
            self._encode(beginning)(delimiter(beginning, item.ending, item.lang) + item.ending)
            for beginning in beginnings
        ]
        if not self._can_be_scored(endings):
            return None

        def prompts(shown: Sequence[Item]) -> list[tuple[Prompt, Sequence[int]]]:
            return [
                self._prompt(item, shown, self.scorer.max_prompt_tokens(len(ids)), context=beginning)
                for beginning, ids in zip(beginnings, endings, strict=True)
            ]

        # More examples before a shorter beginning would be an advantage of its own.
        asked = prompts(examples[: min(prompt.shots for prompt, _ in prompts(examples))])
        scores = [self.scorer.score(seen, [ids])[0] for (_, seen), ids in zip(asked, endings, strict=True)]
        return Response(item, min((prompt for prompt, _ in asked), key=lambda prompt: prompt.fits), tuple(scores))

    def generate_all(self, asked: Sequence[Asked]) -> list[Response]:
        """Return the greedily generated text after the prompt of each item and its examples, up to a stop string; texts
        are generated in batches."""
        most = min(self.scoring.answer_tokens, self.scorer.max_choice_tokens // 2)
        prompts = [self._prompt(item, examples, self.scorer.max_prompt_tokens(most)) for item, examples in asked]
        keys = [(item.item_id, prompt.ids) for (item, _), (prompt, _) in zip(asked, prompts, strict=True)]
        new = {key: number for number, key in enumerate(keys) if key not in self._cache}
        seen = [prompts[number][1] for number in new.values()]
        texts = self.scorer.generate_texts(seen, self.tokenizer, most, self.scoring.stop)
        for (key, number), text in zip(new.items(), texts, strict=True):
            self._cache[key] = Response(asked[number][0], prompts[number][0], text=text)
        return [self._cache[key] for key in keys]

    def _can_be_scored(self, continuations: Sequence[Sequence[int]]) -> bool:
        return max(map(len, continuations)) <= self.scorer.max_choice_tokens and all(continuations)

    def _encode(self, context: str) -> Callable[[str], list[int]]:
        return self.tokenizer.encode_following if context else self.tokenizer.encode

    def _prompt(
        self, item: Item, examples: Sequence[Item], max_tokens: int, context: str | None = None
    ) -> tuple[Prompt, Sequence[int]]:
        """Return the prompt, and the tokens of it that the network reads."""
        unread = 0 if self.scorer.prepends_opening else 1
        prompt = build_prompt(
            item,
            examples,
            self.tokenizer,
            instruction=self._instruction,
            max_tokens=max_tokens + unread,
            context=context,
        )
        text = prompt.ids[unread:]
        return prompt, text[max(0, len(text) - max_tokens) :]

    def _without_context(self, item: Item, continuations: Sequence[Sequence[int]]) -> tuple[float, ...]:
        key = item.continuations
        if key not in self._unconditional:
            opening = (self.tokenizer.opening,) if self.scorer.prepends_opening else ()
            prompt = (*opening, *self.tokenizer.encode(self.scoring.answer_prompt))
            max_tokens = self.scorer.max_prompt_tokens(max(map(len, continuations)))
            self._unconditional[key] = tuple(
                self.scorer.score(prompt[max(0, len(prompt) - max_tokens) :], continuations)
            )
        return self._unconditional[key]
