"""The objectives of GPT: the cross entropy of each next token, in a whole row or after a prefix.

Shapes: B rows, L tokens a row, T = L - 1 predictions a row, N = B T, D width, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from model.data.dataset import Rows, SequenceReader, text_lengths
from model.data.loader import CausalBatch, CausalLoader, Loader, PrefixBatch, PrefixLoader
from model.data.row_format import NO_LOSS
from model.nn.gpt import GPT, document_numbers, prefix_mask, same_document_mask
from model.objectives.base import Objective, Sums
from model.objectives.cross_entropy import row_sums


class CausalObjective(Objective):
    """Each next token that is not padding and not before the row's `loss_start`."""

    terms: tuple[str, ...] = ("next token",)

    def __init__(self, pad: int, eos: int | None) -> None:
        self._pad, self._eos = pad, eos

    def loader(self, data: SequenceReader) -> Loader:
        return CausalLoader(data)

    def tokens_per_row(self, row_length: int) -> int:
        """Return the inputs of a row: its last token is only a target."""
        return row_length - 1

    def text_tokens(self, data: SequenceReader, rows: Rows) -> int:
        """Return the tokens that follow another one of their row."""
        return int((text_lengths(rows.tokens_BL, self._pad) - 1).clip(min=0).sum())

    def counts(self, batch: CausalBatch) -> tuple[int, ...]:
        return (int((self._targets(batch) != NO_LOSS).sum()),)

    def sums(self, network: GPT, batch: CausalBatch) -> Sums:
        inputs_BT, targets_BT = batch.tokens_BL[:, :-1], self._targets(batch)
        nats, ranges = next_token_nats(network, inputs_BT, targets_BT, self._eos, _prefix(batch))
        return Sums((nats,), (), ranges)

    def inputs(self, network: GPT, batch: CausalBatch) -> dict[str, Any]:
        tokens_BT = batch.tokens_BL[:, :-1]
        return {"tokens_BT": tokens_BT, "visible_B1TT": _visible(network, tokens_BT, self._eos, _prefix(batch))}

    def sums_from_hidden(self, network: GPT, hidden: Tensor, ranges: list[Tensor], batch: CausalBatch) -> Sums:
        """Compute the sums from the stream f32[B, T, D]."""
        return row_sums(network, hidden, ranges, self._targets(batch))

    def without_loss(self, batch: CausalBatch) -> CausalBatch:
        """Return the same rows, whose loss begins after their end."""
        return replace(batch, loss_start_B=torch.full_like(batch.loss_start_B, batch.tokens_BL.shape[1]))

    def _targets(self, batch: CausalBatch) -> Tensor:
        return loss_targets(batch.tokens_BL, batch.loss_start_B, self._pad)


class PrefixObjective(CausalObjective):
    """Each next token after a bidirectional prefix of random length (Liu et al. 2018; Raffel et al. 2020, section
    3.2.1)."""

    def __init__(self, pad: int, eos: int | None, seed: int) -> None:
        super().__init__(pad, eos)
        self._seed = seed

    def loader(self, data: SequenceReader) -> PrefixLoader:
        return PrefixLoader(data, self._seed, self._pad)


def loss_targets(tokens_BL: Tensor, loss_start_B: Tensor, pad: int) -> Tensor:
    """Return the token after each position, i64[B, T]; NO_LOSS where it is padding or before `loss_start`."""
    targets = tokens_BL[:, 1:]
    position = torch.arange(1, tokens_BL.shape[1], device=tokens_BL.device)
    return targets.masked_fill((targets == pad) | (position < loss_start_B[:, None]), NO_LOSS)


def next_token_nats(
    network: GPT, inputs_BT: Tensor, targets_BT: Tensor, eos: int | None = None, prefix_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sum of -ln p over the targets (f32[], differentiable), and the activation ranges f32[P, 2].

    A z-loss and the balance of experts are in the gradient of that sum and not in its value, so that losses of runs
    with and without compare. `eos` closes documents; it matters only where the network attends within them. `prefix_B`
    is the length of the prefix of each row. The ranges are in the order of `activation_range_names`.
    """
    ranges: list[Tensor] = []
    balances: list[Tensor] | None = [] if network.config.experts is not None and torch.is_grad_enabled() else None
    visible_B1TT = _visible(network, inputs_BT, eos, prefix_B)
    hidden_BTD = network.hidden(inputs_BT, ranges=ranges, visible_B1TT=visible_B1TT, balances=balances)
    sums = row_sums(network, hidden_BTD, ranges, targets_BT)
    return with_balance(sums.nats[0], network, balances, targets_BT), sums.activation_ranges


def with_balance(nats: Tensor, network: GPT, balances: list[Tensor] | None, targets_BT: Tensor) -> Tensor:
    """Return the nats, f32[], with the gradient of the blocks' `balances` added, none where they were not asked for."""
    if not balances:
        return nats
    # Nats are a sum over predictions, of which the loss is the mean; a balance is a mean already.
    uneven = network.config.balance * (targets_BT != NO_LOSS).sum() * torch.stack(balances).sum()
    return nats + (uneven - uneven.detach())


def _prefix(batch: CausalBatch) -> Tensor | None:
    return batch.prefix_B if isinstance(batch, PrefixBatch) else None


def _visible(network: GPT, inputs_BT: Tensor, eos: int | None, prefix_B: Tensor | None) -> Tensor | None:
    assert (network.config.attention == "prefix") == (prefix_B is not None), "prefixes are for prefix language models"
    visible = None if prefix_B is None else prefix_mask(prefix_B, inputs_BT.shape[1])
    if not network.config.attend_within_documents:
        return visible
    assert eos is not None, "documents are separated by their end-of-text token"
    within = same_document_mask(document_numbers(inputs_BT, eos))
    return within.tril() if visible is None else visible & within
