"""Hidden tokens filled in by a BERT: the hole that it is surest of first, then the others in view of it.

Shapes: T tokens, M holes, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.errors import InputError
from model.inference.generate import Sampling, pick
from model.nn.bert import BERT


@dataclass(frozen=True)
class Filled:
    """What stands in a hole now."""

    token: int
    probability: float
    """Of the token, among those allowed, when this hole was filled."""
    likeliest: tuple[tuple[int, float], ...]
    """The likeliest tokens then, and their probabilities."""


@torch.inference_mode()
def fill_masks(
    network: BERT,
    tokens: Sequence[int],
    holes: Sequence[int],
    allowed_MV: Tensor,
    sampling: Sampling,
    *,
    sample: int = 0,
    alternatives: int = 5,
) -> list[Filled]:
    """A token for each place in `holes`, where `tokens` (with [CLS], [SEP] and [MASK]) hides one; in their order.

    One hole is filled at a time, the surest first, and the others then see it (Ghazvininejad et al. 2019 call this
    easy-first). `allowed_MV`, bool[M, V], says what may stand where. Raises InputError where the text is longer than
    the network's context.
    """
    context = network.config.context
    if len(tokens) > context:
        raise InputError(f"the text has {len(tokens)} tokens, and the model sees {context}; give a shorter one")
    device = network.embedding.weight.device
    tokens_1T = torch.tensor([list(tokens)], device=device)
    types_1T, is_token_1T = torch.zeros_like(tokens_1T), torch.ones_like(tokens_1T, dtype=torch.bool)
    generator = sampling.generator(sample)
    filled: dict[int, Filled] = {}
    for _ in holes:
        hidden_1TD = network.hidden(tokens_1T, types_1T, is_token_1T)
        logits_MV = network.masked_logits(hidden_1TD, torch.tensor([list(holes)], device=device))[0].cpu()
        logits_MV = logits_MV.masked_fill(~allowed_MV, -torch.inf)
        probability_MV = logits_MV.double().softmax(-1)
        surest_M = probability_MV.amax(-1)
        surest_M[list(filled)] = -1.0
        hole = int(surest_M.argmax())
        token = pick(logits_MV[hole], sampling, generator)
        top = probability_MV[hole].topk(min(alternatives, int(allowed_MV[hole].sum())))
        likeliest = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        filled[hole] = Filled(token, float(probability_MV[hole, token]), likeliest)
        tokens_1T[0, holes[hole]] = token
    return [filled[hole] for hole in range(len(holes))]
