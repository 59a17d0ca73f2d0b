"""Dropout whose masks do not depend on how a network is divided among ranks.

PyTorch draws masks from the generator of a process, one after another, so that ranks with other parts of a network
would draw other masks than one process. Where ranks divide weights, and with portable numerics, whether a value is kept
is a function of seed, step, row of the batch, place in the network, head, and position. The numbers are SplitMix64's
(Steele et al. 2014, https://doi.org/10.1145/2660193.2660195), each of which may seed another stream. They are computed
by integer operations on tensors: alike on all devices, and part of compiled graphs.

Shapes: B rows, H heads, T queries, K keys, E head size.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from model.nn.vocab_layers import VocabularyNetwork

GAMMA, FACTOR_1, FACTOR_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""SplitMix64's constants, as signed numbers."""

DRAWS = 1 << 16
"""Equally likely numbers, of which dropout compares one for each value: a number of 64 bits is four."""

EMBEDDING, DECODER_EMBEDDING, ENCODER_END, DECODER_END = -1, -2, -3, -4
"""Places outside of blocks, whose numbers are not negative."""


def drop_by_row(network: VocabularyNetwork, first_row: int, rows: int, device: torch.device) -> None:
    """Let a network drop values of the rows from `first_row` of the batch on by their streams, in the step whose seed
    PyTorch's generator got."""
    if network.config.dropout:
        seed, numbers = torch.initial_seed(), torch.arange(first_row, first_row + rows, device=device)
        network.streams_B = inner_streams(torch.full((), seed, device=device), numbers)


def inner_streams(streams: Tensor, numbers: Tensor | int) -> Tensor:
    """Return the streams with these numbers within each stream, i64[...], which are the stream's outputs."""
    # The compiler multiplies numbers that it knows without wrapping around: streams are added first.
    z = (streams + numbers) * GAMMA
    z = (z ^ _shifted(z, 30)) * FACTOR_1
    z = (z ^ _shifted(z, 27)) * FACTOR_2
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shift to the right as unsigned numbers."""
    return (z >> bits) & ((1 << 64 - bits) - 1)


def dropout(x: Tensor, p: float, training: bool, streams: Tensor | None, place: Tensor | int) -> Tensor:
    """Drop values of f32[B, ...] in training by the streams of the rows, and as PyTorch does without them."""
    if not (training and p):
        return x
    return F.dropout(x, p) if streams is None else _dropped(x, p, inner_streams(streams, place))


def dropped_attention(
    query_BHTE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    mask: Tensor | None,
    p: float,
    streams_BH: Tensor,
    *,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Return what `scaled_dot_product_attention` does with dropout of the weights, all of which are in memory; keys and
    values may have fewer heads."""
    scale = 1 / math.sqrt(query_BHTE.shape[3]) if scale is None else scale
    groups = query_BHTE.shape[1] // key_BHKE.shape[1]
    if groups > 1:
        key_BHKE, value_BHKE = (x.repeat_interleave(groups, 1) for x in (key_BHKE, value_BHKE))
    scores_BHTK = (query_BHTE * scale).matmul(key_BHKE.mT).float()
    if causal:
        mask = torch.ones(scores_BHTK.shape[2:], dtype=torch.bool, device=scores_BHTK.device).tril()
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        scores_BHTK = scores_BHTK.masked_fill(~mask, -torch.inf) if is_bool else scores_BHTK + mask
    return _dropped(scores_BHTK.softmax(-1), p, streams_BH).to(value_BHKE.dtype).matmul(value_BHKE)


def _dropped(x: Tensor, p: float, streams: Tensor) -> Tensor:
    """Drop values of f32[*streams, ...] by the outputs of their stream, in order, and scale the others up."""
    count = x[(0,) * streams.dim()].numel()
    numbers = inner_streams(streams[..., None], torch.arange(-(-count // 4), device=x.device))
    quarters = torch.stack([(numbers >> bits).to(torch.int16) for bits in (0, 16, 32, 48)], -1).flatten(-2)
    # A share next to 1 would need a limit that 16 bits cannot hold.
    kept = quarters[..., :count] >= min(round(p * DRAWS), DRAWS - 1) - DRAWS // 2
    return torch.where(kept.reshape(x.shape), x * (1 / (1 - p)), 0.0)
