"""What a T5 is made of."""

from typing import Literal

from pydantic import Field, model_validator

from model.block_shape import Activation, BlockShape, check_heads
from model.strict import Strict


class T5Config(Strict):
    """An encoder and a decoder that writes what the encoder's text lacks (Raffel et al. 2020): RMSNorm before each
    branch, relative positions, no biases. The defaults are those of the first T5."""

    architecture: Literal["t5"] = "t5"
    """What the network is: `gpt`, a decoder that is trained on next tokens, `bert`, an encoder on hidden tokens and
    pairs of stretches, or `t5`, which has both, on spans that were taken out. `chunk.objective` follows from it."""
    vocab_size: int = Field(default=4096, ge=2, le=2**22)
    """Rows of the embedding table, which encoder and decoder share; the tokenizer's number of pieces."""
    context: int = Field(default=256, ge=8, le=2**17)
    """Tokens that the encoder reads of a row of training, end-of-text included. The network itself knows no limit."""
    layers: int = Field(default=4, ge=1, le=512)
    """Blocks of the encoder, and as many of the decoder."""
    heads: int = Field(default=4, ge=1, le=512)
    """Attention heads."""
    head_size: int | None = Field(default=None, ge=1, le=2**12)
    """Size of each head (d_kv); `width` over `heads` by default, which must then divide it."""
    width: int = Field(default=256, ge=8, le=2**16)
    """Size of the residual stream (d_model)."""
    ffn_width: int | None = Field(default=None, ge=8)
    """Size of the hidden layer of each MLP (d_ff); four times `width` by default."""
    activation: Activation = "relu"
    """Non-linearity of the MLP: `relu` (T5), or `geglu_tanh` (T5 v1.1, Flan-T5)."""
    tied_head: bool = True
    """Whether the output head is the embedding, scaled by 1 / sqrt(width) (T5), or a matrix of its own (T5 v1.1)."""
    norm_eps: float = Field(default=1e-6, gt=0, le=1e-2)
    """Added to the mean square before its root is taken."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of values set to zero while training: behind the embedding, in the attention's weights, behind each branch
    and behind the last norm."""
    z_loss: float = Field(default=0.0, ge=0, le=1)
    """Weight of the squared logarithm of the softmax's denominator, added to what is minimised (T5's program: 1e-4)."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "T5Config":
        if self.head_size is None:
            check_heads(self.width, self.heads)
        return self

    @property
    def hidden(self) -> int:
        """Size of the MLP's hidden layer."""
        return self.ffn_width or 4 * self.width

    def block(self, *, decoder: bool) -> BlockShape:
        """What each block of the encoder or decoder is made of."""
        return BlockShape(
            width=self.width,
            heads=self.heads,
            head_size=self.head_size or self.width // self.heads,
            hidden=self.hidden,
            activation=self.activation,
            norm="rmsnorm",
            norm_eps=self.norm_eps,
            biases=False,
            dropout=self.dropout,
            score_scale=1.0,
            cross_attention=decoder,
        )
