"""How likely a model finds text: log probabilities of continuations, and the nats of whole documents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from model.blocks import KeyValueCache
from model.documents import visible_with_prefix
from model.transformer import GPT

PAD = 0


@dataclass(frozen=True)
class _Window:
    """Tokens fed at once; the targets from `score_from` on are counted for text `text`."""

    text: int
    tokens: tuple[int, ...]
    score_from: int


@torch.inference_mode()
def continuation_log_probabilities(
    network: GPT, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_tokens: int = 8192
) -> list[float]:
    """Sum of natural log p of each continuation's tokens, given its context; one float a pair.

    Neither part may be empty. What does not fit into the model's context is cut from the front of the context.
    Raises ValueError for an empty part or a continuation longer than the model's context.
    """
    windows: list[_Window] = []
    for index, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise ValueError(f"pair {index}: context and continuation need at least one token each")
        if len(continuation) > network.config.context:
            raise ValueError(
                f"pair {index}: a continuation of {len(continuation)} tokens does not fit into a context of"
                f" {network.config.context}"
            )
        tokens = (*context, *continuation)[-(network.config.context + 1) :]
        windows.append(_Window(index, tokens, len(tokens) - len(continuation)))
    return [-nats for nats in _nats(network, windows, len(pairs), batch_tokens)]


@torch.inference_mode()
def choice_log_probabilities(
    network: GPT, context: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[float]:
    """Sum of natural log p of each continuation's tokens after the same context, which is read only once.

    No part may be empty, and context and longest continuation together may hold one token more than the model's
    context (the last one is predicted, never read). Raises ValueError otherwise.
    """
    longest = max(map(len, continuations))
    if not context or not all(continuations) or len(context) + longest - 1 > network.config.context:
        raise ValueError(
            f"a context of {len(context)} and continuations of {[len(one) for one in continuations]} tokens do not fit"
            f" into a model of context {network.config.context}, or one of them is empty"
        )
    cache = KeyValueCache()
    after_context = network.hidden(torch.tensor([list(context)]), cache=cache)[:, -1:]
    batch = torch.tensor([[*one, *[PAD] * (longest - len(one))] for one in continuations])
    states = after_context.expand(len(continuations), -1, -1)
    if longest > 1:
        cache.keys = [key.expand(len(continuations), -1, -1, -1) for key in cache.keys]
        cache.values = [value.expand(len(continuations), -1, -1, -1) for value in cache.values]
        states = torch.cat((states, network.hidden(batch[:, :-1], cache=cache)), dim=1)
    counted = torch.tensor([[place < len(one) for place in range(longest)] for one in continuations])
    logits = network.logits(states[counted])
    nats = F.cross_entropy(logits, batch[counted], reduction="none").double()
    return [-float(part.sum()) for part in nats.split([len(one) for one in continuations])]


@torch.inference_mode()
def text_nats(
    network: GPT, texts: Sequence[Sequence[int]], begin: int, stride: int | None = None, batch_tokens: int = 8192
) -> list[float]:
    """Nats (negative natural log likelihood) of each text's tokens, each predicted exactly once.

    Each text is scored alone, after the token `begin`. Long texts are scored in windows of the model's context that
    advance by `stride` tokens (half the context by default), so that every token but the first ones is predicted from
    at least context - stride tokens.
    """
    context = network.config.context
    stride = stride or max(1, context // 2)
    windows: list[_Window] = []
    for index, text in enumerate(texts):
        tokens = (begin, *text)
        windows += [_Window(index, tokens[a:b], new - a) for a, b, new in window_borders(len(tokens), context, stride)]
    return _nats(network, windows, len(texts), batch_tokens)


def window_borders(tokens: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first that is new) of windows of at most context + 1 of `tokens`: the first scores all it holds but
    its first token, each later one what is new to it, so that every token but the first is scored once."""
    scored = 1
    while scored < tokens:
        end = min(tokens, context + 1 if scored == 1 else scored + stride)
        yield max(0, end - context - 1), end, scored
        scored = end


def _visible(network: GPT, windows: list[_Window], longest: int) -> torch.Tensor | None:
    """What tokens see where it is not all before them: a prefix language model sees all that is not to be scored."""
    if network.config.attention == "causal":
        return None
    return visible_with_prefix(torch.tensor([window.score_from for window in windows]), longest - 1)


def _nats(network: GPT, windows: list[_Window], texts: int, batch_tokens: int) -> list[float]:
    """Nats of each text over its windows; windows of similar length share a batch, padded at the end.

    Padding comes after every counted token, and a causal model cannot see it.
    """
    totals = [0.0] * texts
    order = sorted(range(len(windows)), key=lambda i: (len(windows[i].tokens), i))
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and len(windows[order[end]].tokens) * (end + 1 - begin) <= batch_tokens:
            end += 1
        chosen = [windows[i] for i in order[begin:end]]
        longest = max(len(window.tokens) for window in chosen)
        batch = torch.tensor([[*window.tokens, *[PAD] * (longest - len(window.tokens))] for window in chosen])
        counted = torch.zeros(len(chosen), longest - 1, dtype=torch.bool)
        for place, window in enumerate(chosen):
            counted[place, window.score_from - 1 : len(window.tokens) - 1] = True
        # Most of a benchmark's tokens are context: the head is only run where a token counts.
        logits = network.logits(network.hidden(batch[:, :-1], visible_B1TT=_visible(network, chosen, longest))[counted])
        nats = F.cross_entropy(logits, batch[:, 1:][counted], reduction="none").double()
        sizes = [len(window.tokens) - window.score_from for window in chosen]
        for window, part in zip(chosen, nats.split(sizes), strict=True):
            totals[window.text] += float(part.sum())
        begin = end
    return totals
