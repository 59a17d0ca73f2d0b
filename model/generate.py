"""Text from a model, token by token: greedy, by temperature, by nucleus; the same seed writes the same tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.blocks import KeyValueCache
from model.errors import InputError
from model.transformer import GPT


@torch.inference_mode()
def generate_tokens(
    network: GPT,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: int | None = None,
) -> list[int]:
    """At most `max_new_tokens` token ids after `prompt` (which may not be empty); ends before the id `stop`.

    Temperature 0 takes the likeliest token. `top_p` keeps the smallest set of tokens whose probability reaches it
    (nucleus sampling, Holtzman et al. 2020). When the context is full, its older half is forgotten.
    """
    if temperature < 0 or not 0 < top_p <= 1:
        raise InputError(f"temperature {temperature} must be 0 or more, and top_p {top_p} above 0 and at most 1")
    if not prompt:
        raise InputError("generation needs at least one token of prompt; give the end-of-text token for none")
    generator = torch.Generator().manual_seed(seed)
    context = network.config.context
    seen = list(prompt)[-context:]
    cache = KeyValueCache()
    fresh = seen
    written: list[int] = []
    while len(written) < max_new_tokens:
        if cache.length + len(fresh) > context:
            cache, fresh = KeyValueCache(), seen[-(context // 2) :]
        logits = network(torch.tensor([fresh]), cache=cache)[0, -1]
        token = _pick(logits, temperature, top_p, generator)
        if token == stop:
            break
        written.append(token)
        seen.append(token)
        fresh = [token]
    return written


def _pick(logits_V: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    if temperature == 0.0:
        return int(logits_V.argmax())
    probability, order = (logits_V.double() / temperature).softmax(dim=0).sort(descending=True, stable=True)
    before = probability.cumsum(dim=0) - probability
    kept = probability.masked_fill(before >= top_p, 0.0) if top_p < 1.0 else probability
    if not bool(kept.any()):
        return int(order[0])
    return int(order[torch.multinomial(kept, 1, generator=generator)])
