"""The block that all networks are built from: attention and MLP on a residual stream, with an option for each choice.

Shapes: B rows, T tokens, S tokens of an encoder, D width, H heads, E head size, F hidden size of the MLP, K keys.

Where a token stands: rotary angles, and T5's ranges of distances.

Shapes: B rows, T tokens, H heads, E head size, Q queries, K keys.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config.network import Activation, BlockConfig, is_gated
from model.nn.activation_stats import ScoreRange, activation_range


@dataclass
class KeyValueCache:
    """Keys and values of the tokens seen so far, one BHTE pair a block, so that generation reads each token once."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    memory: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Those of an encoder's tokens, BHSE, which stay as they are while a decoder writes."""

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.keys[0].shape[2] if self.keys else 0

    def extend(self, layer: int, key_BHTE: Tensor, value_BHTE: Tensor) -> tuple[Tensor, Tensor]:
        """Append one block's new keys and values; returns all of that block's."""
        if layer == len(self.keys):
            self.keys.append(key_BHTE)
            self.values.append(value_BHTE)
        else:
            self.keys[layer] = torch.cat((self.keys[layer], key_BHTE), dim=2)
            self.values[layer] = torch.cat((self.values[layer], value_BHTE), dim=2)
        return self.keys[layer], self.values[layer]

    def copy(self) -> "KeyValueCache":
        """The same tokens seen, to go on from in another way; tensors are shared, for none is ever written into."""
        return KeyValueCache([*self.keys], [*self.values], [*self.memory])


@dataclass(frozen=True)
class AttentionContext:
    """What tokens see of each other, the same in all blocks."""

    mask: Tensor | None = None
    """bool, True where a query sees a key, or f32 that is added to the scores; broadcast to [B, H, T, K]."""
    causal: bool = False
    """Without a mask: whether a token sees only itself and what stands before it."""
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosines and sines f32[T, E / 2] that queries and keys are turned by."""


def make_norm(shape: BlockConfig) -> nn.Module:
    """A norm of the residual stream."""
    if shape.norm == "none":
        return nn.Identity()
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(shape.width, shape.norm_eps)
    return nn.LayerNorm(shape.width, shape.norm_eps, bias=shape.biases)


class Block(nn.Module):
    """Attention, attention to an encoder where there is one, and MLP, each a branch of the residual stream."""

    def __init__(self, shape: BlockConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.shape = shape
        inner = shape.heads * shape.head_size
        self.attention_norm = make_norm(shape) if shape.input_norm else nn.Identity()
        self.attention_in = nn.Linear(shape.width, 3 * inner, bias=shape.biases)
        self.attention_out = nn.Linear(inner, shape.width, bias=shape.biases)
        if shape.qk_norm:
            self.query_norm = nn.RMSNorm(shape.head_size, shape.norm_eps)
            self.key_norm = nn.RMSNorm(shape.head_size, shape.norm_eps)
        if shape.cross_attention:
            self.cross_attention_norm = make_norm(shape)
            self.cross_attention_query = nn.Linear(shape.width, inner, bias=shape.biases)
            self.cross_attention_memory = nn.Linear(shape.width, 2 * inner, bias=shape.biases)
            self.cross_attention_out = nn.Linear(inner, shape.width, bias=shape.biases)
        self.mlp_norm = make_norm(shape)
        hidden = 2 * shape.hidden if is_gated(shape.activation) else shape.hidden
        self.mlp_in = nn.Linear(shape.width, hidden, bias=shape.biases)
        self.mlp_out = nn.Linear(shape.hidden, shape.width, bias=shape.biases)
        self.score_range = ScoreRange()

    def forward(
        self,
        x_BTD: Tensor,
        context: AttentionContext,
        cache: KeyValueCache | None = None,
        encoded_BSD: Tensor | None = None,
        encoded_mask: Tensor | None = None,
        *,
        measured: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The residual stream behind the block; `encoded_mask` says which tokens of the encoder are seen.

        Where `measured` also the extremes f32[2] of the scores of attention, and of attention to the encoder where
        there is one. Given back and not kept aside: a block may be computed twice, or as a graph of pure functions.
        """
        scores: list[Tensor] | None = [] if measured else None
        x_BTD = self._stream(x_BTD, context, cache, encoded_BSD, encoded_mask, scores)
        return x_BTD, tuple(scores or ())

    def _stream(
        self,
        x_BTD: Tensor,
        context: AttentionContext,
        cache: KeyValueCache | None,
        encoded_BSD: Tensor | None,
        encoded_mask: Tensor | None,
        scores: list[Tensor] | None,
    ) -> Tensor:
        if self.shape.parallel_residual:
            attended_BTD = self._dropped(self._attention(self.attention_norm(x_BTD), context, cache, scores))
            return x_BTD + attended_BTD + self._dropped(self._mlp(self.mlp_norm(x_BTD)))
        if self.shape.post_norm:
            x_BTD = self.attention_norm(x_BTD + self._dropped(self._attention(x_BTD, context, cache, scores)))
        else:
            x_BTD = x_BTD + self._dropped(self._attention(self.attention_norm(x_BTD), context, cache, scores))
        if self.shape.cross_attention:
            assert encoded_BSD is not None, "a block with cross attention needs what it attends to"
            assert not self.shape.post_norm, "no network here has cross attention and post-norm"
            normed_BTD = self.cross_attention_norm(x_BTD)
            branch_BTD = self._cross_attention(normed_BTD, encoded_BSD, encoded_mask, cache, scores)
            x_BTD = x_BTD + self._dropped(branch_BTD)
        if self.shape.post_norm:
            return self.mlp_norm(x_BTD + self._dropped(self._mlp(x_BTD)))
        return x_BTD + self._dropped(self._mlp(self.mlp_norm(x_BTD)))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.shape.dropout, self.training) if self.shape.dropout else x

    def _heads(self, x_BTI: Tensor) -> Tensor:
        batch, length, _ = x_BTI.shape
        return x_BTI.view(batch, length, self.shape.heads, self.shape.head_size).transpose(1, 2)

    def _attention(
        self, x_BTD: Tensor, context: AttentionContext, cache: KeyValueCache | None, scores: list[Tensor] | None
    ) -> Tensor:
        inner = self.shape.heads * self.shape.head_size
        query, key, value = (self._heads(part) for part in self.attention_in(x_BTD).split(inner, dim=2))
        if self.shape.qk_norm:
            query, key = self.query_norm(query.float()), self.key_norm(key.float())
        if context.rotary is not None:
            query, key = apply_rotary(query, *context.rotary), apply_rotary(key, *context.rotary)
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        causal = context.causal and context.mask is None
        return self.attention_out(self._mixed(query, key, value, context.mask, scores, causal=causal))

    def _cross_attention(
        self,
        x_BTD: Tensor,
        encoded_BSD: Tensor,
        encoded_mask: Tensor | None,
        cache: KeyValueCache | None,
        scores: list[Tensor] | None,
    ) -> Tensor:
        query = self._heads(self.cross_attention_query(x_BTD))
        if cache is not None and self.layer < len(cache.memory):
            key, value = cache.memory[self.layer]
        else:
            key, value = (self._heads(part) for part in self.cross_attention_memory(encoded_BSD).chunk(2, dim=2))
            if cache is not None:
                cache.memory.append((key, value))
        return self.cross_attention_out(self._mixed(query, key, value, encoded_mask, scores, causal=False))

    def _mixed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scores: list[Tensor] | None,
        *,
        causal: bool,
    ) -> Tensor:
        dropout = self.shape.dropout if self.training else 0.0
        mixed_BHTE = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=self.shape.score_scale
        )
        if scores is not None:
            scores.append(self.score_range(query, key, mask, causal=causal, scale=self.shape.score_scale))
        return mixed_BHTE.transpose(1, 2).flatten(2)

    def _mlp(self, x_BTD: Tensor) -> Tensor:
        hidden_BTF = self.mlp_in(x_BTD)
        activation = self.shape.activation
        if not is_gated(activation):
            return self.mlp_out(apply_activation(hidden_BTF, activation))
        gate_BTF, value_BTF = hidden_BTF.chunk(2, dim=-1)
        return self.mlp_out(apply_activation(gate_BTF, activation) * value_BTF)


