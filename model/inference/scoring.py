"""Score text with a GPT, BERT or T5: log probabilities of continuations, and nats of whole documents.

A BERT's score of a text is its pseudo-log-likelihood (Salazar et al. 2020, section 2): the sum of log p of each token,
masked in turn, given all others. It is no likelihood: tokens on both sides predict a token better than those before it,
so that it compares BERTs with each other only. A T5 scores the targets of its objective, and answers to a text.

Shapes: B rows, T tokens or encoder inputs, M masked tokens at most, U decoder targets, A tokens of an answer, V
vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model.data.loader import MaskedBatch, SpanBatch
from model.data.row_format import NO_LOSS
from model.engines.runtime import move_batch
from model.inference.generate import padded
from model.nn.bert import BERT
from model.nn.block import KeyValueCache
from model.nn.gpt import GPT, prefix_mask
from model.nn.t5 import T5


@dataclass(frozen=True)
class _Window:
    """Tokens of one forward pass; the tokens from `score_from` on are scored for the text with index `text`."""

    text: int
    tokens: tuple[int, ...]
    score_from: int


@torch.inference_mode()
def choice_log_probabilities(
    network: GPT, context: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[float]:
    """Return the sum of ln p of each continuation's tokens after the same context, which is read only once.

    No part may be empty, and context and longest continuation together may hold one token more than the model's
    context (the last one is predicted, never read). Raises ValueError otherwise.
    """
    longest = max(map(len, continuations))
    if network.config.rotates_by_length and min(map(len, continuations)) < longest:
        return [choice_log_probabilities(network, context, [one])[0] for one in continuations]
    if not context or not all(continuations) or len(context) + longest - 1 > network.config.context:
        raise ValueError(
            f"a context of {len(context)} and continuations of {[len(one) for one in continuations]} tokens do not fit"
            f" into a model of context {network.config.context}, or one of them is empty"
        )
    cache = KeyValueCache()
    device = network.embedding.weight.device
    after_context = network.hidden(torch.tensor([list(context)], device=device), cache=cache)[:, -1:]
    batch = padded(continuations).to(device)
    states = after_context.expand(len(continuations), -1, -1)
    if longest > 1:
        cache.keys = [key.expand(len(continuations), -1, -1, -1) for key in cache.keys]
        cache.values = [value.expand(len(continuations), -1, -1, -1) for value in cache.values]
        states = torch.cat((states, network.hidden(batch[:, :-1], cache=cache)), dim=1)
    counted = torch.tensor([[place < len(one) for place in range(longest)] for one in continuations], device=device)
    logits = network.logits(states[counted])
    nats = F.cross_entropy(logits, batch[counted], reduction="none").double()
    return [-float(part.sum()) for part in nats.split([len(one) for one in continuations])]


def text_nats(
    network: GPT, texts: Sequence[Sequence[int]], begin: int, stride: int | None = None, batch_tokens: int = 8192
) -> list[float]:
    """Return the sum of `token_nats` of each text."""
    return [float(nats.sum()) for nats in token_nats(network, texts, begin, stride, batch_tokens)]


@torch.inference_mode()
def token_nats(
    network: GPT, texts: Sequence[Sequence[int]], begin: int, stride: int | None = None, batch_tokens: int = 8192
) -> list[Tensor]:
    """Return the nats (-ln p) of each token of each text, f64[tokens] on the CPU, each predicted exactly once.

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
    parts: list[list[Tensor]] = [[torch.zeros(0, dtype=torch.float64)] for _ in texts]
    for window, nats in zip(windows, _window_nats(network, windows, batch_tokens), strict=True):
        parts[window.text].append(nats)
    return [torch.cat(mine) for mine in parts]


