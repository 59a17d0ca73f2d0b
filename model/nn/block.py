"""The block of all networks: attention and MLP on a residual stream, with an option for each choice.

Also T5's relative position buckets. Rotary positions are in `rotary.py`.

Shapes: B rows, T tokens, S encoder tokens, D width, H heads, E head size, I values of all heads, F hidden size of the
MLP, Q queries, K keys. Keys and values may have fewer heads than queries.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config.block import DISTANCE_BUCKETS, FARTHEST_DISTANCE, BlockConfig, is_gated
from model.nn.activation_stats import ScoreRange, activation_range
from model.nn.dropout import dropout, dropped_attention, inner_streams
from model.nn.experts import Experts, apply_activation
from model.nn.rotary import apply_rotary

ATTENTION, ATTENDED, MLP, CROSS_ATTENTION, CROSS_ATTENDED = range(5)
"""Places of dropout in a block."""


@dataclass
class KeyValueCache:
    """Keys and values of the tokens so far, BHTE for each block, so that generation computes each token once."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    memory: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Keys and values of the encoder's tokens, BHSE, computed once for all steps of a decoder."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.keys[0].shape[2] if self.keys else 0

    def extend(self, layer: int, key_BHTE: Tensor, value_BHTE: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values of one block, and return all of that block."""
        if layer == len(self.keys):
            self.keys.append(key_BHTE)
            self.values.append(value_BHTE)
        else:
            self.keys[layer] = torch.cat((self.keys[layer], key_BHTE), dim=2)
            self.values[layer] = torch.cat((self.values[layer], value_BHTE), dim=2)
        return self.keys[layer], self.values[layer]


class BatchCache(KeyValueCache):
    """Keys and values of texts of different lengths, in tensors [rows, heads, capacity, E] that are allocated once.

    Token t of a text has slot t of its row, so that slots are positions. The rows in use come first.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.rows = rows
        self.lengths: list[int] = []
        """Tokens in the cache of each row in use."""

    def add(self, filled: KeyValueCache, lengths: list[int]) -> None:
        """Append rows of the tokens in `filled`, of which row b has `lengths[b]` and then padding."""
        if not self.keys:
            # Zeros: the value of a slot that no token sees has weight 0, and 0 times the NaN of old memory is NaN.
            for into, of in ((self.keys, filled.keys), (self.values, filled.values)):
                into.extend(one.new_zeros(self.rows, one.shape[1], self.capacity, one.shape[3]) for one in of)
        first, last = len(self.lengths), len(self.lengths) + len(lengths)
        for into, of in ((self.keys, filled.keys), (self.values, filled.values)):
            for kept, fresh in zip(into, of, strict=True):
                kept[first:last, :, : fresh.shape[2]] = fresh
        self.lengths += lengths

    def remove(self, row: int) -> None:
        """Give up a row; the last one takes its place."""
        last = self.lengths.pop()
        if row < len(self.lengths):
            self.lengths[row] = last
            for kept in (*self.keys, *self.values):
                kept[row, :, :last] = kept[len(self.lengths), :, :last]

    def extend(self, layer: int, key_BHTE: Tensor, value_BHTE: Tensor) -> tuple[Tensor, Tensor]:
        """Write the key and value of the next token of each row, and return those up to the longest row's end."""
        used, end = len(self.lengths), max(self.lengths) + 1
        rows = torch.arange(used, device=key_BHTE.device)
        places = torch.tensor(self.lengths, device=key_BHTE.device)
        for kept, fresh in ((self.keys[layer], key_BHTE), (self.values[layer], value_BHTE)):
            kept[rows, :, places] = fresh[:, :, 0].to(kept.dtype)
        return self.keys[layer][:used, :, :end], self.values[layer][:used, :, :end]


@dataclass(frozen=True)
class AttentionContext:
    """Mask and positions that all blocks of a stack share."""

    mask: Tensor | None = None
    """bool, True where a query sees a key, or f32 that is added to the scores; broadcastable to [B, H, T, K]."""
    causal: bool = False
    """Without a mask: whether a token sees only itself and earlier tokens."""
    spread: Tensor | None = None
    """`mask`, f[1, H, T, T], for all rows, f[B, H, T, T], perhaps with padding hidden; for fused kernels
    (`SpreadMask`)."""
    window_mask: Tensor | None = None
    """The mask, as `mask`, of blocks with a window."""
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosines and sines f32[T, E / 2] of rotary positions."""
    streams_B: Tensor | None = None
    """Streams of the rows, i64[B], by which values are dropped; by default PyTorch's generator decides."""


class Block(nn.Module):
    """Attention, cross attention where there is an encoder, and MLP, each a branch of the residual stream."""

    def __init__(self, config: BlockConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.config = config
        # A tensor, since graphs are compiled for a number; none of the meta device.
        self.place = torch.tensor(2 * layer + config.cross_attention, device="cpu")
        self.first_head = 0  # Of those that this rank computes.
        qkv_biases = config.biases if config.qkv_biases is None else config.qkv_biases
        self.attention_norm = make_norm(config) if config.input_norm else nn.Identity()
        self.attention_query = nn.Linear(config.width, config.inner, bias=qkv_biases)
        self.attention_key = nn.Linear(config.width, config.kv_inner, bias=qkv_biases)
        self.attention_value = nn.Linear(config.width, config.kv_inner, bias=qkv_biases)
        self.attention_out = nn.Linear(config.inner, config.width, bias=config.biases)
        if config.qk_norm != "none":
            of_all = config.qk_norm == "all"
            self.query_norm = nn.RMSNorm(config.inner if of_all else config.head_size, config.norm_eps)
            self.key_norm = nn.RMSNorm(config.kv_inner if of_all else config.head_size, config.norm_eps)
        if config.cross_attention:
            self.cross_attention_norm = make_norm(config)
            self.cross_attention_query = nn.Linear(config.width, config.inner, bias=config.biases)
            self.cross_attention_key = nn.Linear(config.width, config.inner, bias=config.biases)
            self.cross_attention_value = nn.Linear(config.width, config.inner, bias=config.biases)
            self.cross_attention_out = nn.Linear(config.inner, config.width, bias=config.biases)
        self.mlp_norm = make_norm(config)
        if config.experts is not None:
            self.experts = Experts(config)
        else:
            if is_gated(config.activation):
                self.mlp_gate = nn.Linear(config.width, config.hidden, bias=config.biases)
            self.mlp_in = nn.Linear(config.width, config.hidden, bias=config.biases)
            self.mlp_out = nn.Linear(config.hidden, config.width, bias=config.biases)
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
        balanced: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the residual stream after the block, and ranges; `encoded_mask` says which encoder tokens are seen.

        The ranges f32[2], empty unless `measured`, are those of the scores of attention and of cross attention. With
        `balanced`, the balance f32[] of experts follows. They are returned, not stored, because a block may be
        recomputed or compiled as a pure function.
        """
        scores: list[Tensor] | None = [] if measured else None
        balance: list[Tensor] = []
        streams = None if context.streams_B is None else inner_streams(context.streams_B, self.place)

        def mlp(x_BTD: Tensor) -> Tensor:
            return self._mlp(x_BTD, balance)

        def attention(x_BTD: Tensor) -> Tensor:
            return self._attention(x_BTD, context, cache, scores, streams)

        if self.config.parallel_residual:
            attended_BTD = self._dropout(attention(self.attention_norm(x_BTD)), streams, ATTENDED)
            x_BTD = x_BTD + attended_BTD + self._dropout(mlp(self.mlp_norm(x_BTD)), streams, MLP)
        else:
            x_BTD = self._add_branch(x_BTD, self.attention_norm, attention, streams, ATTENDED)
            if self.config.cross_attention:
                assert encoded_BSD is not None, "a block with cross attention needs what it attends to"

                def cross_attention(x_BTD: Tensor) -> Tensor:
                    return self._cross_attention(x_BTD, encoded_BSD, encoded_mask, cache, scores, streams)

                x_BTD = self._add_branch(x_BTD, self.cross_attention_norm, cross_attention, streams, CROSS_ATTENDED)
            x_BTD = self._add_branch(x_BTD, self.mlp_norm, mlp, streams, MLP)
        return x_BTD, (*(scores or ()), *(balance if balanced else ()))

    def _add_branch(
        self, x_BTD: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], streams: Tensor | None, place: int
    ) -> Tensor:
        """Return the stream plus what a branch adds to it; the norm's place is `norm_position`."""
        if self.config.norm_position == "pre":
            return x_BTD + self._dropout(branch(norm(x_BTD)), streams, place)
        if self.config.norm_position == "branch":
            return x_BTD + self._dropout(norm(branch(x_BTD)), streams, place)
        return norm(x_BTD + self._dropout(branch(x_BTD), streams, place))

    def _attention(
        self,
        x_BTD: Tensor,
        context: AttentionContext,
        cache: KeyValueCache | None,
        scores: list[Tensor] | None,
        streams: Tensor | None,
    ) -> Tensor:
        query_BTI, key_BTI = self.attention_query(x_BTD), self.attention_key(x_BTD)
        if self.config.qk_norm == "all":
            query_BTI, key_BTI = self.query_norm(query_BTI.float()), self.key_norm(key_BTI.float())
        query, key, value = self._heads(query_BTI), self._heads(key_BTI), self._heads(self.attention_value(x_BTD))
        if self.config.qk_norm == "head":
            query, key = self.query_norm(query.float()), self.key_norm(key.float())
        if context.rotary is not None:
            query, key = apply_rotary(query, *context.rotary), apply_rotary(key, *context.rotary)
        # Scores have the type of the values: under bfloat16 fused attention takes no mixture.
        query, key = query.to(value.dtype), key.to(value.dtype)
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        mask = context.mask if self.config.window is None else context.window_mask
        if context.spread is not None:
            mask = SpreadMask.apply(mask, context.spread)
        causal = context.causal and mask is None
        streams = None if streams is None else inner_streams(streams, ATTENTION)
        return self.attention_out(self._attend(query, key, value, mask, scores, streams, causal=causal))

    def _cross_attention(
        self,
        x_BTD: Tensor,
        encoded_BSD: Tensor,
        encoded_mask: Tensor | None,
        cache: KeyValueCache | None,
        scores: list[Tensor] | None,
        streams: Tensor | None,
    ) -> Tensor:
        query = self._heads(self.cross_attention_query(x_BTD))
        if cache is not None and self.layer < len(cache.memory):
            key, value = cache.memory[self.layer]
        else:
            key = self._heads(self.cross_attention_key(encoded_BSD))
            value = self._heads(self.cross_attention_value(encoded_BSD))
            if cache is not None:
                cache.memory.append((key, value))
        streams = None if streams is None else inner_streams(streams, CROSS_ATTENTION)
        return self.cross_attention_out(self._attend(query, key, value, encoded_mask, scores, streams, causal=False))

    def _heads(self, x_BTI: Tensor) -> Tensor:
        batch, length, _ = x_BTI.shape
        return x_BTI.view(batch, length, -1, self.config.head_size).transpose(1, 2)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scores: list[Tensor] | None,
        streams: Tensor | None,
        *,
        causal: bool,
    ) -> Tensor:
        p, scale = self.config.dropout if self.training else 0.0, self.config.score_scale
        if p and streams is not None:
            heads = torch.arange(self.first_head, self.first_head + query.shape[1], device=query.device)
            of_heads = inner_streams(streams[:, None], heads)
            attended_BHTE = dropped_attention(query, key, value, mask, p, of_heads, causal=causal, scale=scale)
        else:
            attended_BHTE = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                dropout_p=p,
                is_causal=causal,
                scale=scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        if scores is not None:
            scores.append(self.score_range(query, key, mask, causal=causal, scale=scale))
        return attended_BHTE.transpose(1, 2).flatten(2)

    def _mlp(self, x_BTD: Tensor, balance: list[Tensor]) -> Tensor:
        if self.config.experts is not None:
            x_BTD, of_block = self.experts(x_BTD)
            balance.append(of_block)
            return x_BTD
        activation = self.config.activation
        if not is_gated(activation):
            return self.mlp_out(apply_activation(self.mlp_in(x_BTD), activation))
        return self.mlp_out(apply_activation(self.mlp_gate(x_BTD), activation) * self.mlp_in(x_BTD))

    def _dropout(self, x: Tensor, streams: Tensor | None, place: int) -> Tensor:
        return dropout(x, self.config.dropout, self.training, streams, place)


def make_norm(config: BlockConfig) -> nn.Module:
    """Return a norm of the residual stream."""
    if config.norm == "none":
        return nn.Identity()
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.width, config.norm_eps)
    return nn.LayerNorm(config.width, config.norm_eps, bias=config.biases)


