"""Activation ranges: the smallest and the largest value of each segment of a network, which show divergence early.

They stay on the device until the end of a step, copy nothing, and are no part of the autograd graph. A range is f32[2]:
the smallest value negated, and the largest, so that ranges of micro-batches, pipeline stages and ranks are merged by
one maximum.

Shapes: B rows, H heads, E head size, Q queries, S sampled queries, K keys, P segments.
"""

import torch
from torch import Tensor, nn

SAMPLED_QUERIES = 4
"""Queries of each row and head whose scores are read. All of them would repeat attention's first product and need the
memory of all scores."""


def activation_range(x: Tensor) -> Tensor:
    """Return the range of a tensor in one pass, f32[2]: negated smallest value and largest value; NaN if any value
    is."""
    low, high = torch.aminmax(x.detach())
    return torch.stack((-low, high)).float()


class ScoreRange(nn.Module):
    """Measures attention scores, which grow without bound before a network diverges (Dehghani et al. 2023, section
    2.2).

    Fused attention never holds them in memory. A module without weights, so that profiles show its cost.
    """

    def forward(
        self, query_BHQE: Tensor, key_BHKE: Tensor, mask: Tensor | None, *, causal: bool, scale: float | None
    ) -> Tensor:
        """Return the range f32[2] of the scores of a few queries, including the last, for the keys that they see.

        `mask`, `causal` and `scale` are those of `scaled_dot_product_attention`; a float mask is added to the scores.
        """
        queries = sampled_queries(query_BHQE.shape[2])
        # Scale before the product, so that no score overflows.
        scaled_BHSE = query_BHQE.detach()[:, :, queries] * (query_BHQE.shape[3] ** -0.5 if scale is None else scale)
        scores_BHSK = _scores(scaled_BHSE, key_BHKE.detach())
        if mask is None and not causal:
            return activation_range(scores_BHSK)
        if mask is None:
            position = torch.arange(key_BHKE.shape[2], device=key_BHKE.device)
            hidden = position > position[queries, None]
        else:
            added = mask.detach()[:, :, queries if mask.shape[2] > 1 else slice(None)]
            hidden = ~added if added.dtype == torch.bool else added == -torch.inf
            scores_BHSK = scores_BHSK if added.dtype == torch.bool else scores_BHSK + added
        low = scores_BHSK.masked_fill(hidden, torch.inf).amin()
        high = scores_BHSK.masked_fill(hidden, -torch.inf).amax()
        return torch.stack((-low, high)).float()


def _scores(query_BHSE: Tensor, key_BHKE: Tensor) -> Tensor:
    """Return the products of queries and keys, BHSK; groups of queries may share a head of keys."""
    heads, kv_heads = query_BHSE.shape[1], key_BHKE.shape[1]
    if heads != kv_heads:
        grouped = query_BHSE.unflatten(1, (kv_heads, heads // kv_heads)).flatten(2, 3)
        return _scores(grouped, key_BHKE).unflatten(2, (heads // kv_heads, -1)).flatten(1, 2)
    if key_BHKE.is_contiguous():
        return query_BHSE @ key_BHKE.transpose(2, 3)
    # A product for each head would copy keys whose heads are interleaved, which takes two to three times as long as
    # one product for all heads, where a query has zeros for the other heads.
    batch, heads, queries, _ = query_BHSE.shape
    block_diagonal = torch.diag_embed(query_BHSE.permute(0, 2, 3, 1), dim1=1, dim2=3).reshape(
        batch, heads * queries, -1
    )
    scores = block_diagonal @ key_BHKE.transpose(1, 2).flatten(2).transpose(1, 2)
    return scores.unflatten(1, (heads, queries))


def sampled_queries(queries: int) -> slice:
    """Return the positions of the sampled queries: SAMPLED_QUERIES or all, evenly spaced, up to the last one."""
    step = max(1, queries // SAMPLED_QUERIES)
    return slice(max(0, queries - 1 - step * (SAMPLED_QUERIES - 1)), None, step)


def empty_range(like: Tensor) -> Tensor:
    """Return the range of no values, f32[2] on the device of a tensor; merged with any other it gives the other."""
    return like.new_full((2,), -torch.inf, dtype=torch.float32)


def split_ranges(range_P2: Tensor) -> tuple[list[float], list[float]]:
    """Return the smallest and the largest value of each segment."""
    return (-range_P2[:, 0]).tolist(), range_P2[:, 1].tolist()


def nan_to_infinity(range_P2: Tensor) -> Tensor:
    """Replace NaN by infinity: a maximum over processes treats NaN differently in different orders."""
    return range_P2.masked_fill(range_P2.isnan(), torch.inf)
