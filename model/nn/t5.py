"""The T5 network: an encoder reads corrupted text, a decoder writes what is missing.

Raffel et al. 2020, section 2.1, and their program. Shapes: B rows, T encoder inputs, U decoder inputs, D width, V
vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config.block import DISTANCE_BUCKETS
from model.config.network import T5Config
from model.nn.activation_stats import activation_range
from model.nn.block import (
    AttentionContext,
    Block,
    KeyValueCache,
    bias_context,
    distance_bias,
    key_mask,
    make_norm,
    run_blocks,
)
from model.nn.dropout import DECODER_EMBEDDING, DECODER_END, EMBEDDING, ENCODER_END, dropout
from model.nn.init import InitialLaw, t5_law
from model.nn.vocab_layers import VocabularyNetwork, append_new_logits, make_new_rows


class T5(VocabularyNetwork):
    """Two stacks of blocks over one embedding; each has one table of relative positions for all its blocks.

    The last `new_rows` of embedding and head may be separate parameters (`model/nn/vocab_layers.py`).
    """

    def __init__(self, config: T5Config, new_rows: int = 0) -> None:
        super().__init__(config.vocab_size, config.width, new_rows)
        self.config = config
        encoder, decoder = config.block(decoder=False), config.block(decoder=True)
        self.embedding_encoder_distances = nn.Embedding(DISTANCE_BUCKETS, config.heads)
        self.embedding_decoder_distances = nn.Embedding(DISTANCE_BUCKETS, config.heads)
        self.encoder_blocks = nn.ModuleList(Block(encoder, layer) for layer in range(config.layers))
        self.encoder_norm = make_norm(encoder)
        self.decoder_blocks = nn.ModuleList(Block(decoder, layer) for layer in range(config.layers))
        self.decoder_norm = make_norm(decoder)
        self.head = None if config.tied_head else nn.Linear(config.width, self.old_rows, bias=False)
        self.new_head_rows = None if config.tied_head else make_new_rows(new_rows, config.width)

    def initial_law(self, name: str, shape: Sequence[int]) -> InitialLaw:
        return t5_law(name, shape, self.config.block(decoder=True))

    def encode(self, inputs_BT: Tensor, is_token_BT: Tensor | None, ranges: list[Tensor] | None = None) -> Tensor:
        """Return the encoder's output f32[B, T, D]; tokens see only those where `is_token_BT` is True, and with None
        all.

        Activation ranges of the encoder (`activation_range_names`), f32[2] each, are appended to `ranges`.
        """
        context = self.encoder_context(len(inputs_BT), inputs_BT.shape[1], is_token_BT)
        x_BTD = self.enter(inputs_BT)
        if ranges is not None:
            ranges.append(activation_range(x_BTD))
        return self.leave_encoder(run_blocks(self.encoder_blocks, x_BTD, context, ranges=ranges))

    def decode(
        self,
        inputs_BU: Tensor,
        encoded_BTD: Tensor,
        is_token_BT: Tensor | None,
        ranges: list[Tensor] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the decoder's stream f32[B, U, D] after its last norm; `encoded_BTD` and `is_token_BT` are the
        encoder's.

        With a cache the inputs follow the cached ones, which must have been computed with the same encoder output.
        """
        begin = cache.length if cache is not None else 0
        end = begin + inputs_BU.shape[1]
        context = self.decoder_context(len(inputs_BU), begin, end)
        x_BUD = self.enter(inputs_BU, DECODER_EMBEDDING)
        if ranges is not None:
            ranges.append(activation_range(x_BUD))
        inputs = (context, cache, encoded_BTD, key_mask(is_token_BT))
        return self.leave_decoder(run_blocks(self.decoder_blocks, x_BUD, *inputs, ranges=ranges))

    def encoder_context(self, rows: int, length: int, is_token_BT: Tensor | None) -> AttentionContext:
        """Return mask and positions of the encoder's tokens."""
        bias = distance_bias(self.embedding_encoder_distances, range(length), length, bidirectional=True)
        seen = key_mask(is_token_BT)
        return bias_context(bias, None if seen is None else ~seen, rows, self.streams_B)

    def decoder_context(self, rows: int, begin: int, end: int) -> AttentionContext:
        """Return mask and positions of the decoder's tokens `begin` to `end`."""
        bias = distance_bias(self.embedding_decoder_distances, range(begin, end), end, bidirectional=False)
        before = torch.ones(end - begin, end, dtype=torch.bool, device=bias.device).tril(begin)
        return bias_context(bias, ~before, rows, self.streams_B)

    def enter(self, tokens: Tensor, place: int = EMBEDDING) -> Tensor:
        """Return the residual stream of either stack before its first block; `place` is that of its dropout."""
        return self._dropout(self.look_up(tokens), place)

    def leave_encoder(self, x_BTD: Tensor) -> Tensor:
        """Return the encoder's output, given the stream after its last block."""
        return self._dropout(self.encoder_norm(x_BTD), ENCODER_END)

    def leave_decoder(self, x_BUD: Tensor) -> Tensor:
        """Return what the head reads, given the stream after the decoder's last block."""
        return self._dropout(self.decoder_norm(x_BUD), DECODER_END)

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """Return logits f32[..., V] of the next target, given the decoder's stream f32[..., D]."""
        hidden_XD = self.vocabulary.read(hidden_XD)
        if self.head is not None:
            return append_new_logits(self.head(hidden_XD), hidden_XD, self.new_head_rows)
        scaled_XD = hidden_XD * self.config.width**-0.5
        return append_new_logits(F.linear(scaled_XD, self.embedding.weight), scaled_XD, self.new_rows)

    def head_weights(self) -> list[Tensor]:
        """Return the weights that `logits` uses."""
        rows = (self.embedding.weight, self.new_rows) if self.head is None else (self.head.weight, self.new_head_rows)
        return [weight for weight in rows if weight is not None]

    def _dropout(self, x: Tensor, place: int) -> Tensor:
        return dropout(x, self.config.dropout, self.training, self.streams_B, place)
