"""Generate text with a GPT token by token: greedy, or sampled with temperature, top k or nucleus.

Equal seeds give equal tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.errors import InputError
from model.nn.block import KeyValueCache
from model.nn.gpt import GPT


def generate_tokens(
    network: GPT,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    stop: int | None = None,
) -> list[int]:
    """Return at most `max_new_tokens` token ids after `prompt`, which may not be empty; end before the id `stop`.

    See `Sampling` for how tokens are drawn. When the context is full, its older half is dropped.
    """
    sampling = Sampling(temperature, top_p, top_k, seed)
    return list(stream_tokens(network, prompt, sampling, max_new_tokens=max_new_tokens, stop=stop))


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
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise InputError(
                f"temperature {self.temperature} must be 0 or more, and top_p {self.top_p} above 0 and at most 1"
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k {self.top_k} must be 1 or more; leave it out to keep all tokens")

    def generator(self, sample: int = 0) -> torch.Generator:
        """Return the generator of one of several samples, which does not depend on how many there are."""
        return torch.Generator().manual_seed((self.seed + sample * 0x9E3779B97F4A7C15) % 2**63)


def stream_tokens(
    network: GPT,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    stop: int | None = None,
    sample: int = 0,
) -> Iterator[int]:
    """Yield the tokens of `generate_tokens` as they are drawn; `sample` numbers samples that share a seed.

    Raises InputError for an empty prompt, at the call and not at the first token.
    """
    if not prompt:
        raise InputError("generation needs a prompt of at least one token; give the end-of-text token for an empty one")
    return _stream(network, prompt, sampling, max_new_tokens, stop, sampling.generator(sample))


@torch.inference_mode()
def _stream(
    network: GPT,
    prompt: Sequence[int],
    sampling: Sampling,
    max_new_tokens: int,
    stop: int | None,
    generator: torch.Generator,
) -> Iterator[int]:
    device = network.embedding.weight.device
    context = network.config.context
    seen = list(prompt)[-context:]
    cache = KeyValueCache()
    fresh = seen
    for _ in range(max_new_tokens):
        if cache.length + len(fresh) > context:
            cache, fresh = KeyValueCache(), seen[-(context // 2) :]
        hidden_D = network.hidden(torch.tensor([fresh], device=device), cache)[0, -1]
        token = pick(network.logits(hidden_D), sampling, generator)
        if token == stop:
            return
        yield token
        seen.append(token)
        fresh = [token]


def pick(logits_V: Tensor, sampling: Sampling, generator: torch.Generator, allowed_V: Tensor | None = None) -> int:
    """Draw a token from logits f32[V], among those that `allowed_V`, bool[V], allows (at least one)."""
    logits_V = logits_V.cpu()
    if allowed_V is not None:
        logits_V = logits_V.masked_fill(~allowed_V, -torch.inf)
    if sampling.temperature == 0.0:
        return int(logits_V.argmax())
    probability, order = (logits_V.double() / sampling.temperature).softmax(dim=0).sort(descending=True, stable=True)
    if sampling.top_k is not None:
        probability[sampling.top_k :] = 0.0
        probability = probability / probability.sum()
    before = probability.cumsum(dim=0) - probability
    kept = probability.masked_fill(before >= sampling.top_p, 0.0) if sampling.top_p < 1.0 else probability
    if not bool(kept.any()):
        return int(order[0])
    return int(order[torch.multinomial(kept, 1, generator=generator)])
