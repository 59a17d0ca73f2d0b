"""Scorers: how each architecture computes the likelihood of a choice after a prompt, and generates an answer.

A GPT gives the likelihood of each choice after the prompt. A BERT gives a pseudo-likelihood: each token of the choice
is masked in turn, between prompt and [SEP] (Salazar et al. 2020). A T5 gives its decoder's likelihood of the choice in
place of a sentinel after the prompt, as it was trained to fill spans. The note of each row of SCORES says which of them
a number is.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from model.data.row_format import RowFormat
from model.data.span_lengths import Denoising
from model.inference.generate import Prompt, Sampling, generate_batch, generate_tokens
from model.inference.scoring import (
    FRAME_TOKENS,
    Frame,
    answers_log_probabilities,
    choice_log_probabilities,
    pseudo_log_probabilities,
)
from model.inference.seq2seq import DecoderTokens, stream_target
from model.nn.bert import BERT
from model.nn.factory import Network
from model.nn.gpt import GPT
from model.nn.t5 import T5
from tasks.tokenizer.base import Tokenizer

GREEDY = Sampling(temperature=0.0)

SPAN_OBJECTIVES: tuple[Denoising, ...] = ("random_spans", "iid_spans")
"""T5 objectives in which a sentinel in the input marks where text is to be generated."""

PREFIX_OBJECTIVES: tuple[Denoising, ...] = ("prefix_lm",)
"""T5 objectives in which the generated text follows the input."""


class LikelihoodScorer(Protocol):
    """A network that computes log probabilities of choices and generates text."""

    max_choice_tokens: int
    """Tokens of the longest choice that the network can score."""
    note: str
    """What the log probabilities are, where they are not those of text after the prompt; empty otherwise."""
    bits_metric: str
    """Name of the metric of an answer's bits per byte."""
    prepends_eos: bool
    """Whether the network reads the end-of-text token before a prompt."""
    can_generate: bool
    """Whether the network can generate text token by token."""

    def max_prompt_tokens(self, choice: int) -> int:
        """Return how many tokens of a prompt fit with a choice of `choice` tokens."""
        ...

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Return the sum of ln p of the tokens of each choice; no choice may be empty."""
        ...

    def is_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Return whether the likeliest token at every position of the answer is the answer's token."""
        ...

    def generate_texts(
        self, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]
    ) -> list[str]:
        """Return the greedily generated text after each prompt, up to the first of `stops`."""
        ...


def make_scorer(network: Network, row_format: RowFormat | None) -> LikelihoodScorer | str:
    """Return the scorer of `network`, which was trained on sequences of `row_format`, or the reason why it has none."""
    if isinstance(network, GPT):
        return CausalScorer(network)
    assert row_format is not None, "sequences of BERT and T5 declare their format"
    if isinstance(network, BERT):
        return MaskedScorer(network, Frame(row_format.cls, row_format.sep, row_format.mask))
    if row_format.denoising in SPAN_OBJECTIVES:
        return SpanScorer(network, row_format.pad, row_format.eos, row_format.sentinels[:1])
    if row_format.denoising in PREFIX_OBJECTIVES:
        return SpanScorer(network, row_format.pad, row_format.eos, ())
    return (
        f"declined: a T5 trained by {row_format.denoising} neither fills a gap nor goes on from a text, so that its"
        f" likelihood of a choice would mean nothing"
    )


class CausalScorer:
    """GPT: the likelihood of a choice after the prompt."""

    note = ""
    bits_metric = "answer_bits_per_byte"
    prepends_eos = True
    can_generate = True

    def __init__(self, network: GPT) -> None:
        self._network = network
        self.max_choice_tokens = network.config.context

    def max_prompt_tokens(self, choice: int) -> int:
        """Return the context less the choice; the last token of a choice is predicted, never read."""
        return self._network.config.context + 1 - choice

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Return log likelihoods."""
        return choice_log_probabilities(self._network, prompt, choices)

    def is_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Generate greedily and compare; most answers differ in the first token, which is tried first."""
        return all(
            generate_tokens(self._network, prompt, max_new_tokens=length, temperature=0.0) == list(answer[:length])
            for length in sorted({1, len(answer)})
        )

    def generate_texts(
        self, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]
    ) -> list[str]:
        """Generate greedily in batches; when the context is full, its older half is dropped."""

        def ended(text: int, ids: list[int]) -> bool:
            del text
            return any(stop in tokenizer.decode_following(ids) for stop in stops)

        asked = [Prompt(prompt, GREEDY) for prompt in prompts]
        written = generate_batch(self._network, asked, max_new_tokens=most_tokens, stop=tokenizer.eos, ended=ended)
        return [read_until_stop(ids, tokenizer, stops) for ids in written]


