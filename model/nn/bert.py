"""The BERT network: an encoder with heads for masked tokens and next-sentence prediction.

Devlin et al. 2019, and their program. Shapes: B rows, T tokens, M masked tokens a row at most, D width, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config.network import BERTConfig
from model.nn.activation_stats import activation_range
from model.nn.block import AttentionContext, Block, key_mask, make_norm, run_blocks
from model.nn.dropout import EMBEDDING, dropout
from model.nn.experts import apply_activation
from model.nn.init import InitialLaw, bert_law
from model.nn.vocab_layers import VocabularyNetwork, append_new_logits


class BERT(VocabularyNetwork):
    """Maps token ids to a stream that two heads read.

    The last `new_rows` of the embedding may be a separate parameter (`model/nn/vocab_layers.py`).
    """

    def __init__(self, config: BERTConfig, new_rows: int = 0) -> None:
        super().__init__(config.vocab_size, config.width, new_rows)
        self.config = config
        self.embedding_positions = nn.Embedding(config.context, config.width)
        self.embedding_types = nn.Embedding(2, config.width)
        self.embedding_norm = make_norm(config.block) if config.embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config.block, layer) for layer in range(config.layers))
        # Post-norm blocks already end with a norm.
        self.final_norm = nn.Identity() if config.norm_position == "post" else make_norm(config.block)
        self.masked_head_in = nn.Linear(config.width, config.width)
        self.masked_head_norm = make_norm(config.block)
        self.masked_head_bias = nn.Parameter(torch.empty(config.vocab_size))
        self.next_head_in = nn.Linear(config.width, config.width)
        self.next_head_answer = nn.Linear(config.width, 2)

    def initial_law(self, name: str, shape: Sequence[int]) -> InitialLaw:
        del shape
        return bert_law(name, self.config.init_std)

    def hidden(
        self,
        tokens_BT: Tensor,
        token_types_BT: Tensor,
        is_token_BT: Tensor | None,
        ranges: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the stream f32[B, T, D] after the last block; tokens see only those where `is_token_BT` is True, and
        with None all.

        Activation ranges up to the heads (`activation_range_names`), f32[2] each, are appended to `ranges`.
        """
        length = tokens_BT.shape[1]
        assert length <= self.config.context, f"{length} tokens do not fit into a context of {self.config.context}"
        x_BTD = self.enter(tokens_BT, token_types_BT)
        if ranges is not None:
            ranges.append(activation_range(x_BTD))
        context = self.attention_context(is_token_BT)
        return self.final_norm(run_blocks(self.blocks, x_BTD, context, ranges=ranges))

    def attention_context(self, is_token_BT: Tensor | None) -> AttentionContext:
        """Return the mask of the tokens."""
        return AttentionContext(key_mask(is_token_BT), streams_B=self.streams_B)

    def enter(self, tokens_BT: Tensor, token_types_BT: Tensor) -> Tensor:
        """Return the residual stream f32[B, T, D] before the first block."""
        position = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        rows_BTD = self.look_up(tokens_BT)
        x_BTD = rows_BTD + self.embedding_positions(position) + self.embedding_types(token_types_BT)
        return dropout(self.embedding_norm(x_BTD), self.config.dropout, self.training, self.streams_B, EMBEDDING)

    def masked_logits(self, hidden_BTD: Tensor, positions_BM: Tensor) -> Tensor:
        """Return logits f32[B, M, V] at these positions alone: at all of them the head would add a fifth to the
        arithmetic of the network."""
        masked_BMD = hidden_BTD.gather(1, positions_BM[..., None].expand(-1, -1, hidden_BTD.shape[2]))
        masked_BMD = self.masked_head_norm(
            apply_activation(self.masked_head_in(masked_BMD), self.config.activation).float()
        )
        masked_BMD = self.vocabulary.read(masked_BMD)
        if self.new_rows is None:
            return F.linear(masked_BMD, self.embedding.weight, self.masked_head_bias)
        logits_BMV = append_new_logits(F.linear(masked_BMD, self.embedding.weight), masked_BMD, self.new_rows)
        return logits_BMV + self.masked_head_bias

    def next_logits(self, hidden_BTD: Tensor) -> Tensor:
        """Return logits f32[B, 2] that sentence B does not follow A, and that it does, read from [CLS]."""
        return self.next_head_answer(torch.tanh(self.next_head_in(hidden_BTD[:, 0]))).float()