def run_blocks(blocks: Iterable[nn.Module], x_BTD: Tensor, *seen: Any, ranges: list[Tensor] | None) -> Tensor:
    """The residual stream behind some blocks, which are all given what is `seen`.

    `ranges` collects the extremes of each block's scores and of the stream behind it, in the order of `block_names`.
    """
    for block in blocks:
        x_BTD, scores = block(x_BTD, *seen, measured=ranges is not None)
        if ranges is not None:
            ranges += [*scores, activation_range(x_BTD)]
    return x_BTD


def block_names(layers: range, stack: str = "", *, cross_attention: bool = False) -> list[str]:
    """What the thermometers of these blocks of a stack read, in order."""
    read = [" attention logits", *([" cross attention logits"] if cross_attention else []), ""]
    return [f"{stack}block {layer}{part}" for layer in layers for part in read]


def apply_activation(x: Tensor, activation: Activation) -> Tensor:
    """The non-linearity alone, without a gate's product."""
    if activation == "relu":
        return F.relu(x)
    if activation == "swiglu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation.endswith("tanh") else "none")


DISTANCE_BUCKETS, FARTHEST_DISTANCE = 32, 128
"""T5's: so many numbers a head, of which the last holds for all distances from 128 tokens on."""


def rotary_table(length: int, turned: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation of each position, f32[length, turned / 2] each (Su et al. 2021), for `turned`
    values of a head; pairs turn slower and slower, the slowest nearly once in 2 pi `base` tokens."""
    frequency = base ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return angle.cos().float(), angle.sin().float()


def apply_rotary(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Turn the pairs (first half, second half) of each head by the angle of their position.

    Where the tables are for fewer values than a head has, the others stay as they are.
    """
    turned = 2 * cos_TE.shape[-1]
    if turned < x_BHTE.shape[-1]:
        return torch.cat((apply_rotary(x_BHTE[..., :turned], cos_TE, sin_TE), x_BHTE[..., turned:]), dim=-1)
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
