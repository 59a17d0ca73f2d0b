"""The GPT network: a decoder that predicts the next token.

Shapes: B rows, T tokens, D width, H heads, E = D / H head size, V vocabulary, F hidden size of the MLP.

Pre-LayerNorm blocks (GPT-2), rotary positions (Su et al. 2021) on halves of each head, GELU MLP, embedding LayerNorm
(YaLM-100B, BLOOM), tied output head. No dropout, so a forward pass is a pure function of weights and tokens.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import GPTConfig

ROTARY_BASE = 10_000.0


@dataclass
class KeyValueCache:
    """Keys and values of the tokens seen so far, one BHTE pair a block, so that generation reads each token once."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

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


def rotary_table(length: int, head_size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation of each position, f32[length, head_size / 2] each."""
    frequency = ROTARY_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return angle.cos().float(), angle.sin().float()


def rotate(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Turn the pairs (first half, second half) of each head by the angle of their position."""
    first, second = x_BHTE.chunk(2, dim=-1)
    return torch.cat((first * cos_TE - second * sin_TE, second * cos_TE + first * sin_TE), dim=-1)


def largest_magnitude(x: Tensor) -> Tensor:
    """Largest absolute value of a tensor, f32[], in one pass and without a copy; NaN where any value is NaN."""
    low, high = torch.aminmax(x.detach())
    return torch.maximum(-low, high)


class Block(nn.Module):
    """Attention and MLP, each on the normalised residual stream."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention_in = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp_in = nn.Linear(config.width, config.hidden)
        self.mlp_out = nn.Linear(config.hidden, config.width)

    def forward(
        self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, cache: KeyValueCache | None, visible_B1TT: Tensor | None
    ) -> Tensor:
        x_BTD = x_BTD + self._attention(self.attention_norm(x_BTD), cos_TE, sin_TE, cache, visible_B1TT)
        return x_BTD + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x_BTD))))

    def _attention(
        self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, cache: KeyValueCache | None, visible_B1TT: Tensor | None
    ) -> Tensor:
        batch, length, width = x_BTD.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.attention_in(x_BTD).split(width, dim=2)
        )
        query, key = rotate(query, cos_TE, sin_TE), rotate(key, cos_TE, sin_TE)
        if visible_B1TT is not None:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible_B1TT)
        elif cache is None:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            before = cache.length if self.layer == 0 else cache.keys[0].shape[2] - length
            key, value = cache.extend(self.layer, key, value)
            visible = torch.ones(length, before + length, dtype=torch.bool, device=x_BTD.device).tril(before)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    """Token ids in, logits out; the head is the transposed embedding.

    The last `new_rows` of the embedding may be a parameter of their own, so that they can learn while the others stay:
    a masked gradient would not hold those, which weight decay moves all the same, and ZeRO-3 cuts a table anywhere.
    """

    cos_TE: Tensor
    sin_TE: Tensor

    def __init__(self, config: GPTConfig, new_rows: int = 0) -> None:
        super().__init__()
        self.config = config
        self.old_rows = config.vocab_size - new_rows
        self.embedding = nn.Embedding(self.old_rows, config.width)
        self.new_rows = nn.Parameter(torch.empty(new_rows, config.width)) if new_rows else None
        self.embedding_norm = nn.LayerNorm(config.width) if config.embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        cos_TE, sin_TE = rotary_table(config.context, config.width // config.heads)
        self.register_buffer("cos_TE", cos_TE, persistent=False)
        self.register_buffer("sin_TE", sin_TE, persistent=False)

    @torch.no_grad()
    def initialise(self, seed: int) -> "GPT":
        """Gaussian weights from a private generator: the same seed gives the same bits on every machine."""
        generator = torch.Generator().manual_seed(seed)
        residual_std = self.config.init_std / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                std = residual_std if name.endswith("_out.weight") else self.config.init_std
                parameter.normal_(0.0, std, generator=generator)
        return self

    def train_new_rows_alone(self) -> None:
        """Let nothing learn but the new rows."""
        assert self.new_rows is not None, "there are no new rows"
        self.requires_grad_(False)
        self.new_rows.requires_grad_(True)

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """The rows of tokens, f32[B, T, D]."""
        if self.new_rows is None:
            return self.embedding(tokens_BT)
        old_BTD = self.embedding(tokens_BT.clamp(max=self.old_rows - 1))
        new_BTD = F.embedding((tokens_BT - self.old_rows).clamp(min=0), self.new_rows)
        return torch.where((tokens_BT >= self.old_rows)[..., None], new_BTD, old_BTD)

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """Logits f32[..., V] of the next token, given the residual stream f32[..., D] behind the last block."""
        logits_XV = F.linear(hidden_XD, self.embedding.weight)
        if self.new_rows is None:
            return logits_XV
        return torch.cat((logits_XV, F.linear(hidden_XD, self.new_rows)), dim=-1)

    def hidden(
        self,
        tokens_BT: Tensor,
        cache: KeyValueCache | None = None,
        heat: list[Tensor] | None = None,
        visible_B1TT: Tensor | None = None,
    ) -> Tensor:
        """Normalised residual stream f32[B, T, D] after the last block.

        `heat` collects the largest absolute value after the embedding and after each block, without leaving the device.
        `visible_B1TT` says what each token attends to (`documents.visible_within_documents`), all before it by default;
        with a cache, where tokens follow others, it has no meaning.
        """
        assert cache is None or visible_B1TT is None, "a mask of whole rows and a cache exclude each other"
        begin = cache.length if cache is not None else 0
        end = begin + tokens_BT.shape[1]
        assert end <= self.config.context, f"{end} tokens do not fit into a context of {self.config.context}"
        cos_TE, sin_TE = self.cos_TE[begin:end], self.sin_TE[begin:end]
        x_BTD = self.embedding_norm(self.embed(tokens_BT))
        if heat is not None:
            heat.append(largest_magnitude(x_BTD))
        for block in self.blocks:
            x_BTD = block(x_BTD, cos_TE, sin_TE, cache, visible_B1TT)
            if heat is not None:
                heat.append(largest_magnitude(x_BTD))
        return self.final_norm(x_BTD)

    def forward(
        self, tokens_BT: Tensor, cache: KeyValueCache | None = None, heat: list[Tensor] | None = None
    ) -> Tensor:
        """Logits f32[B, T, V] of the token after each position."""
        return self.logits(self.hidden(tokens_BT, cache, heat))


def thermometer_names(config: GPTConfig) -> list[str]:
    """What each value of METRICS.thermometers measures, in order: largest absolute value of each segment."""
    return ["embedding", *(f"block {layer}" for layer in range(config.layers)), "logits"]


def parameter_count(config: GPTConfig) -> int:
    """Trainable parameters, counted on the meta device without memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in GPT(config).parameters())


def flops_per_token(config: GPTConfig) -> float:
    """Floating point operations of one training token: 6 N + 12 L D T (Kaplan et al. 2020; full attention)."""
    return 6.0 * parameter_count(config) + 12.0 * config.layers * config.width * config.context
