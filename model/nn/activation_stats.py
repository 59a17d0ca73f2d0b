"""What thermometers read of a network while it computes: the smallest and the largest value of each segment.

Readings never leave the device before the end of a step, take no copy of what they read, and are no part of the graph
that gradients flow through.

Shapes: B rows, H heads, E head size, Q queries, S sampled queries, K keys, P thermometers.
"""

import torch
from torch import Tensor, nn

SAMPLED_QUERIES = 4
"""Of each row and head. All of them would cost attention's first product once more, and the memory of all scores."""


def activation_range(x: Tensor) -> Tensor:
    """Smallest value with its sign changed, and largest value, f32[2], in one pass; NaN where any value is NaN.

    With its sign changed, what is smallest of several tensors is found by the same maximum as what is largest: over
    micro-batches, stages of a pipeline, and ranks.
    """
    low, high = torch.aminmax(x.detach())
    return torch.stack((-low, high)).float()


class ScoreRange(nn.Module):
    """Reads the scores of attention, which grow without bound before a network diverges (Dehghani et al. 2023, section
    2.2) and are never all in memory.

    A module without weights, so that a profile shows what it costs.
    """

    def forward(
        self, query_BHQE: Tensor, key_BHKE: Tensor, mask: Tensor | None, *, causal: bool, scale: float | None
    ) -> Tensor:
        """Extremes f32[2] of what a few queries, the last one among them, give the keys that they see.

        `mask`, `causal` and `scale` mean what they mean to `scaled_dot_product_attention`; scores are read with what
        the mask adds to them.
        """
        queries = sampled_queries(query_BHQE.shape[2])
        # In this order there is no score that overflows before it is scaled.
        scaled_BHSE = query_BHQE.detach()[:, :, queries] * (query_BHQE.shape[3] ** -0.5 if scale is None else scale)
        scores_BHSK = _scores(scaled_BHSE, key_BHKE.detach())
        if mask is None and not causal:
            return activation_range(scores_BHSK)
        if mask is None:
            place = torch.arange(key_BHKE.shape[2], device=key_BHKE.device)
            hidden = place > place[queries, None]
        else:
            added = mask.detach()[:, :, queries if mask.shape[2] > 1 else slice(None)]
            hidden = ~added if added.dtype == torch.bool else added == -torch.inf
            scores_BHSK = scores_BHSK if added.dtype == torch.bool else scores_BHSK + added
        low = scores_BHSK.masked_fill(hidden, torch.inf).amin()
        high = scores_BHSK.masked_fill(hidden, -torch.inf).amax()
        return torch.stack((-low, high)).float()


def _scores(query_BHSE: Tensor, key_BHKE: Tensor) -> Tensor:
    """The products of queries and keys, BHSK."""
    if key_BHKE.is_contiguous():
        return query_BHSE @ key_BHKE.transpose(2, 3)
    # A product by heads copies keys whose heads lie side by side, which takes two to three times as long as this: one
    # product for all heads, where a query has zeros for the keys of other heads.
    batch, heads, queries, _ = query_BHSE.shape
    apart = torch.diag_embed(query_BHSE.permute(0, 2, 3, 1), dim1=1, dim2=3).reshape(batch, heads * queries, -1)
    scores = apart @ key_BHKE.transpose(1, 2).flatten(2).transpose(1, 2)
    return scores.unflatten(1, (heads, queries))


def sampled_queries(queries: int) -> slice:
    """Places of the queries that are read: SAMPLED_QUERIES of them or all, evenly apart, up to the last one."""
    apart = max(1, queries // SAMPLED_QUERIES)
    return slice(max(0, queries - 1 - apart * (SAMPLED_QUERIES - 1)), None, apart)


def empty_range(like: Tensor) -> Tensor:
    """Extremes of no values, f32[2] on the device of a tensor: those of any values are larger."""
    return like.new_full((2,), -torch.inf, dtype=torch.float32)


def split_ranges(extremes_P2: Tensor) -> tuple[list[float], list[float]]:
    """Smallest and largest value of each thermometer, given their extremes."""
    return (-extremes_P2[:, 0]).tolist(), extremes_P2[:, 1].tolist()


def nan_to_infinity(extremes_P2: Tensor) -> Tensor:
    """Infinite where NaN: what a maximum over processes does with a NaN depends on the order of the processes."""
    return extremes_P2.masked_fill(extremes_P2.isnan(), torch.inf)