class MaskedScorer:
    """BERT: a choice between prompt and [SEP], each of its tokens masked in turn."""

    note = "pseudo-likelihood: each token of a choice hidden in turn"
    bits_metric = "answer_pseudo_bits_per_byte"
    prepends_eos = False
    can_generate = False

    def __init__(self, network: BERT, frame: Frame) -> None:
        self._network, self._frame = network, frame
        self.max_choice_tokens = network.config.context - FRAME_TOKENS

    def max_prompt_tokens(self, choice: int) -> int:
        """Return what the choice leaves of the context, which prompt and choice share."""
        return self.max_choice_tokens - choice

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Return pseudo-log-likelihoods."""
        return pseudo_log_probabilities(self._network, self._frame, prompt, choices)

    def is_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Raise NotImplementedError: where every token sees all others, text has no greedy order."""
        raise NotImplementedError

    def generate_texts(
        self, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]
    ) -> list[str]:
        """Raise NotImplementedError, for the same reason."""
        raise NotImplementedError


class SpanScorer:
    """T5: a choice generated by the decoder, in place of a sentinel or after the prompt."""

    bits_metric = "answer_bits_per_byte"
    prepends_eos = False
    can_generate = True

    def __init__(self, network: T5, start: int, stop: int, prefix: Sequence[int]) -> None:
        self._network, self._start, self._stop, self._prefix = network, start, stop, tuple(prefix)
        self.max_choice_tokens = network.config.context
        place = "in place of a sentinel behind the prompt" if prefix else "after the prompt"
        self.note = f"the decoder's likelihood of the choice {place}"

    def max_prompt_tokens(self, choice: int) -> int:
        """Return the encoder's context less sentinel and end of text; the choice is in the decoder."""
        return self.max_choice_tokens - len(self._prefix) - 1

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Return log likelihoods of the decoder's tokens after the sentinel."""
        return [value for value, _ in self._answers(prompt, choices)]

    def is_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Compare with the decoder's likeliest tokens after the sentinel."""
        return self._answers(prompt, [answer])[0][1]

    def generate_texts(
        self, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]
    ) -> list[str]:
        """Generate with the decoder, one text after the other, and return what is between the first sentinel that it
        generates and the next one."""
        writing = DecoderTokens(self._start, self._stop)
        most = most_tokens + len(self._prefix)
        between = set(tokenizer.sentinels) if self._prefix else set[int]()
        texts: list[str] = []
        for prompt in prompts:
            inputs = [*prompt, *self._prefix, self._stop]
            drawn = stream_target(self._network, inputs, writing, GREEDY, max_new_tokens=most)
            texts.append(read_until_stop(drawn, tokenizer, stops, between))
        return texts

    def _answers(self, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> list[tuple[float, bool]]:
        inputs = [*prompt, *self._prefix, self._stop]
        return answers_log_probabilities(self._network, inputs, self._start, self._prefix, answers)


def read_until_stop(
    drawn: Iterable[int], tokenizer: Tokenizer, stops: Sequence[str], between: AbstractSet[int] = frozenset()
) -> str:
    """Return the text of tokens as they are drawn, cut before the first of `stops`; no further token is drawn after it.

    Of the ids in `between`, the first one begins the text and the second one ends it.
    """
    ids: list[int] = []
    text = ""
    for token in drawn:
        if token in between:
            if ids:
                break
            continue
        ids.append(token)
        text = tokenizer.decode_following(ids)
        starts = [place for stop in stops if (place := text.find(stop)) >= 0]
        if starts:
            return text[: min(starts)]
    return text
