"""What a BERT is made of."""

from typing import Literal

from pydantic import Field, model_validator

from model.block_shape import BlockShape, check_heads
from model.strict import Strict


class BERTConfig(Strict):
    """An encoder that fills in hidden tokens and says whether two stretches follow each other (Devlin et al. 2019)."""

    architecture: Literal["bert"] = "bert"
    """What the network is: `gpt`, a decoder that is trained on next tokens, `bert`, an encoder on hidden tokens and
    pairs of stretches, or `t5`, which has both, on spans that were taken out. `chunk.objective` follows from it."""
    vocab_size: int = Field(default=4096, ge=2, le=2**22)
    """Rows of the embedding table; the tokenizer's number of pieces."""
    context: int = Field(default=256, ge=8, le=2**17)
    """Tokens that the model sees at once; as many positions are learnt."""
    layers: int = Field(default=4, ge=1, le=512)
    """Transformer blocks."""
    heads: int = Field(default=4, ge=1, le=512)
    """Attention heads; `width` must be a multiple of them."""
    width: int = Field(default=256, ge=8, le=2**16)
    """Size of the residual stream (hidden_size)."""
    ffn_width: int | None = Field(default=None, ge=8)
    """Size of the hidden layer of each MLP; four times `width` by default."""
    activation: Literal["relu", "gelu", "gelu_tanh"] = "gelu"
    """Non-linearity of the MLP and of the head."""
    norm_position: Literal["pre", "post"] = "post"
    """Where LayerNorms stand: behind the sum of stream and branch (`post`, BERT), or before each branch (`pre`), which
    trains at higher rates and without warm-up (Xiong et al. 2020)."""
    embedding_norm: bool = True
    """A norm right after the embedding (BERT). Without it, and with norms before each branch, it is the BERT of
    Megatron-LM (Shoeybi et al. 2019), which also stands in `transformers`."""
    norm_eps: float = Field(default=1e-12, gt=0, le=1e-2)
    """Added to the variance before its root is taken."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of values set to zero while training: behind the embedding, in the attention's weights, and behind
    attention and MLP (BERT: 0.1)."""
    init_std: float = Field(default=0.02, gt=0, le=1)
    """Standard deviation of the Gaussian that matrices and tables start from."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "BERTConfig":
        check_heads(self.width, self.heads)
        return self

    @model_validator(mode="after")
    def _the_stream_is_normalised(self) -> "BERTConfig":
        if not self.embedding_norm and self.norm_position == "post":
            raise ValueError(
                'embedding_norm is false and norm_position "post", which nobody trains: the first block would read'
                ' what no norm has seen, and all others what one has. Set norm_position = "pre", or leave'
                " embedding_norm out"
            )
        return self

    @property
    def hidden(self) -> int:
        """Size of the MLP's hidden layer."""
        return self.ffn_width or 4 * self.width

    @property
    def block(self) -> BlockShape:
        """What each block is made of."""
        return BlockShape(
            width=self.width,
            heads=self.heads,
            head_size=self.width // self.heads,
            hidden=self.hidden,
            activation=self.activation,
            norm="layernorm",
            norm_eps=self.norm_eps,
            post_norm=self.norm_position == "post",
            dropout=self.dropout,
        )
