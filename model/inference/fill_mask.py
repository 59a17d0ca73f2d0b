"""Fill blanks in a text with a BERT: the blank that it is surest of first, then the others given that one.

Shapes: T tokens, M blanks, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.errors import InputError
from model.inference.generate import Sampling, pick
from model.nn.bert import BERT

ALTERNATIVES = 5
"""Likeliest tokens that are returned for a blank."""


@dataclass(frozen=True)
class FilledBlank:
    """The token that fills a blank."""

    token: int
    probability: float
    """Probability of the token, among those allowed, when this blank was filled."""
    likeliest: tuple[tuple[int, float], ...]
    """The likeliest tokens at that time, with their probabilities."""


@torch.inference_mode()
def fill_masks(
    network: BERT,
    tokens: Sequence[int],
    blanks: Sequence[int],
    allowed_MV: Tensor,
    sampling: Sampling,
    *,
    sample: int = 0,
) -> list[FilledBlank]:
    """Return a filled blank for each index in `blanks`, in order; `tokens` has [CLS], [SEP] and [MASK] in place.

    One blank is filled at a time, the surest first, and the others then see it (Ghazvininejad et al. 2019 call this
    easy-first). `allowed_MV`, bool[M, V], says which tokens may fill which blank. Raises InputError where the text is
    longer than the network's context.
    """
    context = network.config.context
    if len(tokens) > context:
        raise InputError(f"the text has {len(tokens)} tokens, and the model's context is {context}; shorten the text")
    device = network.embedding.weight.device
    tokens_1T = torch.tensor([list(tokens)], device=device)
    types_1T, is_token_1T = torch.zeros_like(tokens_1T), torch.ones_like(tokens_1T, dtype=torch.bool)
    generator = sampling.generator(sample)
    filled: dict[int, FilledBlank] = {}
    for _ in blanks:
        hidden_1TD = network.hidden(tokens_1T, types_1T, is_token_1T)
        logits_MV = network.masked_logits(hidden_1TD, torch.tensor([list(blanks)], device=device))[0].cpu()
        logits_MV = logits_MV.masked_fill(~allowed_MV, -torch.inf)
        probability_MV = logits_MV.double().softmax(-1)
        surest_M = probability_MV.amax(-1)
        surest_M[list(filled)] = -1.0
        blank = int(surest_M.argmax())
        token = pick(logits_MV[blank], sampling, generator)
        top = probability_MV[blank].topk(min(ALTERNATIVES, int(allowed_MV[blank].sum())))
        likeliest = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        filled[blank] = FilledBlank(token, float(probability_MV[blank, token]), likeliest)
        tokens_1T[0, blanks[blank]] = token
    return [filled[blank] for blank in range(len(blanks))]
