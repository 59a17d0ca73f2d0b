"""How each architecture is asked which of several texts goes on from another.

A GPT by the likelihood of each choice behind the prompt. A BERT by its pseudo-likelihood: each token of the choice is
hidden in turn, between prompt and [SEP] (Salazar et al. 2020). A T5 by its decoder's likelihood of the choice in place
of a sentinel behind the prompt, as it was trained to fill spans. What each number means stands in the note of its row.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from model.data.row_format import RowFormat
from model.data.span_lengths import Denoising
from model.inference.generate import Sampling, generate_tokens, stream_tokens
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

FILLS_SPANS: tuple[Denoising, ...] = ("random_spans", "iid_spans")
"""Objectives of T5 under which a sentinel stands for what is to be written."""

GOES_ON: tuple[Denoising, ...] = ("prefix_lm",)
"""Objectives under which what is to be written follows the input."""


class Choices(Protocol):
    """A network that scores choices."""

    longest: int
    """Tokens of the longest choice that it can score."""
    note: str
    """What its log probabilities are, where they are not those of text behind the prompt."""
    bits_metric: str
    """Name of the bits per byte of a given answer."""
    opens: bool
    """Whether it reads the end-of-text token before a prompt."""
    spells: bool
    """Whether it can be asked for the likeliest text."""

    def room(self, choice: int) -> int:
        """Tokens of the prompt that fit beside a choice of so many."""
        ...

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Sum of ln p of the tokens of each choice, none of which is empty."""
        ...

    def spelled(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Whether the likeliest token in every place of the answer is the answer's."""
        ...

    def write(self, prompt: Sequence[int], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]) -> str:
        """The likeliest text behind the prompt, token by token, up to the first of `stops`."""
        ...


def choices_of(network: Network, row_format: RowFormat | None) -> Choices | str:
    """How `network`, trained on rows of this format, is asked; or why it cannot be."""
    if isinstance(network, GPT):
        return CausalChoices(network)
    assert row_format is not None, "a trainer of BERT or T5 has read what its rows are"
    if isinstance(network, BERT):
        return MaskedChoices(network, Frame(row_format.cls, row_format.sep, row_format.mask))
    if row_format.denoising in FILLS_SPANS:
        return SpanChoices(network, row_format.pad, row_format.eos, row_format.sentinels[:1])
    if row_format.denoising in GOES_ON:
        return SpanChoices(network, row_format.pad, row_format.eos, ())
    return (
        f"declined: a T5 trained by {row_format.denoising} neither fills a gap nor goes on from a text, so that its"
        f" likelihood of a choice would mean nothing"
    )


class CausalChoices:
    """GPT: a choice behind the prompt."""

    note = ""
    bits_metric = "answer_bits_per_byte"
    opens = True
    spells = True

    def __init__(self, network: GPT) -> None:
        self._network = network
        self.longest = network.config.context

    def room(self, choice: int) -> int:
        """The last token of a choice is predicted, never read."""
        return self._network.config.context + 1 - choice

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Log likelihoods."""
        return choice_log_probabilities(self._network, prompt, choices)

    def spelled(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Greedy text; most fail at the first token."""
        return all(
            generate_tokens(self._network, prompt, max_new_tokens=length, temperature=0.0) == list(answer[:length])
            for length in sorted({1, len(answer)})
        )

    def write(self, prompt: Sequence[int], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]) -> str:
        """Greedy text; of a full context the older half is forgotten."""
        drawn = stream_tokens(self._network, prompt, GREEDY, max_new_tokens=most_tokens, stop=tokenizer.eos)
        return text_until(drawn, tokenizer, stops)


class MaskedChoices:
    """BERT: a choice between prompt and [SEP], each of its tokens hidden in turn."""

    note = "pseudo-likelihood: each token of a choice hidden in turn"
    bits_metric = "answer_pseudo_bits_per_byte"
    opens = False
    spells = False

    def __init__(self, network: BERT, frame: Frame) -> None:
        self._network, self._frame = network, frame
        self.longest = network.config.context - FRAME_TOKENS

    def room(self, choice: int) -> int:
        """Prompt and choice share the context."""
        return self.longest - choice

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Pseudo-log-likelihoods."""
        return pseudo_log_probabilities(self._network, self._frame, prompt, choices)

    def spelled(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Never asked: a text whose every token sees the others has no likeliest spelling token by token."""
        raise NotImplementedError

    def write(self, prompt: Sequence[int], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]) -> str:
        """Never asked, for the same reason."""
        raise NotImplementedError


class SpanChoices:
    """T5: a choice that the decoder writes, in place of a sentinel or behind the prompt."""

    bits_metric = "answer_bits_per_byte"
    opens = False
    spells = True

    def __init__(self, network: T5, start: int, stop: int, opening: Sequence[int]) -> None:
        self._network, self._start, self._stop, self._opening = network, start, stop, tuple(opening)
        self.longest = network.config.context
        place = "in place of a sentinel behind the prompt" if opening else "after the prompt"
        self.note = f"the decoder's likelihood of the choice {place}"

    def room(self, choice: int) -> int:
        """The choice stands in the decoder; sentinel and end of text stand behind the prompt."""
        return self.longest - len(self._opening) - 1

    def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
        """Log likelihoods of the decoder's tokens behind the sentinel."""
        return [value for value, _ in self._answers(prompt, choices)]

    def spelled(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Greedy text of the decoder, behind the sentinel."""
        return self._answers(prompt, [answer])[0][1]

    def write(self, prompt: Sequence[int], tokenizer: Tokenizer, most_tokens: int, stops: Sequence[str]) -> str:
        """Greedy text of the decoder: what stands between the first sentinel that it writes and the next."""
        inputs = [*prompt, *self._opening, self._stop]
        writing = DecoderTokens(self._start, self._stop)
        most = most_tokens + len(self._opening)
        drawn = stream_target(self._network, inputs, writing, GREEDY, max_new_tokens=most)
        return text_until(drawn, tokenizer, stops, between=set(tokenizer.sentinels) if self._opening else set())

    def _answers(self, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> list[tuple[float, bool]]:
        inputs = [*prompt, *self._opening, self._stop]
        return answers_log_probabilities(self._network, inputs, self._start, self._opening, answers)


def text_until(
    drawn: Iterable[int], tokenizer: Tokenizer, stops: Sequence[str], between: AbstractSet[int] = frozenset()
) -> str:
    """The text of tokens as they are drawn, cut before the first of `stops`; nothing is drawn behind it.

    Of ids in `between` the first begins the text and the second ends it.
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
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        if places:
            return text[: min(places)]
    return text
