"""The plain computation of a score: one forward pass for each pair, without padding or cache; and whole texts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from model.inference.generate import Sampling, stream_tokens
from model.nn.gpt import GPT, prefix_mask


@torch.inference_mode()
def continuation_log_probabilities(network: GPT, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float]:
    """Return the sum of ln p of each continuation's tokens, given its context; one float for each pair."""
    sums: list[float] = []
    for context, continuation in pairs:
        tokens_BT = torch.tensor([[*context, *continuation]])
        is_prefix = network.config.attention == "prefix"
        visible = prefix_mask(torch.tensor([len(context)]), tokens_BT.shape[1] - 1) if is_prefix else None
        logits_TV = network.logits(network.hidden(tokens_BT[:, :-1], visible_B1TT=visible))[0, len(context) - 1 :]
        sums.append(-float(F.cross_entropy(logits_TV.double(), tokens_BT[0, len(context) :], reduction="sum")))
    return sums


def generate_tokens(
    network: GPT, prompt: Sequence[int], *, max_new_tokens: int, stop: int | None = None, **sampling: Any
) -> list[int]:
    """Return all that `stream_tokens` yields; `sampling` are the fields of `Sampling`."""
    return list(stream_tokens(network, prompt, Sampling(**sampling), max_new_tokens=max_new_tokens, stop=stop))


def greedy_without_cache(network: GPT, prompt: list[int], count: int) -> list[int]:
    """Return the tokens after a prompt, each the most probable after one pass over all before it."""
    seen = list(prompt)
    for _ in range(count):
        seen.append(int(network(torch.tensor([seen]))[0, -1].argmax()))
    return seen[len(prompt) :]
