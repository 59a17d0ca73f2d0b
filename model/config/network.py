"""Network configurations: one frozen model for each architecture, distinguished by the key `architecture`.

Imports no PyTorch, since checking a recipe imports it.
"""

import json
import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from model.config import EXPERT, BaseConfig
from model.config.block import Activation, BlockConfig, Norm, NormPosition, QKNorm, is_gated
from model.config.rotary import RotaryScaling

DEFAULT_STD = 0.02
"""Standard deviation of initial weights of GPT-2 and BERT."""

GATED_MULTIPLE = 8
"""The default hidden size of a gated MLP is rounded up to a multiple of this, which makes products faster."""

Objective = Literal["causal_lm", "masked_lm", "span_corruption"]
"""What is predicted: each next token (GPT), masked tokens and whether sentence B follows A (BERT), removed spans
(T5)."""

OBJECTIVE_OF: dict[str, Objective] = {"gpt": "causal_lm", "bert": "masked_lm", "t5": "span_corruption"}
"""Architecture -> `chunk.objective`."""


class GPTConfig(BaseConfig):
    """A decoder that predicts the next token, by default of Qwen 3's shape: RMSNorm before each branch, SwiGLU, rotary
    positions, norms of queries and keys, no biases, tied head. `transformers` has it as `Qwen3ForCausalLM`."""

    architecture: Literal["gpt"] = "gpt"
    """The kind of network: `gpt`, a decoder trained on next tokens; `bert`, an encoder trained on masked tokens and
    sentence pairs; `t5`, an encoder and a decoder trained on removed spans. It decides `chunk.objective`."""
    vocab_size: Annotated[int, EXPERT] = Field(default=4096, ge=2, le=2**22)
    """Rows of the embedding: the tokenizer's vocabulary size."""
    context: int = Field(default=256, ge=8, le=2**17)
    """Longest sequence, tokens."""
    layers: int = Field(default=4, ge=1, le=512)
    """Transformer blocks."""
    heads: int = Field(default=4, ge=1, le=512)
    """Attention heads; without `head_size`, `width` must be a multiple of them, and of twice as many with rotary
    positions, which rotate pairs."""
    kv_heads: Annotated[int | None, EXPERT] = Field(default=None, ge=1, le=512)
    """Heads of keys and values, a divisor of `heads`: grouped-query attention (Ainslie et al. 2023), whose cache of
    keys and values is smaller. By default as many as `heads`."""
    head_size: Annotated[int | None, EXPERT] = Field(default=None, ge=2, le=2**12)
    """Size of each head; `width` divided by `heads` by default."""
    width: int = Field(default=256, ge=8, le=2**16)
    """Size of the residual stream (d_model)."""
    ffn_width: Annotated[int | None, EXPERT] = Field(default=None, ge=8)
    """Size of the hidden layer of each MLP; four times `width` by default, and 8/3 of it with a gated activation, whose
    third matrix makes the number of weights the same."""
    experts: Annotated[int | None, EXPERT] = Field(default=None, ge=2, le=512)
    """Mixture of experts: copies of the MLP (`ffn_width` each), of which a token uses `experts_per_token` (Mixtral).
    More weights at the same work for each token; none by default."""
    experts_per_token: Annotated[int, EXPERT] = Field(default=2, ge=1, le=64)
    """`experts`: how many a token uses. Their outputs are weighted by the router's probabilities; no token is left
    out."""
    experts_sum_to_one: Annotated[bool, EXPERT] = True
    """`experts`: whether the probabilities of a token's experts are divided by their sum (Mixtral), or weigh as they
    are (Switch, OLMoE)."""
    balance: Annotated[float, EXPERT] = Field(default=0.01, ge=0, le=1)
    """`experts`: weight of the loss that keeps them in equal use (Switch Transformer, equations 4 to 6, which has
    0.01). Reported losses are the cross entropy alone."""
    embedding_width: Annotated[int | None, EXPERT] = Field(default=None, ge=8, le=2**16)
    """Columns of the embedding where fewer than `width` (YaLM-100B: 2048 of 10240), which saves most with a large
    vocabulary; `width` by default."""
    embedding_projection: Annotated[Literal["matrix", "padding"], EXPERT] = "matrix"
    """With `embedding_width`: how embeddings become as wide as the stream, and the reverse before the head. `matrix`:
    a matrix each (OPT-350M). `padding`: zeros are appended, and a matrix, GELU and a norm precede the head
    (YaLM-100B)."""
    positions: Annotated[Literal["rotary", "learned", "relative"], EXPERT] = "rotary"
    """Position encoding: `rotary` rotates queries and keys (GPT-NeoX, LLaMA), `learned` adds a row of a table to the
    embedding (GPT-2, OPT), `relative` adds a learned number for each range of distances to attention scores (T5)."""
    position_offset: Annotated[int, EXPERT] = Field(default=0, ge=0, le=1024)
    """`learned`: unused rows of the table before that of the first token. OPT has 2."""
    rotary_share: Annotated[float, EXPERT] = Field(default=1.0, gt=0, le=1)
    """`rotary`: share of each head's values that are rotated (rotary_pct); a quarter in GPT-NeoX-20B."""
    rotary_base: Annotated[float, EXPERT] = Field(default=10_000.0, gt=1, le=1e9)
    """`rotary`: base of the angles (rope_theta); larger for longer contexts."""
    rotary_scaling: Annotated[RotaryScaling | None, EXPERT] = None
    """`rotary`: slower rotations for texts longer than those of a first training; none by default."""
    window: Annotated[int | None, EXPERT] = Field(default=None, ge=1, le=2**20)
    """Tokens that a token sees, itself included (sliding window, Mistral 7B); by default all before it."""
    window_from_layer: Annotated[int, EXPERT] = Field(default=0, ge=0, le=512)
    """`window`: the first block that has it, counted from 0 (Qwen 2); blocks before it see all."""
    activation: Annotated[Activation, EXPERT] = "swiglu"
    """Non-linearity of the MLP: `relu` (OPT), `gelu`, `gelu_tanh` (its approximation in GPT-2), or a gated one: `geglu`
    (YaLM-100B), `geglu_tanh` (T5 v1.1), `swiglu` (LLaMA, PaLM)."""
    norm: Annotated[Norm, EXPERT] = "rmsnorm"
    """Normalisation of the residual stream: `layernorm`, `rmsnorm`, which subtracts no mean and is cheaper (LLaMA, T5),
    or `none`, which only `init = "t_fixup"` can train. There is no batch norm: the loss of a sequence would depend on
    the others of its batch."""
    norm_position: Annotated[NormPosition, EXPERT] = "pre"
    """Position of norms: before attention and MLP, which leaves the residual stream itself unchanged (`pre`, GPT-2);
    after the sum of stream and branch (`post`, the first Transformer, BERT), which needs a longer warm-up; or after
    attention and MLP, before their sum with the stream (`branch`, OLMo 2)."""
    norm_eps: Annotated[float, EXPERT] = Field(default=1e-5, gt=0, le=1e-2)
    """Added to the variance before its root is taken."""
    parallel_residual: Annotated[bool, EXPERT] = False
    """Whether attention and MLP of a block read the same stream (GPT-NeoX, PaLM), instead of the MLP reading the sum of
    stream and attention."""
    embedding_norm: Annotated[bool, EXPERT] = False
    """A norm right after the embedding, the stabilisation of YaLM-100B and BLOOM; no class of `transformers` with
    rotary positions has it."""
    first_input_norm: Annotated[bool, EXPERT] = True
    """`pre`: whether the first block normalises its input; YaLM-100B has only the embedding's norm there."""
    qk_norm: Annotated[QKNorm, EXPERT] = "head"
    """RMSNorm of queries and keys, which bounds attention scores (Dehghani et al. 2023) and stabilises high learning
    rates: over each `head` (Qwen 3), or over `all` heads together (OLMo 2)."""
    biases: Annotated[bool, EXPERT] = False
    """Whether matrices and LayerNorms have biases; LLaMA and PaLM have none."""
    qkv_biases: Annotated[bool | None, EXPERT] = None
    """Whether queries, keys and values have biases, where it differs from `biases` (Qwen 2)."""
    tied_head: Annotated[bool, EXPERT] = True
    """Whether the output head is the embedding (Press and Wolf 2017), or a separate matrix."""
    head_bias: Annotated[bool, EXPERT] = False
    """Whether the output head has a bias (YaLM-100B)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability: after the embedding, in attention weights, and after attention and MLP. It helps where the
    same text is read many times, and hurts elsewhere."""
    z_loss: Annotated[float, EXPERT] = Field(default=0.0, ge=0, le=1)
    """Weight of the squared logarithm of the softmax's denominator, added to the objective (PaLM: 1e-4), which keeps
    logits from drifting. Reported losses are the cross entropy alone."""
    attention: Annotated[Literal["causal", "prefix"], EXPERT] = "causal"
    """What a token sees of its sequence: `causal`, itself and earlier tokens; `prefix`, also all of a prefix (Liu et
    al. 2018; Raffel et al. 2020, section 3.2.1). Its length is drawn for each sequence and epoch, from one token to all
    but one; only later tokens carry loss, half of a sequence on average. Where such a model generates or scores text,
    the prompt is the prefix."""
    attend_within_documents: Annotated[bool, EXPERT] = False
    """Whether a token sees only its own document in a packed sequence, as in a text by itself. Otherwise it sees
    earlier documents too (GPT-3). The mask makes attention slower and takes memory."""
    init: Annotated[Literal["gaussian", "t_fixup"], EXPERT] = "gaussian"
    """Initialisation: `gaussian`, or `t_fixup` (Huang et al. 2020), which needs neither norms nor
    warm-up and excludes both."""
    init_std: Annotated[float | None, EXPERT] = Field(default=None, gt=0, le=1)
    """`gaussian`: standard deviation of initial weights (GPT-2: 0.02). By default 1 / sqrt(width) for matrices in
    blocks and 0.02 for tables: with 0.02 for all, blocks of small networks add next to nothing at first, and training
    learns for long only how frequent tokens are. For output projections of residual branches it is divided by
    sqrt(2 * layers) (GPT-2, section 2.3)."""
    mup_base_width: Annotated[int | None, EXPERT] = Field(default=None, ge=8, le=2**16)
    """Width at which the learning rate was chosen, to transfer it to this one: the maximal update parametrisation (Yang
    et al. 2022). Initialisation and learning rate of matrices in blocks, and logits, are scaled by the ratio of the
    widths; at that width itself nothing changes. Keep the size of a head, or set the old one as
    `mup_base_head_size`."""
    mup_base_head_size: Annotated[int | None, EXPERT] = Field(default=None, ge=2, le=2**12)
    """Size of a head at `mup_base_width`, where it was another: attention scores are then divided by the size of a head
    instead of its root."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "GPTConfig":
        if self.head_size is None:
            if self.positions == "rotary" and self.rotary_share == 1 and self.width % (2 * self.heads):
                raise ValueError(
                    f"width {self.width} is not a multiple of 2 x heads = {2 * self.heads}; rotary positions rotate"
                    f" pairs within each head. Choose width"
                    f" {2 * self.heads * max(1, round(self.width / (2 * self.heads)))}, or set head_size"
                )
            check_heads_divide_width(self.width, self.heads)
        if self.positions == "rotary" and (self.rotary_size < 2 or self.rotary_size % 2):
            raise ValueError(
                f"rotary_share {self.rotary_share:g} of the {self.size_of_head} values of a head are"
                f" {self.rotary_size}, and rotary positions rotate pairs. Choose a share that gives an even number"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            fitting = max(n for n in range(1, self.kv_heads + 1) if self.heads % n == 0)
            raise ValueError(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}, and each head of keys is read by the"
                f" same number of queries. Choose kv_heads {fitting}"
            )
        return self

    @model_validator(mode="after")
    def _dependent_options_are_set(self) -> "GPTConfig":
        if self.position_offset and self.positions != "learned":
            raise ValueError('position_offset needs a table of positions; set positions = "learned", or leave it out')
        if self.embedding_width is None and self.embedding_projection != "matrix":
            raise ValueError("embedding_projection needs a narrow embedding; set embedding_width, or leave it out")
        if self.embedding_width is not None and self.embedding_width >= self.width:
            raise ValueError(
                f"embedding_width {self.embedding_width} is not below width {self.width}; leave it out for an embedding"
                f" as wide as the network"
            )
        if self.rotary_scaling is not None and self.positions != "rotary":
            raise ValueError('rotary_scaling needs rotary positions; set positions = "rotary", or leave it out')
        if self.rotates_by_length and self.rotary_size == 2:
            raise ValueError(
                "rotary_scaling.kind dynamic slows all pairs of values but the first, and only one pair of a head is"
                " rotated. Choose a larger head_size or rotary_share, or another kind"
            )
        if self.window_from_layer and self.window is None:
            raise ValueError("window_from_layer needs window, the number of tokens that a token sees; set both")
        if self.norm_position != "pre" and (self.parallel_residual or not self.first_input_norm):
            raise ValueError(
                "parallel_residual and first_input_norm = false need norms before the branches; set"
                ' norm_position = "pre", or leave them out'
            )
        return self

    @model_validator(mode="after")
    def _experts_fit(self) -> "GPTConfig":
        if self.experts is None:
            for name in ("experts_per_token", "experts_sum_to_one", "balance"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} needs experts, the number of copies of each MLP; set both or neither")
            return self
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than experts {self.experts}. Choose"
                f" experts_per_token {self.experts} or less"
            )
        if self.biases or self.init != "gaussian":
            raise ValueError(
                "experts have no biases and a Gaussian start: set biases = false (qkv_biases = true keeps those of"
                ' attention) and init = "gaussian", or leave experts out'
            )
        return self

    @model_validator(mode="after")
    def _norms_or_t_fixup(self) -> "GPTConfig":
        norms = {"norm": "none", "embedding_norm": False, "qk_norm": "none"}
        normalised = {
            f"{name} = {json.dumps(getattr(self, name))}": f"{name} = {json.dumps(without)}"
            for name, without in norms.items()
            if getattr(self, name) != without
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
    def _mup_has_a_base(self) -> "GPTConfig":
        if self.mup_base_head_size is not None and self.mup_base_width is None:
            raise ValueError("mup_base_head_size needs mup_base_width; set both, or neither")
        if self.mup_base_width is not None and (self.init != "gaussian" or self.embedding_width is not None):
            raise ValueError(
                'mup_base_width needs Gaussian initialisation and an embedding of full width: set init = "gaussian",'
                " and leave embedding_width out"
            )
        return self

    @property
    def table_std(self) -> float:
        """Standard deviation of initial tables and heads."""
        return self.init_std or DEFAULT_STD

    @property
    def matrix_std(self) -> float:
        """Standard deviation of initial matrices in blocks, at the width that the learning rate was chosen for."""
        return self.init_std or (self.mup_base_width or self.width) ** -0.5

    @property
    def width_multiplier(self) -> float:
        """The width as a multiple of `mup_base_width`; 1 without it."""
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
        """Values of each head that are rotated."""
        return int(self.size_of_head * self.rotary_share)

    @property
    def rotates_by_length(self) -> bool:
        """Whether rotations depend on the length of the text."""
        return self.rotary_scaling is not None and self.rotary_scaling.kind == "dynamic"

    @property
    def size_of_head(self) -> int:
        """Values of each head."""
        return self.head_size or self.width // self.heads

    def block_of(self, layer: int) -> BlockConfig:
        """Return the configuration of one block."""
        has_window = self.window is not None and layer >= self.window_from_layer
        return replace(
            self.block,
            input_norm=self.first_input_norm or layer > 0,
            window=self.window if has_window else None,
        )

    @property
    def block(self) -> BlockConfig:
        """What the configurations of all blocks have in common."""
        return BlockConfig(
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.size_of_head,
            hidden=self.hidden,
            activation=self.activation,
            norm=self.norm,
            parallel_residual=self.parallel_residual,
            norm_eps=self.norm_eps,
            norm_position=self.norm_position,
            qk_norm=self.qk_norm,
            biases=self.biases,
            qkv_biases=self.qkv_biases,
            experts=self.experts,
            experts_per_token=self.experts_per_token,
            experts_sum_to_one=self.experts_sum_to_one,
            dropout=self.dropout,
            score_scale=None
            if self.mup_base_head_size is None
            else math.sqrt(self.mup_base_head_size) / self.size_of_head,
        )


class BERTConfig(BaseConfig):
    """An encoder that predicts masked tokens and whether sentence B follows A (Devlin et al. 2019)."""

    architecture: Literal["bert"] = "bert"
    """The kind of network: `gpt`, a decoder trained on next tokens; `bert`, an encoder trained on masked tokens and
    sentence pairs; `t5`, an encoder and a decoder trained on removed spans. It decides `chunk.objective`."""
    vocab_size: Annotated[int, EXPERT] = Field(default=4096, ge=2, le=2**22)
    """Rows of the embedding: the tokenizer's vocabulary size."""
    context: int = Field(default=256, ge=8, le=2**17)
    """Longest sequence, tokens; as many positions are learned."""
    layers: int = Field(default=4, ge=1, le=512)
    """Transformer blocks."""
    heads: int = Field(default=4, ge=1, le=512)
    """Attention heads; `width` must be a multiple of them."""
    width: int = Field(default=256, ge=8, le=2**16)
    """Size of the residual stream (hidden_size)."""
    ffn_width: Annotated[int | None, EXPERT] = Field(default=None, ge=8)
    """Size of the hidden layer of each MLP; four times `width` by default."""
    activation: Annotated[Literal["relu", "gelu", "gelu_tanh"], EXPERT] = "gelu"
    """Non-linearity of the MLP and of the head."""
    norm_position: Annotated[Literal["pre", "post"], EXPERT] = "post"
    """Position of LayerNorms: after the sum of stream and branch (`post`, BERT), or before each branch (`pre`), which
    trains at higher rates and without warm-up (Xiong et al. 2020)."""
    embedding_norm: Annotated[bool, EXPERT] = True
    """A norm right after the embedding (BERT). Without it, and with norms before each branch, this is Megatron-LM's
    BERT (Shoeybi et al. 2019), which `transformers` has too."""
    norm_eps: Annotated[float, EXPERT] = Field(default=1e-12, gt=0, le=1e-2)
    """Added to the variance before its root is taken."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability: after the embedding, in attention weights, and after attention and MLP (BERT: 0.1)."""
    init_std: Annotated[float, EXPERT] = Field(default=DEFAULT_STD, gt=0, le=1)
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "BERTConfig":
        check_heads_divide_width(self.width, self.heads)
        return self

    @model_validator(mode="after")
    def _input_is_normalised(self) -> "BERTConfig":
        if not self.embedding_norm and self.norm_position == "post":
            raise ValueError(
                'embedding_norm = false with norm_position = "post" leaves the input of the first block alone without a'
                ' norm, which no published network does. Set norm_position = "pre", or leave embedding_norm out'
            )
        return self

    @property
    def hidden(self) -> int:
        """Size of the MLP's hidden layer."""
        return self.ffn_width or 4 * self.width

    @property
    def block(self) -> BlockConfig:
        """The configuration of each block."""
        return BlockConfig(
            width=self.width,
            heads=self.heads,
            head_size=self.width // self.heads,
            hidden=self.hidden,
            activation=self.activation,
            norm="layernorm",
            norm_eps=self.norm_eps,
            norm_position=self.norm_position,
            dropout=self.dropout,
        )


