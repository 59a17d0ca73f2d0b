"""The GPT network: a decoder that predicts the next token, and attention masks for packed rows.

By default RMSNorm before each branch, rotary positions (Su et al. 2021) on halves of each head, RMSNorm of queries and
keys, SwiGLU and a tied output head. Without dropout a forward pass is a pure function of weights and tokens.

Documents of a packed row are found by the end-of-text tokens that close them. As an input, such a token belongs to the
document after it: the first token of a document is predicted from it, in a row as in a text that is scored alone.

Shapes: B rows, T tokens, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config.block import DISTANCE_BUCKETS
from model.config.network import GPTConfig
from model.nn.activation_stats import activation_range
from model.nn.block import (
    AttentionContext,
    BatchCache,
    Block,
    KeyValueCache,
    distance_bias,
    distance_bucket,
    make_norm,
    run_blocks,
)
from model.nn.dropout import EMBEDDING, dropout
from model.nn.init import InitialLaw, gpt_law, t_fixup_law
from model.nn.rotary import rotary_table
from model.nn.vocab_layers import VocabularyNetwork, append_new_logits, make_new_rows


class GPT(VocabularyNetwork):
    """Maps token ids to logits; the head is the transposed embedding, or a separate matrix.

    The last `new_rows` of its tables may be separate parameters (`model/nn/vocab_layers.py`).
    """

    def __init__(self, config: GPTConfig, new_rows: int = 0) -> None:
        super().__init__(config.vocab_size, config.table_width, new_rows)
        self.config = config
        if config.positions == "learned":
            self.embedding_positions = nn.Embedding(config.position_offset + config.context, config.width)
        if config.positions == "relative":
            self.embedding_distances = nn.Embedding(DISTANCE_BUCKETS, config.heads)
        self.pads = config.embedding_width is not None and config.embedding_projection == "padding"
        normed = replace(config.block, width=config.table_width) if self.pads else config.block
        self.embedding_norm = make_norm(normed) if config.embedding_norm else nn.Identity()
        if config.embedding_width is not None and not self.pads:
            self.from_embedding = nn.Linear(config.embedding_width, config.width, bias=False)
        self.blocks = nn.ModuleList(Block(config.block_of(layer), layer) for layer in range(config.layers))
        # Post-norm blocks already end with a norm.
        self.final_norm = nn.Identity() if config.norm_position == "post" else make_norm(config.block)
        if config.embedding_width is not None:
            biases = config.biases and self.pads
            self.head_projection = nn.Linear(config.width, config.embedding_width, bias=biases)
            self.head_norm = make_norm(normed) if self.pads else nn.Identity()
        self.head = None if config.tied_head else nn.Linear(config.table_width, self.old_rows, bias=False)
        self.new_head_rows = None if config.tied_head else make_new_rows(new_rows, config.table_width)
        self.head_bias = nn.Parameter(torch.empty(config.vocab_size)) if config.head_bias else None
        self.make_tables()

    def make_tables(self) -> None:
        """Compute the buffers that are not weights: the tables of rotary positions."""
        if self.config.positions == "rotary":
            if torch.get_default_device().type == "meta":
                # Here their values would not be kept, and computing them imports the compiler.
                cos_TE, sin_TE = torch.empty(2, self.config.context, self.config.rotary_size // 2)
            else:
                cos_TE, sin_TE = self._rotary_table(self.config.context)
            self.register_buffer("cos_TE", cos_TE, persistent=False)
            self.register_buffer("sin_TE", sin_TE, persistent=False)

    def initial_law(self, name: str, shape: Sequence[int]) -> InitialLaw:
        return t_fixup_law(name, shape, self.config) if self.config.init == "t_fixup" else gpt_law(name, self.config)

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """Return logits f32[..., V] of the next token, given the output of `hidden`."""
        hidden_XD = self.vocabulary.read(hidden_XD)
        logits_XV = self.head(hidden_XD) if self.head is not None else F.linear(hidden_XD, self.embedding.weight)
        logits_XV = append_new_logits(logits_XV, hidden_XD, self.new_rows if self.head is None else self.new_head_rows)
        return logits_XV if self.head_bias is None else logits_XV + self.head_bias

    def head_weights(self) -> list[Tensor]:
        """Return the weights that `logits` uses."""
        rows = (self.embedding.weight, self.new_rows) if self.head is None else (self.head.weight, self.new_head_rows)
        return [weight for weight in (*rows, self.head_bias) if weight is not None]

    def hidden(
        self,
        tokens_BT: Tensor,
        cache: KeyValueCache | None = None,
        ranges: list[Tensor] | None = None,
        visible_B1TT: Tensor | None = None,
        balances: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the normalised residual stream f32[B, T, D] after the last block, in the embedding's width.

        Activation ranges up to the head (`activation_range_names`), f32[2] each, are appended to `ranges`, the balance
        f32[] of each block's experts to `balances`.
        `visible_B1TT` is the mask (such as `prefix_mask`), causal by default; it excludes a cache with tokens, which
        others follow. The first tokens of a cache are a prompt, all of which a prefix language model sees.
        """
        begin = cache.length if cache is not None else 0
        assert not begin or visible_B1TT is None, "a mask of whole rows and tokens before them exclude each other"
        end = begin + tokens_BT.shape[1]
        assert end <= self.config.context, f"{end} tokens do not fit into a context of {self.config.context}"
        context = self.attention_context(begin, end, visible_B1TT, tokens_BT.device, cached=cache is not None)
        x_BTD = self.enter(tokens_BT, begin)
        if ranges is not None:
            ranges.append(activation_range(x_BTD))
        return self.leave(run_blocks(self.blocks, x_BTD, context, cache, ranges=ranges, balances=balances))

    def hidden_next(self, tokens_B: Tensor, cache: BatchCache) -> Tensor:
        """Return f32[B, D] after the last block, as `hidden`, for one more token of each row of a batch."""
        assert max(cache.lengths) < min(self.config.context, cache.capacity), "a row has no place for another token"
        places_B = torch.tensor(cache.lengths, device=tokens_B.device)
        x_B1D = self.enter(tokens_B[:, None], places_B[:, None])
        context = self._context_of_next(places_B, cache.lengths)
        hidden_B1D = self.leave(run_blocks(self.blocks, x_B1D, context, cache, ranges=None))
        cache.lengths = [length + 1 for length in cache.lengths]
        return hidden_B1D[:, 0]

    def _context_of_next(self, places_B: Tensor, lengths: list[int]) -> AttentionContext:
        """Return mask and positions of one token in each row, at `places_B`: it sees the slots up to its own."""
        rotary = None
        if self.config.rotates_by_length:
            of_rows = [[table[-1] for table in self._rotary_table(length + 1)] for length in lengths]
            cos_BE, sin_BE = (torch.stack(tables).to(places_B.device) for tables in zip(*of_rows, strict=True))
            rotary = (cos_BE[:, None, None], sin_BE[:, None, None])
        elif self.config.positions == "rotary":
            rotary = (self.get_buffer("cos_TE")[places_B, None, None], self.get_buffer("sin_TE")[places_B, None, None])
        end, relative, window = max(lengths) + 1, self.config.positions == "relative", self.config.window
        distance_BK = torch.arange(end, device=places_B.device) - places_B[:, None]
        # Rows of equal lengths see all slots, which needs no mask.
        visible = (distance_BK <= 0)[:, None, None] if relative or min(lengths) + 1 < end else None
        near = visible
        if window is not None and end > window:
            near = (distance_BK > -window)[:, None, None]
            near = near if visible is None else near & visible
        if relative:
            buckets_BK = distance_bucket(distance_BK, bidirectional=False)
            visible, near = _biased(self.embedding_distances(buckets_BK).permute(0, 2, 1)[:, :, None], visible, near)
        return AttentionContext(visible, rotary=rotary, window_mask=near)

    def enter(self, tokens_BT: Tensor, begin: int | Tensor = 0) -> Tensor:
        """Return the residual stream f32[B, T, D] before the first block: embeddings, brought to the width of the
        network where they are narrow, and learned positions, if any, from `begin` on, which may be one of each row,
        i64[B, 1]."""
        x_BTD = self.look_up(tokens_BT)
        if self.pads:
            x_BTD = F.pad(self.embedding_norm(x_BTD), (0, self.config.width - self.config.table_width))
        elif self.config.embedding_width is not None:
            x_BTD = self.from_embedding(x_BTD)
        if self.config.positions == "learned":
            position = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) + begin + self.config.position_offset
            x_BTD = x_BTD + self.embedding_positions(position)
        if not self.pads:
            x_BTD = self.embedding_norm(x_BTD)
        return dropout(x_BTD, self.config.dropout, self.training, self.streams_B, EMBEDDING)

    def leave(self, x_BTD: Tensor) -> Tensor:
        """Return what the head reads, given the residual stream after the last block."""
        x_BTD = self.final_norm(x_BTD)
        if self.config.width_multiplier != 1.0:
            x_BTD = x_BTD / self.config.width_multiplier
        if self.config.embedding_width is None:
            return x_BTD
        narrow_BTD = self.head_projection(x_BTD)
        return self.head_norm(F.gelu(narrow_BTD)) if self.pads else narrow_BTD

    def attention_context(
        self, begin: int, end: int, visible: Tensor | None, device: torch.device, *, cached: bool = False
    ) -> AttentionContext:
        """Return mask and positions of tokens `begin` to `end`; `visible` as in `hidden`."""
        rotary = None
        if self.config.rotates_by_length:
            # Rotations depend on the number of tokens so far, and keys in a cache keep those that they had.
            cos_TE, sin_TE = self._rotary_table(end)
            rotary = (cos_TE[begin:].to(device, non_blocking=True), sin_TE[begin:].to(device, non_blocking=True))
        elif self.config.positions == "rotary":
            rotary = (self.get_buffer("cos_TE")[begin:end], self.get_buffer("sin_TE")[begin:end])
        relative, window = self.config.positions == "relative", self.config.window
        is_prefix = self.config.attention == "prefix" and cached and begin == 0
        if visible is None and (begin or is_prefix or relative):
            visible = torch.ones(end - begin, end, dtype=torch.bool, device=device)
            visible = visible if is_prefix else visible.tril(begin)
        near = None
        if window is not None and end > window:
            near = torch.ones(end - begin, end, dtype=torch.bool, device=device).triu(begin - window + 1)[None, None]
            near = near.tril(begin) if visible is None else near & visible
        near = visible if near is None else near
        if relative:
            bias = distance_bias(self.embedding_distances, range(begin, end), end, bidirectional=False)
            visible, near = _biased(bias, visible, near)
        return AttentionContext(visible, not relative, window_mask=near, rotary=rotary, streams_B=self.streams_B)

    def _rotary_table(self, length: int) -> tuple[Tensor, Tensor]:
        config = self.config
        return rotary_table(length, config.rotary_size, config.rotary_base, config.rotary_scaling)

    def forward(
        self, tokens_BT: Tensor, cache: KeyValueCache | None = None, ranges: list[Tensor] | None = None
    ) -> Tensor:
        """Return logits f32[B, T, V] of the token after each position."""
        return self.logits(self.hidden(tokens_BT, cache, ranges))


def _biased(bias: Tensor, *masks: Tensor | None) -> list[Tensor]:
    """Return a bias of scores for each mask, with -inf where that is False."""
    assert all(mask is not None for mask in masks), "relative positions have masks"
    return [bias.masked_fill(~mask, -torch.inf) for mask in masks if mask is not None]


def document_numbers(inputs_BT: Tensor, eos: int) -> Tensor:
    """Return the number of each token's document within its row, i32[B, T], from 0."""
    return (inputs_BT == eos).cumsum(1, dtype=torch.int32)


def same_document_mask(documents_BT: Tensor) -> Tensor:
    """Return which tokens belong to each token's document, bool[B, 1, T, T]."""
    return (documents_BT[:, :, None] == documents_BT[:, None, :])[:, None]


def prefix_mask(prefix_B: Tensor, length: int) -> Tensor:
    """Return the mask of a prefix language model, bool[B, 1, T, T]: a token sees the first `prefix_B` tokens of its
    row, itself and earlier tokens (Raffel et al. 2020, section 3.2.1)."""
    position = torch.arange(length, device=prefix_B.device)
    in_prefix_BT = position < prefix_B[:, None]
    return (in_prefix_BT[:, None, :] | (position <= position[:, None]))[:, None]
