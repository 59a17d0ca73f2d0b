"""Scorers: how each architecture computes the likelihood of a choice after a prompt, and generates an answer.

A GPT gives the likelihood of each choice after the prompt. A BERT gives a pseudo-likelihood: each token of the choice
is masked in turn, between prompt and [SEP] (Salazar et al. 2020). A T5 gives its decoder's likelihood of the choice in
place of a sentinel after the prompt, as it was trained to fill spans. The note of each row of SCORES says which of them
a number is.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from model.data.row_format import RowFormat
from model.data.span_lengths import Denoising
from model.inference.generate import Prompt, Sampling, generate_batch, stream_tokens
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

NO_TEXT = "declined: a BERT writes no text"

SPAN_OBJECTIVES: tuple[Denoising, ...] = ("random_spans", "iid_spans")
"""T5 objectives in which a sentinel in the input marks where text is to be generated."""

PREFIX_OBJECTIVES: tuple[Denoising, ...] = ("prefix_lm",)
"""T5 objectives in which the generated text follows the input."""


class LikelihoodScorer:
    """A network that computes log probabilities of choices and, where `can_generate`, generates text."""

    max_choice_tokens: int
    """Tokens of the longest choice that the network can score."""
    note = ""
    """What the log probabilities are, where they are not those of text after the prompt."""
    bits_metric = "answer_bits_per_byte"
    """Name of the metric of an answer's bits per byte."""
    prepends_opening = False
    """Whether the network reads the token that texts follow before a prompt."""
    can_generate = True
    """Whether the network can generate text token by token."""
    declined = ""
    """Why the network can be scored on no benchmark; empty where it can."""

    def max_prompt_tokens(self, choice: int) -> int:
        """Return how many tokens of a prompt fit with a choice of `choice` tokens."""
        raise NotImplementedError

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Return the sum of ln p of the tokens of each choice; no choice may be empty."""
        raise NotImplementedError

    def is_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Return whether the likeliest token at every position of the answer is the answer's token."""
        raise NotImplementedError

    def generate_texts(
        self, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]
    ) -> list[str]:
        """Return the greedily generated text after each prompt, up to the first of `stops`."""
        raise NotImplementedError


def make_scorer(network: Network, row_format: RowFormat | None) -> LikelihoodScorer:
    """Return the scorer of `network`, which was trained on sequences of `row_format`."""
    if isinstance(network, GPT):
        return CausalScorer(network)
    assert row_format is not None, "sequences of BERT and T5 declare their format"
    if isinstance(network, BERT):
        return MaskedScorer(network, Frame(row_format.cls, row_format.sep, row_format.mask))
    if row_format.denoising in SPAN_OBJECTIVES:
        return SpanScorer(network, row_format.pad, row_format.eos, row_format.sentinels[:1])
    if row_format.denoising in PREFIX_OBJECTIVES:
        return SpanScorer(network, row_format.pad, row_format.eos, ())
    return DecliningScorer(row_format.denoising)


class DecliningScorer(LikelihoodScorer):
    """A T5 that was trained to do something else."""

    def __init__(self, denoising: Denoising) -> None:
        self.declined = (
            f"declined: a T5 trained by {denoising} neither fills a gap nor goes on from a text, so that its likelihood"
            f" of a choice would mean nothing"
        )


class CausalScorer(LikelihoodScorer):
    """GPT: the likelihood of a choice after the prompt."""

    prepends_opening = True

    def __init__(self, network: GPT) -> None:
        self._network = network
        self.max_choice_tokens = network.config.context

    def max_prompt_tokens(self, choice: int) -> int:
        # The last token of a choice is predicted, never read.
        return self._network.config.context + 1 - choice

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        return choice_log_probabilities(self._network, prompt, choices)

    def is_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        # Most answers differ in the first token, which is tried first.
        return all(
            list(stream_tokens(self._network, prompt, GREEDY, max_new_tokens=length)) == list(answer[:length])
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


class MaskedScorer(LikelihoodScorer):
    """BERT: a choice between prompt and [SEP], each of its tokens masked in turn; where every token sees all others,
    text has no greedy order."""

    note = "pseudo-likelihood: each token of a choice hidden in turn"
    bits_metric = "answer_pseudo_bits_per_byte"
    can_generate = False

    def __init__(self, network: BERT, frame: Frame) -> None:
        self._network, self._frame = network, frame
        self.max_choice_tokens = network.config.context - FRAME_TOKENS

    def max_prompt_tokens(self, choice: int) -> int:
        return self.max_choice_tokens - choice

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        return pseudo_log_probabilities(self._network, self._frame, prompt, choices)


class SpanScorer(LikelihoodScorer):
    """T5: a choice generated by the decoder, in place of a sentinel or after the prompt."""

    def __init__(self, network: T5, start: int, stop: int, prefix: Sequence[int]) -> None:
        self._network, self._start, self._stop, self._prefix = network, start, stop, tuple(prefix)
        self.max_choice_tokens = network.config.context
        place = "in place of a sentinel behind the prompt" if prefix else "after the prompt"
        self.note = f"the decoder's likelihood of the choice {place}"

    def max_prompt_tokens(self, choice: int) -> int:
        # The encoder reads a sentinel and the end of text too; the choice is in the decoder.
        return self.max_choice_tokens - len(self._prefix) - 1

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        return [value for value, _ in self._answers(prompt, choices)]

    def is_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
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
