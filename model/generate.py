"""Text from a decoder, token by token: greedy, by temperature, top k or nucleus; the same seed, the same tokens."""

from collections.abc import Iterator, Sequence

import torch

from model.blocks import KeyValueCache
from model.errors import InputError
from model.sampling import Sampling, pick
from model.transformer import GPT


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
    """At most `max_new_tokens` token ids after `prompt` (which may not be empty); ends before the id `stop`.

    See `Sampling` for how tokens are drawn. When the context is full, its older half is forgotten.
    """
    sampling = Sampling(temperature, top_p, top_k, seed)
    return list(stream_tokens(network, prompt, sampling, max_new_tokens=max_new_tokens, stop=stop))


def stream_tokens(
    network: GPT,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    stop: int | None = None,
    sample: int = 0,
) -> Iterator[int]:
    """The tokens of `generate_tokens` as they are drawn; `sample` numbers those that share a seed.

    Raises InputError for an empty prompt, before the first token is asked for.
    """
    if not prompt:
        raise InputError("generation needs at least one token of prompt; give the end-of-text token for none")
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