def window_borders(tokens: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, first new) of windows of at most context + 1 of `tokens`.

    The first window scores all of its tokens but the first, each later one those that are new in it, so that every
    token but the first is scored once.
    """
    scored = 1
    while scored < tokens:
        end = min(tokens, context + 1 if scored == 1 else scored + stride)
        yield max(0, end - context - 1), end, scored
        scored = end


def _window_nats(network: GPT, windows: list[_Window], batch_tokens: int) -> list[Tensor]:
    """Return the nats of the scored tokens of each window, f64; windows of similar length share a batch, padded at the
    end.

    Padding comes after every counted token, where a causal model cannot see it, but where rotations depend on the
    length it would change them: there a batch has windows of one length.
    """
    device, by_length = network.embedding.weight.device, network.config.rotates_by_length
    found: dict[int, Tensor] = {}
    order = sorted(range(len(windows)), key=lambda i: (len(windows[i].tokens), i))
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and len(windows[order[end]].tokens) * (end + 1 - begin) <= batch_tokens:
            if by_length and len(windows[order[end]].tokens) != len(windows[order[begin]].tokens):
                break
            end += 1
        chosen = [windows[i] for i in order[begin:end]]
        longest = max(len(window.tokens) for window in chosen)
        batch = padded([window.tokens for window in chosen])
        counted = torch.zeros(len(chosen), longest - 1, dtype=torch.bool)
        for place, window in enumerate(chosen):
            counted[place, window.score_from - 1 : len(window.tokens) - 1] = True
        batch, counted, visible = batch.to(device), counted.to(device), None
        if network.config.attention == "prefix":
            # It sees all tokens that are not scored.
            visible = prefix_mask(torch.tensor([window.score_from for window in chosen], device=device), longest - 1)
        # Most of a benchmark's tokens are context: the head runs only where a token counts.
        logits = network.logits(network.hidden(batch[:, :-1], visible_B1TT=visible)[counted])
        nats = F.cross_entropy(logits, batch[:, 1:][counted], reduction="none").double().cpu()
        sizes = [len(window.tokens) - window.score_from for window in chosen]
        found.update(zip(order[begin:end], nats.split(sizes), strict=True))
        begin = end
    return [found[i] for i in range(len(windows))]


@dataclass(frozen=True)
class Frame:
    """The special ids around a text that a BERT reads, and its mask."""

    cls: int
    sep: int
    mask: int

    def around(self, tokens: Sequence[int]) -> list[int]:
        """Return the ids of a single text with its special tokens."""
        return [self.cls, *tokens, self.sep]


FRAME_TOKENS = 2
"""Number of special tokens around a single text."""


@torch.inference_mode()
def hidden_nats(
    network: BERT, frame: Frame, text: Sequence[int], places: Sequence[int], batch_tokens: int = 8192
) -> list[float]:
    """Return -ln p of the token at each of `places` in `text`, masked alone, given all others.

    Raises ValueError for a text that does not fit into the model's context with its frame.
    """
    if len(text) + FRAME_TOKENS > network.config.context:
        raise ValueError(
            f"{len(text)} tokens and {FRAME_TOKENS} special ones do not fit into a context of {network.config.context}"
        )
    device = network.embedding.weight.device
    row_T = torch.tensor(frame.around(text), device=device)
    found: list[float] = []
    rows = max(1, batch_tokens // len(row_T))
    for some_B in (torch.tensor(places, dtype=torch.long, device=device) + 1).split(rows):
        inputs_BT = row_T.repeat(len(some_B), 1)
        inputs_BT[torch.arange(len(some_B), device=device), some_B] = frame.mask
        everywhere_BT = torch.ones_like(inputs_BT, dtype=torch.bool)
        hidden_BTD = network.hidden(inputs_BT, torch.zeros_like(inputs_BT), everywhere_BT)
        logits_BV = network.masked_logits(hidden_BTD, some_B[:, None])[:, 0]
        found += F.cross_entropy(logits_BV, row_T[some_B], reduction="none").double().tolist()
    return found


def pseudo_log_probabilities(
    network: BERT, frame: Frame, context: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[float]:
    """Return the sum of ln p of each continuation's tokens, masked in turn, given the context and the others.

    No continuation may be empty. Raises ValueError where one and the context do not fit into the model's context.
    """
    begin = len(context)
    return [
        -sum(hidden_nats(network, frame, (*context, *one), range(begin, begin + len(one)))) for one in continuations
    ]


@dataclass(frozen=True)
class MaskedRowSums:
    """A BERT's scores of each row of a batch."""

    nats_BM: Tensor
    """f64: -ln p of each masked token; 0 where there is none."""
    right_BM: Tensor
    """bool: the masked token is the network's likeliest."""
    next_right_B: Tensor
    """bool: the network predicts correctly whether the second text follows; False without a second."""


