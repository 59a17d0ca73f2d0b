"""Where a token stands: rotary angles, and T5's ranges of distances.

Shapes: B rows, T tokens, H heads, E head size, Q queries, K keys.
"""

import math

import torch
from torch import Tensor, nn

DISTANCE_BUCKETS, FARTHEST_DISTANCE = 32, 128
"""T5's: so many numbers a head, of which the last holds for all distances from 128 tokens on."""


def rotary_table(length: int, turned: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation of each position, f32[length, turned / 2] each (Su et al. 2021), for `turned`
    values of a head; pairs turn slower and slower, the slowest nearly once in 2 pi `base` tokens."""
    frequency = base ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return angle.cos().float(), angle.sin().float()


def rotate(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Turn the pairs (first half, second half) of each head by the angle of their position.

    Where the tables are for fewer values than a head has, the others stay as they are.
    """
    turned = 2 * cos_TE.shape[-1]
    if turned < x_BHTE.shape[-1]:
        return torch.cat((rotate(x_BHTE[..., :turned], cos_TE, sin_TE), x_BHTE[..., turned:]), dim=-1)
    first, second = x_BHTE.chunk(2, dim=-1)
    return torch.cat((first * cos_TE - second * sin_TE, second * cos_TE + first * sin_TE), dim=-1)


def distance_bucket(distance: Tensor, *, both_ways: bool) -> Tensor:
    """The bucket of each distance (place of the key minus place of the query), i64 (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each, the others ranges that grow as logarithms do. Where a query sees only
    what stands before it, keys behind it share the bucket of distance 0; where it sees `both_ways`, one half of all
    buckets is for keys behind it.
    """
    buckets = DISTANCE_BUCKETS // 2 if both_ways else DISTANCE_BUCKETS
    behind = (distance > 0).long() * buckets if both_ways else torch.zeros_like(distance)
    far = distance.abs() if both_ways else (-distance).clamp(min=0)
    exact = buckets // 2
    # In float32 as T5's own program: its ranges begin where it rounds.
    grown = torch.log(far.clamp(min=1).float() / exact) / math.log(FARTHEST_DISTANCE / exact) * (buckets - exact)
    return behind + torch.where(far < exact, far, (exact + grown.long()).clamp(max=buckets - 1))


def distance_bias(table: nn.Embedding, queries: range, keys: int, *, both_ways: bool) -> Tensor:
    """What the distance adds to the scores, f32[1, H, Q, K], for queries at the places `queries` and keys from 0 on."""
    device = table.weight.device
    query = torch.arange(queries.start, queries.stop, device=device)
    distance = torch.arange(keys, device=device) - query[:, None]
    return table(distance_bucket(distance, both_ways=both_ways)).permute(2, 0, 1)[None]