class T5Config(BaseConfig):
    """An encoder, and a decoder that writes what the encoder's text lacks (Raffel et al. 2020): RMSNorm before each
    branch, relative positions, no biases. The defaults are those of the first T5."""

    architecture: Literal["t5"] = "t5"
    """The kind of network: `gpt`, a decoder trained on next tokens; `bert`, an encoder trained on masked tokens and
    sentence pairs; `t5`, an encoder and a decoder trained on removed spans. It decides `chunk.objective`."""
    vocab_size: Annotated[int, EXPERT] = Field(default=4096, ge=2, le=2**22)
    """Rows of the embedding, which encoder and decoder share: the tokenizer's vocabulary size."""
    context: int = Field(default=256, ge=8, le=2**17)
    """Longest training input of the encoder, tokens, with end-of-text. The network itself has no limit."""
    layers: int = Field(default=4, ge=1, le=512)
    """Blocks of the encoder, and of the decoder."""
    heads: int = Field(default=4, ge=1, le=512)
    """Attention heads."""
    head_size: Annotated[int | None, EXPERT] = Field(default=None, ge=1, le=2**12)
    """Size of each head (d_kv); `width` divided by `heads` by default."""
    width: int = Field(default=256, ge=8, le=2**16)
    """Size of the residual stream (d_model)."""
    ffn_width: Annotated[int | None, EXPERT] = Field(default=None, ge=8)
    """Size of the hidden layer of each MLP (d_ff); four times `width` by default."""
    activation: Annotated[Activation, EXPERT] = "relu"
    """Non-linearity of the MLP: `relu` (T5), or `geglu_tanh` (T5 v1.1, Flan-T5)."""
    tied_head: Annotated[bool, EXPERT] = True
    """Whether the output head is the embedding, scaled by 1 / sqrt(width) (T5), or a separate matrix (T5 v1.1)."""
    norm_eps: Annotated[float, EXPERT] = Field(default=1e-6, gt=0, le=1e-2)
    """Added to the mean square before its root is taken."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability: after the embedding, in attention weights, after each branch and after the last norm."""
    z_loss: Annotated[float, EXPERT] = Field(default=0.0, ge=0, le=1)
    """Weight of the squared logarithm of the softmax's denominator, added to the objective (T5's program: 1e-4)."""

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
        """Return the configuration of each block of encoder or decoder."""
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


