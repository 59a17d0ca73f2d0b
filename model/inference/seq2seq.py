"""Generate text with a T5: the encoder reads once, the decoder writes token by token; blanks are filled in order.

Shapes: B texts, T tokens of the longest, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.errors import InputError
from model.inference.generate import Sampling, padded, pick
from model.nn.block import KeyValueCache
from model.nn.t5 import T5

Allowed = Callable[[tuple[int, ...]], Sequence[int]]
"""Returns the ids that may follow those written so far."""


@dataclass(frozen=True)
class DecoderTokens:
    """The ids that begin and end a decoder's output; `start` also pads shorter texts of a batch."""

    start: int
    """Padding, with which T5's decoder begins."""
    stop: int
    """End of text."""


def stream_target(
    network: T5,
    inputs: Sequence[int],
    writing: DecoderTokens,
    sampling: Sampling,
    *,
    max_new_tokens: int,
    allowed: Allowed | None = None,
    sample: int = 0,
) -> Iterator[int]:
    """Yield the decoder's output for the encoder's `inputs` as it is drawn; end before the end of text.

    `allowed` limits what may follow what was written; by default anything may. Raises InputError for empty inputs, at
    the call and not at the first token.
    """
    if not inputs:
        raise InputError("the encoder's input is empty; give at least the end-of-text token")
    return _stream(network, inputs, writing, sampling, max_new_tokens, allowed, sampling.generator(sample))


@torch.inference_mode()
def _stream(
    network: T5,
    inputs: Sequence[int],
    writing: DecoderTokens,
    sampling: Sampling,
    max_new_tokens: int,
    allowed: Allowed | None,
    generator: torch.Generator,
) -> Iterator[int]:
    device = network.embedding.weight.device
    inputs_1T = torch.tensor([list(inputs)], device=device)
    is_token_1T = torch.ones_like(inputs_1T, dtype=torch.bool)
    encoded_1TD = network.encode(inputs_1T, is_token_1T)
    cache = KeyValueCache()
    written: list[int] = []
    fresh = writing.start
    for _ in range(max_new_tokens):
        hidden_11D = network.decode(torch.tensor([[fresh]], device=device), encoded_1TD, is_token_1T, cache=cache)
        logits_V = network.logits(hidden_11D[0, 0])
        may = None if allowed is None else _mask(allowed(tuple(written)), len(logits_V))
        fresh = pick(logits_V, sampling, generator, may)
        if fresh == writing.stop:
            return
        written.append(fresh)
        yield fresh


@torch.inference_mode()
def write_targets(
    network: T5,
    inputs: Sequence[Sequence[int]],
    writing: DecoderTokens,
    *,
    max_new_tokens: int,
    allowed: Sequence[Allowed | None] | None = None,
) -> list[list[int]]:
    """Decode several texts at once greedily, each up to its end of text.

    `allowed` limits for each text what may follow what was written. A text that has ended leaves the batch.
    """
    device = network.embedding.weight.device
    inputs_BT = padded(inputs, writing.start).to(device)
    lengths_B = torch.tensor([len(ids) for ids in inputs], device=device)
    is_token_BT = torch.arange(inputs_BT.shape[1], device=device) < lengths_B[:, None]
    encoded_BTD = network.encode(inputs_BT, is_token_BT)
    cache = KeyValueCache()
    written: list[list[int]] = [[] for _ in inputs]
    going = list(range(len(inputs)))
    fresh_B1 = torch.full((len(inputs), 1), writing.start, device=device)
    for _ in range(max_new_tokens):
        hidden_B1D = network.decode(fresh_B1, encoded_BTD, is_token_BT, cache=cache)
        logits_BV = network.logits(hidden_B1D[:, 0])
        if allowed is not None:
            for place, row in enumerate(going):
                if (rule := allowed[row]) is not None:
                    may_V = _mask(rule(tuple(written[row])), logits_BV.shape[1]).to(device)
                    logits_BV[place].masked_fill_(~may_V, -torch.inf)
        token_B = logits_BV.argmax(-1)
        on = [place for place, token in enumerate(token_B.tolist()) if token != writing.stop]
        for place in on:
            written[going[place]].append(int(token_B[place]))
        if not on:
            break
        if len(on) < len(going):
            kept = torch.tensor(on, device=device)
            encoded_BTD, is_token_BT, token_B = encoded_BTD[kept], is_token_BT[kept], token_B[kept]
            cache = KeyValueCache(
                [key[kept] for key in cache.keys],
                [value[kept] for value in cache.values],
                [(key[kept], value[kept]) for key, value in cache.memory],
            )
            going = [going[place] for place in on]
        fresh_B1 = token_B[:, None]
    return written


def allow_only(answers: Sequence[Sequence[int]], stop: int) -> Allowed:
    """Return a rule that allows only one of the `answers`, each followed by `stop`."""
    follows: dict[tuple[int, ...], set[int]] = {}
    for answer in answers:
        ended = (*answer, stop)
        for place, token in enumerate(ended):
            follows.setdefault(ended[:place], set()).add(token)
    ordered = {begun: sorted(tokens) for begun, tokens in follows.items()}
    return lambda written: ordered[written]


class SpanRule:
    """Allows what a pre-trained T5 should write for a text with `blanks`: sentinel 0, span, sentinel 1, span, the end.

    Each span has at least one token and at most `longest_span`, none of them special. The last span may also end with
    the sentinel after the last blank's: in training a sentinel follows nearly every span, and a network that may not
    write one writes up to the limit.
    """

    def __init__(
        self,
        sentinels: Sequence[int],
        special: Sequence[int],
        vocab_size: int,
        blanks: int,
        longest_span: int,
        stop: int,
    ) -> None:
        if blanks > len(sentinels):
            raise InputError(
                f"a text with {blanks} blanks needs as many sentinels, and the vocabulary has {len(sentinels)}; fill"
                f" fewer blanks at once, or use a T5 whose vocabulary has more"
            )
        self._marks = (*sentinels[:blanks], stop)
        self._beyond = tuple(sentinels[blanks : blanks + 1])
        self._words = sorted(set(range(vocab_size)) - {*special, *sentinels, stop})
        self._longest = longest_span

    def __call__(self, written: tuple[int, ...]) -> Sequence[int]:
        passed = sum(token in self._marks for token in written)
        if not passed:
            return self._marks[:1]
        if written[-1] in self._beyond:
            return self._marks[-1:]
        span = len(written) - 1 - written.index(self._marks[passed - 1])
        if span >= self._longest:
            return self._marks[passed : passed + 1]
        if not span:
            return self._words
        ends = self._beyond if passed == len(self._marks) - 1 else ()
        return [*self._words, self._marks[passed], *ends]

    def spans(self, written: Sequence[int]) -> list[list[int]]:
        """Return the span of each blank, given what was written under this rule."""
        found: list[list[int]] = []
        for token in written:
            if token in self._marks:
                found.append([])
            elif token not in self._beyond:
                found[-1].append(token)
        return found


def _mask(ids: Sequence[int], size: int) -> Tensor:
    allowed_V = torch.zeros(size, dtype=torch.bool)
    allowed_V[torch.tensor(ids)] = True
    return allowed_V
