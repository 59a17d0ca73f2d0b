"""What a network is made of, as frozen models: one for each architecture, told apart by their tag.

What a BERT is made of.

What a GPT is made of.

What a T5 is made of.

Sizes and choices of a block of the networks; without PyTorch, since recipes are checked by it.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from model.config import BaseConfig

__all__ = [
    "OBJECTIVE_OF",
    "BERTConfig",
    "GPTConfig",
    "NetworkConfig",
    "T5Config",
    "read_network_config",
    "times_as_wide",
]


def _architecture(values: Any) -> str:
    """The tag of a configuration; without one it is that of a GPT, which had none once."""
    found = values.get("architecture", "gpt") if isinstance(values, dict) else getattr(values, "architecture", "gpt")
    return str(found)


Norm = Literal["layernorm", "rmsnorm", "none"]

Activation = Literal["relu", "gelu", "gelu_tanh", "geglu", "geglu_tanh", "swiglu"]


@dataclass(frozen=True)
class BlockConfig:
    """Sizes and choices of a block."""

    width: int
    heads: int
    head_size: int
    hidden: int
    activation: Activation
    norm: Norm
    norm_eps: float
    post_norm: bool = False
    input_norm: bool = True
    """Whether what attention reads is normalised; not so in YaLM-100B's first block, whose input is already."""
    parallel_residual: bool = False
    """Whether attention and MLP read the same stream, instead of one after the other."""
    qk_norm: bool = False
    biases: bool = True
    dropout: float = 0.0
    score_scale: float | None = None
    """What scores of attention are multiplied by; 1 / sqrt(E) by default, 1 in T5."""
    cross_attention: bool = False
    """Whether the block also attends to an encoder."""


def check_heads_divide_width(width: int, heads: int) -> None:
    """Raises ValueError where heads do not divide the width, with a width near by that they divide."""
    if width % heads:
        raise ValueError(
            f"width {width} is not a multiple of heads = {heads}. Choose width {heads * max(1, round(width / heads))}"
        )


