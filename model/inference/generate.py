"""Generate text with a GPT token by token, for many prompts at once: greedy, or sampled with temperature, top k or
nucleus.

A batch has a cache of fixed size; a text that ends makes place for a prompt that waits. Token t of a sampled text is
drawn with the t-th number of its own generator, so that it does not depend on the texts beside it. The logits of
batches of other sizes differ in their last bits, no more.

Shapes: B texts, T tokens, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.errors import InputError
from model.nn.block import BatchCache, KeyValueCache
from model.nn.gpt import GPT, prefix_mask

MOST_ROWS = 64
"""Texts that are generated at once."""

MOST_CACHE_VALUES = 1 << 28
"""Values in the cache of a batch, 1 GiB in float32; a single text may need more."""

MOST_READ_TOKENS = 8192
"""Tokens of prompts that are read at once, padding included; a single prompt may be longer."""

LIKELIEST = 1024
"""Tokens among which a nucleus is searched first, since sorting a whole vocabulary takes longer than a small network's
forward pass."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; equal seeds and sample numbers give equal tokens."""

    temperature: float = 1.0
    """Divisor of the logits; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this (nucleus sampling, Holtzman et al. 2020)."""
    top_k: int | None = None
    """Keep this many of the likeliest tokens (Fan et al. 2018); None keeps all."""
    seed: int = 0

    def __post_init__(self) -> None:
        # Also refuses what is no number. Logits over numbers beyond these would be infinite, or 0 times infinity.
        if not (self.temperature == 0 or 1e-100 <= self.temperature <= 1e100) or not 0 < self.top_p <= 1:
            raise InputError(
                f"temperature {self.temperature} must be 0, or from 1e-100 to 1e+100, and top_p {self.top_p} above 0"
                f" and at most 1"
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k {self.top_k} must be 1 or more; leave it out to keep all tokens")

    def generator(self, sample: int = 0) -> torch.Generator:
        """Return the generator of one of several samples, which does not depend on how many there are."""
        return torch.Generator().manual_seed((self.seed + sample * 0x9E3779B97F4A7C15) % 2**63)


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue, and how."""

    tokens: Sequence[int]
    sampling: Sampling
    sample: int = 0
    """Number of the sample, of several that share a seed."""


@dataclass(frozen=True)
class Drawn:
    """A token that was drawn."""

    text: int
    """Index of its prompt."""
    token: int
    probability: float = 0.0
    """The network's probability of the token, whatever the temperature; 0 unless alternatives were asked for."""
    likeliest: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their probabilities, as many as were asked for."""


def stream_tokens(
    network: GPT,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    stop: int | None = None,
    sample: int = 0,
) -> Iterator[int]:
    """Yield at most `max_new_tokens` token ids after `prompt` as they are drawn; end before the id `stop`.

    `sample` numbers samples that share a seed. When the context is full, its older half is dropped. Raises InputError
    for an empty prompt, at the call and not at the first token.
    """
    drawn = stream_batch(network, [Prompt(prompt, sampling, sample)], max_new_tokens=max_new_tokens, stop=stop)
    return (one.token for one in drawn)


def generate_batch(
    network: GPT,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    stop: int | None = None,
    ended: Callable[[int, list[int]], bool] | None = None,
) -> list[list[int]]:
    """Return the tokens after each prompt, as `stream_batch` draws them.

    `ended` is called with the index of a text and its tokens after each new one, and returns whether that is the last.
    """
    written: list[list[int]] = [[] for _ in prompts]
    drawing = stream_batch(network, prompts, max_new_tokens=max_new_tokens, stop=stop, ended=ended)
    for one in drawing:
        written[one.text].append(one.token)
    return written


def stream_batch(
    network: GPT,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    stop: int | None = None,
    ended: Callable[[int, list[int]], bool] | None = None,
    alternatives: int = 0,
) -> Iterator[Drawn]:
    """Yield tokens after each of several prompts as they are drawn, each text in its order, up to the id `stop`.

    When the context of a text is full, its older half is dropped. With `alternatives`, each token has its probability
    and so many of the likeliest. Raises InputError for an empty prompt, at the call and not at the first token.
    """
    if not all(prompt.tokens for prompt in prompts):
        raise InputError("generation needs a prompt of at least one token; give the end-of-text token for an empty one")
    context = network.config.context
    texts = [
        _Text(number, list(prompt.tokens)[-context:], prompt.sampling, prompt.sampling.generator(prompt.sample))
        for number, prompt in enumerate(prompts)
    ]
    return _stream(network, texts, max_new_tokens, stop, ended, alternatives)


@dataclass(eq=False)
class _Text:
    number: int
    seen: list[int]
    """Prompt and tokens after it; the last one is not in the cache yet."""
    sampling: Sampling
    generator: torch.Generator
    written: list[int] = field(default_factory=list)


@torch.inference_mode()
def _stream(
    network: GPT,
    texts: Sequence[_Text],
    most: int,
    stop: int | None,
    ended: Callable[[int, list[int]], bool] | None,
    alternatives: int,
) -> Iterator[Drawn]:
    waiting = deque(texts if most > 0 else ())
    if not waiting:
        return
    context = network.config.context
    capacity = min(context, max(len(text.seen) for text in texts) + most)
    of_token = 2 * network.config.layers * network.config.block.kv_inner
    places = min(len(texts), MOST_ROWS, max(1, MOST_CACHE_VALUES // (of_token * capacity)))
    cache = BatchCache(places, capacity)
    rows: list[_Text] = []

    def remove(row: int) -> None:
        cache.remove(row)
        rows[row] = rows[-1]
        rows.pop()

    while rows or waiting:
        full = [row for row, length in enumerate(cache.lengths) if length == context]
        fresh = [rows[row] for row in full]
        for text in fresh:
            text.seen = text.seen[-(context // 2) :]
        for row in reversed(full):
            remove(row)
        while waiting and len(rows) + len(fresh) < places:
            fresh.append(waiting.popleft())
        if fresh:
            logits_BV = network.logits(_read(network, fresh, cache))
            rows += fresh
        else:
            last_B = torch.tensor([text.seen[-1] for text in rows], device=network.embedding.weight.device)
            logits_BV = network.logits(network.hidden_next(last_B, cache))
        over: list[_Text] = []
        turn = fresh or list(rows)
        for text, one in zip(turn, _draw(logits_BV, turn, alternatives), strict=True):
            if one.token == stop:
                over.append(text)
                continue
            yield one
            text.seen.append(one.token)
            text.written.append(one.token)
            if len(text.written) == most or (ended is not None and ended(text.number, text.written)):
                over.append(text)
        for text in over:
            remove(rows.index(text))


def _read(network: GPT, texts: Sequence[_Text], cache: BatchCache) -> Tensor:
    """Return the hidden state f32[B, D] of the last token of each text, after adding all its tokens to the cache.

    Texts are padded at their ends, where padding is seen by no token.
    """
    device, by_length = network.embedding.weight.device, network.config.rotates_by_length
    found: list[Tensor] = []
    begin = 0
    while begin < len(texts):
        longest, end = len(texts[begin].seen), begin + 1
        while end < len(texts):
            grown = max(longest, len(texts[end].seen))
            if grown * (end + 1 - begin) > MOST_READ_TOKENS or (by_length and len(texts[end].seen) != longest):
                break
            longest, end = grown, end + 1
        lengths = [len(text.seen) for text in texts[begin:end]]
        tokens_BT = padded([text.seen for text in texts[begin:end]])
        lengths_B = torch.tensor(lengths, device=device)
        visible = prefix_mask(lengths_B, longest) if network.config.attention == "prefix" else None
        filled = KeyValueCache()
        hidden_BTD = network.hidden(tokens_BT.to(device), filled, visible_B1TT=visible)
        cache.add(filled, lengths)
        found.append(hidden_BTD[torch.arange(end - begin, device=device), lengths_B - 1])
        begin = end
    return torch.cat(found)


def padded(rows: Sequence[Sequence[int]], filling: int = 0) -> Tensor:
    """Return rows of token ids, i64[rows, longest], filled up at their ends."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filling] * (longest - len(row))] for row in rows])


def _draw(logits_BV: Tensor, texts: Sequence[_Text], alternatives: int) -> Iterator[Drawn]:
    likeliest_B = logits_BV.argmax(-1).tolist()
    if alternatives or any(text.sampling.temperature for text in texts):
        logits_BV = logits_BV.float().cpu()
    for logits_V, text, likeliest in zip(logits_BV, texts, likeliest_B, strict=True):
        token = pick(logits_V, text.sampling, text.generator) if text.sampling.temperature else likeliest
        if not alternatives:
            yield Drawn(text.number, token)
            continue
        probability_V = logits_V.double().softmax(0)
        top = probability_V.topk(min(alternatives, len(probability_V)))
        others = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        yield Drawn(text.number, token, float(probability_V[token]), others)


def pick(logits_V: Tensor, sampling: Sampling, generator: torch.Generator, allowed_V: Tensor | None = None) -> int:
    """Draw a token from logits f32[V], among those that `allowed_V`, bool[V], allows (at least one).

    Takes one number of the generator for each token, and none where the temperature is 0.
    """
    logits_V = logits_V.cpu()
    if allowed_V is not None:
        logits_V = logits_V.masked_fill(~allowed_V, -torch.inf)
    if sampling.temperature == 0.0:
        return int(logits_V.argmax())
    probability_V = (logits_V.double() / sampling.temperature).softmax(dim=0)
    ids, probability = _kept(probability_V, sampling)
    drawn = torch.rand((), dtype=torch.float64, generator=generator)
    sums = probability.cumsum(dim=0)
    # The first whose sum exceeds the drawn share, so that a token of probability 0 is never drawn.
    place = int(torch.searchsorted(sums, drawn * sums[-1], right=True))
    return int(ids[min(place, len(ids) - 1)])


def _kept(probability_V: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the ids from which a token is drawn, and their probabilities f64, not normalised."""
    if sampling.top_k is None and sampling.top_p == 1.0:
        ids = probability_V.nonzero()[:, 0]
        return ids, probability_V[ids]
    for count in (min(sampling.top_k or LIKELIEST, len(probability_V)), len(probability_V)):
        # By a threshold and a stable sort: of equal probabilities the lower ids come first.
        ids = (probability_V >= probability_V.topk(count).values[-1]).nonzero()[:, 0]
        probability, order = probability_V[ids].sort(descending=True, stable=True)
        probability, ids = probability[:count], ids[order[:count]]
        whole = probability.sum() if sampling.top_k is not None else probability_V.sum()
        before = probability.cumsum(dim=0) - probability
        kept = (before < sampling.top_p * whole) & (probability > 0)
        if sampling.top_k is not None or not bool(kept[-1]):
            break
    return ids[kept], probability[kept]