@torch.inference_mode()
def masked_row_sums(network: BERT, batch: MaskedBatch) -> MaskedRowSums:
    """Score masked tokens and next-sentence predictions of each row; the result is on the CPU."""
    batch = move_batch(batch, network.embedding.weight.device)
    hidden_BTD = network.hidden(batch.inputs_BT, batch.token_types_BT, batch.is_token_BT)
    logits_BMV = network.masked_logits(hidden_BTD, batch.positions_BM)
    nats_N = F.cross_entropy(
        logits_BMV.flatten(0, 1), batch.targets_BM.flatten(), ignore_index=NO_LOSS, reduction="none"
    )
    return MaskedRowSums(
        nats_N.double().view_as(batch.targets_BM).cpu(),
        (logits_BMV.argmax(-1) == batch.targets_BM).cpu(),
        (network.next_logits(hidden_BTD).argmax(-1) == batch.is_next_B).cpu(),
    )


@torch.inference_mode()
def target_nats(network: T5, batch: SpanBatch) -> Tensor:
    """Return -ln p of every target given those before it, f64[B, U] on the CPU; 0 where there is none."""
    batch = move_batch(batch, network.embedding.weight.device)
    encoded_BTD = network.encode(batch.inputs_BT, batch.is_token_BT)
    hidden_BUD = network.decode(batch.decoder_inputs_BU, encoded_BTD, batch.is_token_BT)
    counted_BU = batch.targets_BU != NO_LOSS
    nats_BU = torch.zeros_like(batch.targets_BU, dtype=torch.float64)
    # The head is most of a small network's arithmetic, so it runs only where a target counts.
    logits_NV = network.logits(hidden_BUD[counted_BU])
    nats_BU[counted_BU] = F.cross_entropy(logits_NV, batch.targets_BU[counted_BU], reduction="none").double()
    return nats_BU.cpu()


@torch.inference_mode()
def answers_log_probabilities(
    network: T5, inputs: Sequence[int], start: int, opening: Sequence[int], answers: Sequence[Sequence[int]]
) -> list[tuple[float, bool]]:
    """Return for each answer the sum of ln p of its tokens, and whether greedy decoding would write exactly it.

    The encoder reads `inputs` once. The decoder begins with `start` and `opening` (a sentinel, or empty), which are not
    scored. Only `opening` may be empty.
    """
    device = network.embedding.weight.device
    inputs_1T = torch.tensor([list(inputs)], device=device)
    encoded_1TD = network.encode(inputs_1T, torch.ones_like(inputs_1T, dtype=torch.bool))
    longest = max(map(len, answers))
    given = len(opening)
    decoder_BU = torch.full((len(answers), given + longest), start)
    targets_BA = torch.full((len(answers), longest), NO_LOSS)
    for row, answer in enumerate(answers):
        written = torch.tensor([start, *opening, *answer[:-1]])
        decoder_BU[row, : len(written)] = written
        targets_BA[row, : len(answer)] = torch.tensor(list(answer))
    decoder_BU, targets_BA = decoder_BU.to(device), targets_BA.to(device)
    encoded_BTD = encoded_1TD.expand(len(answers), -1, -1)
    everywhere_BT = torch.ones(len(answers), len(inputs), dtype=torch.bool, device=device)
    hidden_BAD = network.decode(decoder_BU, encoded_BTD, everywhere_BT)[:, given:]
    logits_BAV = network.logits(hidden_BAD)
    nats_N = F.cross_entropy(logits_BAV.flatten(0, 1), targets_BA.flatten(), ignore_index=NO_LOSS, reduction="none")
    nats_BA = nats_N.double().view_as(targets_BA)
    spelled_B = ((logits_BAV.argmax(-1) == targets_BA) | (targets_BA == NO_LOSS)).all(-1)
    return list(zip((-nats_BA.sum(-1)).tolist(), spelled_B.tolist(), strict=True))