class SpreadMask(torch.autograd.Function):
    """T5's trained bias of attention scores, f32[1, H, T, T], as fused kernels for CUDA devices take it: for each row.

    They refuse one bias for all rows if it is trained, and PyTorch then computes attention in float32, matrix by
    matrix. The gradients of all rows are added up in each block: together they are B times as large as the bias.
    """

    @staticmethod
    def forward(ctx: Any, bias_1HTT: Tensor, spread_BHTT: Tensor) -> Tensor:
        del ctx, bias_1HTT
        return spread_BHTT.view_as(spread_BHTT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradients[0].sum(0, keepdim=True, dtype=torch.float32), None


def bias_context(bias_1HTT: Tensor, hidden: Tensor | None, rows: int, streams_B: Tensor | None) -> AttentionContext:
    """Return the context of blocks whose scores have this bias, with -inf where `hidden`, bool broadcastable to
    [B, H, T, T], is True."""
    if not (bias_1HTT.is_cuda and bias_1HTT.requires_grad) or streams_B is not None:
        mask = bias_1HTT if hidden is None else bias_1HTT.masked_fill(hidden, -torch.inf)
        return AttentionContext(mask, streams_B=streams_B)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else bias_1HTT.dtype
    return AttentionContext(bias_1HTT, spread=spread_bias(bias_1HTT, hidden, rows, dtype), streams_B=streams_B)


def spread_bias(bias_1HTT: Tensor, hidden: Tensor | None, rows: int, dtype: torch.dtype) -> Tensor:
    """Return the bias of each row, [B, H, T, T] in memory, without a gradient; -inf where `hidden`."""
    spread_BHTT = bias_1HTT.detach().to(dtype).expand(rows, -1, -1, -1)
    return spread_BHTT.contiguous() if hidden is None else spread_BHTT.masked_fill(hidden, -torch.inf)


def key_mask(is_token_BK: Tensor | None) -> Tensor | None:
    """Return the mask bool[B, 1, 1, K] with which queries see tokens alone; None where all are tokens."""
    return None if is_token_BK is None else is_token_BK[:, None, None, :]


def run_blocks(
    blocks: Iterable[nn.Module],
    x_BTD: Tensor,
    *inputs: Any,
    ranges: list[Tensor] | None,
    balances: list[Tensor] | None = None,
) -> Tensor:
    """Return the residual stream after some blocks, each of which is called with `inputs` too.

    The ranges of each block's scores and of the stream after it are appended to `ranges`, in the order of
    `block_range_names`; the balance of each block's experts to `balances`.
    """
    named = {"balanced": True} if balances is not None else {}
    for block in blocks:
        x_BTD, found = block(x_BTD, *inputs, measured=ranges is not None, **named)
        if balances is not None:
            *found, balance = found
            balances.append(balance)
        if ranges is not None:
            ranges += [*found, activation_range(x_BTD)]
    return x_BTD


def block_range_names(layers: range, stack: str = "", *, cross_attention: bool = False) -> list[str]:
    """Return the names of the activation ranges of these blocks of a stack, in order."""
    segments = [" attention logits", *([" cross attention logits"] if cross_attention else []), ""]
    return [f"{stack}block {layer}{part}" for layer in layers for part in segments]


def distance_bucket(distance: Tensor, *, bidirectional: bool) -> Tensor:
    """Return the bucket of each distance (key position minus query position), i64 (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each, the others ranges that grow logarithmically. Causally, later keys share
    the bucket of distance 0; where `bidirectional`, half of all buckets is for later keys.
    """
    buckets = DISTANCE_BUCKETS // 2 if bidirectional else DISTANCE_BUCKETS
    offset = (distance > 0).long() * buckets if bidirectional else torch.zeros_like(distance)
    far = distance.abs() if bidirectional else (-distance).clamp(min=0)
    exact = buckets // 2
    # In float32, as in the authors' program, whose rounding decides where ranges begin.
    grown = torch.log(far.clamp(min=1).float() / exact) / math.log(FARTHEST_DISTANCE / exact) * (buckets - exact)
    return offset + torch.where(far < exact, far, (exact + grown.long()).clamp(max=buckets - 1))


def distance_bias(table: nn.Embedding, queries: range, keys: int, *, bidirectional: bool) -> Tensor:
    """Return the relative position bias f32[1, H, Q, K] for queries at the positions `queries` and keys from 0 on."""
    device = table.weight.device
    query = torch.arange(queries.start, queries.stop, device=device)
    distance = torch.arange(keys, device=device) - query[:, None]
    return table(distance_bucket(distance, bidirectional=bidirectional)).permute(2, 0, 1)[None]