def _architecture(values: Any) -> str:
    """Return the tag of a configuration; without one it is `gpt`, as in models of earlier versions."""
    found = values.get("architecture", "gpt") if isinstance(values, dict) else getattr(values, "architecture", "gpt")
    return str(found)


NetworkConfig = Annotated[
    Annotated[GPTConfig, Tag("gpt")] | Annotated[BERTConfig, Tag("bert")] | Annotated[T5Config, Tag("t5")],
    Discriminator(
        _architecture,
        custom_error_type="architecture",
        custom_error_message="architecture is gpt, bert or t5",
    ),
]
"""One of the architectures, selected by the key `architecture`."""

_NETWORK: TypeAdapter[GPTConfig | BERTConfig | T5Config] = TypeAdapter(NetworkConfig)


def read_network_config(values: Any) -> GPTConfig | BERTConfig | T5Config:
    """Return the configuration in a description of a model; pydantic's ValidationError for wrong values."""
    return _NETWORK.validate_python(values)


def width_multiplier(config: "GPTConfig | BERTConfig | T5Config") -> float:
    """Return the width as a multiple of the one that the learning rate was chosen for; 1 without `mup_base_width`."""
    return config.width_multiplier if isinstance(config, GPTConfig) else 1.0


def check_heads_divide_width(width: int, heads: int) -> None:
    """Raise ValueError, which suggests a width, where `heads` does not divide `width`."""
    if width % heads:
        raise ValueError(
            f"width {width} is not a multiple of heads = {heads}. Choose width {heads * max(1, round(width / heads))}"
        )