class BERTConfig(BaseConfig):
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
        check_heads_divide_width(self.width, self.heads)
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
    def block(self) -> BlockConfig:
        """What each block is made of."""
        return BlockConfig(
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


GATED_MULTIPLE = 8
"""A gated MLP's hidden size is rounded up to a multiple of this, which products of matrices like."""


def is_gated(activation: Activation) -> bool:
    """Whether one half of the MLP's hidden layer multiplies the other (Shazeer 2020)."""
    return activation in ("geglu", "geglu_tanh", "swiglu")


class GPTConfig(BaseConfig):
    """A decoder that predicts the next token: by default pre-LayerNorm blocks, GELU, rotary positions, tied head."""

    architecture: Literal["gpt"] = "gpt"
    """What the network is: `gpt`, a decoder that is trained on next tokens, `bert`, an encoder on hidden tokens and
    pairs of stretches, or `t5`, which has both, on spans that were taken out. `chunk.objective` follows from it."""
    vocab_size: int = Field(default=4096, ge=2, le=2**22)
    """Rows of the embedding table; the tokenizer's number of pieces."""
    context: int = Field(default=256, ge=8, le=2**17)
    """Tokens that the model sees at once."""
    layers: int = Field(default=4, ge=1, le=512)
    """Transformer blocks."""
    heads: int = Field(default=4, ge=1, le=512)
    """Attention heads; `width` must be a multiple of them, and of twice as many with rotary positions, which turn
    pairs."""
    width: int = Field(default=256, ge=8, le=2**16)
    """Size of the residual stream (d_model)."""
    ffn_width: int | None = Field(default=None, ge=8)
    """Size of the hidden layer of each MLP; four times `width` by default, and 8/3 of it with a gated activation, which
    has a third matrix, so that both have as many weights."""
    embedding_width: int | None = Field(default=None, ge=8, le=2**16)
    """Columns of the embedding where they are fewer than `width` (YaLM-100B: 2048 of 10240), which saves most where
    the vocabulary is large; as many by default."""
    embedding_projection: Literal["matrix", "padding"] = "matrix"
    """With `embedding_width`: how its rows get to `width` and the stream back to it. `matrix` multiplies by one on
    either way (OPT-350M). `padding` puts zeros behind a row, and on the way out a matrix, GELU and a norm follow
    (YaLM-100B)."""
    positions: Literal["rotary", "learned", "relative"] = "rotary"
    """How the network knows where a token stands: `rotary` turns queries and keys (GPT-NeoX, LLaMA), `learned` adds a
    row of a table to the embedding (GPT-2, OPT), `relative` adds a learned number for each range of distances to the
    attention's scores (T5)."""
    position_offset: int = Field(default=0, ge=0, le=1024)
    """`learned`: rows of the table before that of the first token. OPT has 2, which no text reads."""
    rotary_share: float = Field(default=1.0, gt=0, le=1)
    """`rotary`: share of each head's values that turn (rotary_pct); a quarter in GPT-NeoX-20B."""
    rotary_base: float = Field(default=10_000.0, gt=1, le=1e9)
    """`rotary`: how slowly the slowest pair turns (rope_theta); larger for longer contexts."""
    activation: Activation = "gelu"
    """Non-linearity of the MLP: `relu` (OPT), `gelu`, `gelu_tanh` (its approximation in GPT-2), or a gated one: `geglu`
    (YaLM-100B), `geglu_tanh` (T5 v1.1), `swiglu` (LLaMA, PaLM)."""
    norm: Norm = "layernorm"
    """What normalises the residual stream: `layernorm`, `rmsnorm`, which subtracts no mean and is cheaper (LLaMA, T5),
    or `none`, which only `init = "t_fixup"` can train. There is no batch norm: it would mix the rows of a batch, so
    that the loss of a row depended on what stands beside it."""
    norm_position: Literal["pre", "post"] = "pre"
    """Whether the norm stands before attention and MLP, which leaves the residual stream untouched (`pre`, GPT-2), or
    behind the sum of stream and branch (`post`, the first Transformer, BERT), which needs a longer warm-up."""
    norm_eps: float = Field(default=1e-5, gt=0, le=1e-2)
    """Added to the variance before its root is taken."""
    parallel_residual: bool = False
    """Whether attention and MLP of a block read the same stream side by side (GPT-NeoX, PaLM), instead of the MLP what
    attention made of it."""
    embedding_norm: bool = True
    """A norm right after the embedding, the stabilisation of YaLM-100B and BLOOM."""
    first_input_norm: bool = True
    """`pre`: whether the first block normalises its input; YaLM-100B leaves that to the embedding's norm."""
    qk_norm: bool = False
    """RMSNorm of queries and keys of each head, which bounds the attention's scores (Dehghani et al. 2023): a
    stabilisation for high learning rates."""
    biases: bool = True
    """Whether matrices and LayerNorms have biases; LLaMA and PaLM have none."""
    tied_head: bool = True
    """Whether the output head is the embedding (Press and Wolf 2017) or has a matrix of its own."""
    head_bias: bool = False
    """Whether each piece has a bias in the output head (YaLM-100B)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of values set to zero while training: behind the embedding, in the attention's weights, and behind
    attention and MLP. It helps where the same text is read many times, and costs elsewhere."""
    z_loss: float = Field(default=0.0, ge=0, le=1)
    """Weight of the squared logarithm of the softmax's denominator, added to what is minimised (PaLM: 1e-4), which
    keeps logits from drifting. The loss that is told stays the cross entropy."""
    attention: Literal["causal", "prefix"] = "causal"
    """What a token sees of its row: `causal` itself and what stands before it, `prefix` all of the row's beginning too
    (Liu et al. 2018; Raffel et al. 2020, section 3.2.1). How long that is is drawn for each row in each epoch, from one
    token to all but one; only what follows carries loss, half of a row on average. Where such a model writes or scores
    text, the prompt is that beginning."""
    attend_within_documents: bool = False
    """Whether a token sees only its own document in a row that holds several, as where a text is read alone. Off, it
    sees the documents before it too (GPT-3). On, attention takes more time and memory, for it reads a mask."""
    init: Literal["gaussian", "t_fixup"] = "gaussian"
    """How weights start: `gaussian` with `init_std`, or `t_fixup` (Huang et al. 2020), which trains without norms and
    without warm-up, so that neither is allowed beside it."""
    init_std: float = Field(default=0.02, gt=0, le=1)
    """`gaussian`: standard deviation that matrices start from; output projections of the residual branches start from
    this over sqrt(2 * layers) (GPT-2, section 2.3)."""

    mup_base_width: int | None = Field(default=None, ge=8, le=2**16)
    """Width at which the learning rate was chosen, if it is to hold for this one as well: the maximal update
    parametrisation (Yang et al. 2022). Matrices in blocks start and learn by their inputs' number against that width's,
    and logits are scaled down likewise; at that width itself nothing changes. Keep the size of a head, or name the old
    one in `mup_base_head_size`."""
    mup_base_head_size: int | None = Field(default=None, ge=2, le=2**12)
    """Size of a head at `mup_base_width`, where it was another: scores of attention then fall with the size of a head
    instead of with its root."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "GPTConfig":
        if self.positions == "rotary" and self.rotary_share == 1 and self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} is not a multiple of 2 x heads = {2 * self.heads}; rotary positions turn pairs"
                f" within each head. Choose width {2 * self.heads * max(1, round(self.width / (2 * self.heads)))}"
            )
        check_heads_divide_width(self.width, self.heads)
        if self.positions == "rotary" and (self.rotary_size < 2 or self.rotary_size % 2):
            raise ValueError(
                f"rotary_share {self.rotary_share:g} of the {self.width // self.heads} values of a head are"
                f" {self.rotary_size}, and rotary positions turn pairs. Choose a share that gives an even number"
            )
        return self

    @model_validator(mode="after")
    def _each_option_has_what_it_speaks_of(self) -> "GPTConfig":
        if self.position_offset and self.positions != "learned":
            raise ValueError(
                'position_offset speaks of a table of positions; set positions = "learned", or leave it out'
            )
        if self.embedding_width is None and self.embedding_projection != "matrix":
            raise ValueError("embedding_projection speaks of a narrow embedding; set embedding_width, or leave it out")
        if self.embedding_width is not None and self.embedding_width >= self.width:
            raise ValueError(
                f"embedding_width {self.embedding_width} is not below width {self.width}; leave it out for an embedding"
                f" as wide as the network"
            )
        if self.norm_position == "post" and (self.parallel_residual or not self.first_input_norm):
            raise ValueError(
                "parallel_residual and first_input_norm = false are choices of norms before the branches; set"
                ' norm_position = "pre", or leave them out'
            )
        return self

    @model_validator(mode="after")
    def _norms_or_t_fixup(self) -> "GPTConfig":
        normalised = {
            f"{name} = {value}": f"{name} = {without}"
            for name, value, without, fits in (
                ("norm", f'"{self.norm}"', '"none"', self.norm == "none"),
                ("embedding_norm", "true", "false", not self.embedding_norm),
                ("qk_norm", "true", "false", not self.qk_norm),
            )
            if not fits
        }
        if self.init == "t_fixup" and normalised:
            raise ValueError(
                f'init = "t_fixup" trains without norms, and the network has {" and ".join(normalised)}. Set'
                f" {', '.join(normalised.values())} and, since it needs no warm-up either, schedule.warmup_share = 0 of"
                f" the training; or leave init out"
            )
        if self.init != "t_fixup" and self.norm == "none":
            raise ValueError('norm = "none" diverges from a Gaussian start; set init = "t_fixup", or choose a norm')
        return self

    @model_validator(mode="after")
    def _transferred_from_somewhere(self) -> "GPTConfig":
        if self.mup_base_head_size is not None and self.mup_base_width is None:
            raise ValueError("mup_base_head_size speaks of mup_base_width; set both, or neither")
        if self.mup_base_width is not None and (self.init != "gaussian" or self.embedding_width is not None):
            raise ValueError(
                'mup_base_width scales a Gaussian start of a network as wide as its embedding: set init = "gaussian",'
                " and leave embedding_width out"
            )
        return self

    @property
    def times_as_wide(self) -> float:
        """The width as a multiple of the one that the learning rate is for; 1 where nothing is transferred."""
        return self.width / (self.mup_base_width or self.width)

    @property
    def hidden(self) -> int:
        """Size of the MLP's hidden layer."""
        if self.ffn_width is not None:
            return self.ffn_width
        if is_gated(self.activation):
            return -(-8 * self.width // (3 * GATED_MULTIPLE)) * GATED_MULTIPLE
        return 4 * self.width

    @property
    def table_width(self) -> int:
        """Columns of the embedding."""
        return self.embedding_width or self.width

    @property
    def rotary_size(self) -> int:
        """Values of each head that rotary positions turn."""
        return int(self.width // self.heads * self.rotary_share)

    @property
    def block(self) -> BlockConfig:
        """What each block is made of."""
        return BlockConfig(
            width=self.width,
            heads=self.heads,
            head_size=self.width // self.heads,
            hidden=self.hidden,
            activation=self.activation,
            norm=self.norm,
            parallel_residual=self.parallel_residual,
            norm_eps=self.norm_eps,
            post_norm=self.norm_position == "post",
            qk_norm=self.qk_norm,
            biases=self.biases,
            dropout=self.dropout,
            score_scale=None
            if self.mup_base_head_size is None
            else math.sqrt(self.mup_base_head_size) / (self.width // self.heads),
        )


class T5Config(BaseConfig):
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
            check_heads_divide_width(self.width, self.heads)
        return self

    @property
    def hidden(self) -> int:
        """Size of the MLP's hidden layer."""
        return self.ffn_width or 4 * self.width

    def block(self, *, decoder: bool) -> BlockConfig:
        """What each block of the encoder or decoder is made of."""
        return BlockConfig(
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


NetworkConfig = Annotated[
    Annotated[GPTConfig, Tag("gpt")] | Annotated[BERTConfig, Tag("bert")] | Annotated[T5Config, Tag("t5")],
    Discriminator(
        _architecture,
        custom_error_type="architecture",
        custom_error_message="architecture is gpt, bert or t5",
    ),
]
"""One of the architectures, told apart by `architecture`."""

_NETWORK: TypeAdapter[GPTConfig | BERTConfig | T5Config] = TypeAdapter(NetworkConfig)

OBJECTIVE_OF = {"gpt": "causal_lm", "bert": "masked_lm", "t5": "span_corruption"}
"""What rows each architecture is trained on."""


def times_as_wide(config: "GPTConfig | BERTConfig | T5Config") -> float:
    """A network's width as a multiple of the one that its learning rate was chosen for; 1 where that is its own."""
    return config.times_as_wide if isinstance(config, GPTConfig) else 1.0


def read_network_config(values: Any) -> GPTConfig | BERTConfig | T5Config:
    """The configuration that a description of a model holds; raises pydantic's ValidationError for wrong values."""
    return _NETWORK.validate_python(values)
