"""Networks by their configuration: construction, parameter count, FLOPs of a training token."""

from functools import lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from model.config.block import is_gated
from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.data.row_format import RowFormat
from model.data.span_lengths import Denoising, corrupted_lengths, raw_length
from model.nn.bert import BERT
from model.nn.block import block_range_names
from model.nn.gpt import GPT
from model.nn.t5 import T5

Network = GPT | BERT | T5

MASKED_SHARE = 0.15
"""Share of a row's tokens that BERT's head reads."""


def make_network(config: NetworkConfig, new_rows: int = 0) -> Network:
    """Return a network with uninitialised weights; the last `new_rows` of its tables are separate parameters."""
    if isinstance(config, GPTConfig):
        return GPT(config, new_rows)
    return BERT(config, new_rows) if isinstance(config, BERTConfig) else T5(config, new_rows)


def make_shapes(config: NetworkConfig) -> Network:
    """Return a network on the meta device: shapes without memory."""
    with torch.device("meta"):
        return make_uninitialised(config)


def make_uninitialised(config: NetworkConfig) -> Network:
    """Return a network whose weights nothing has written, on the device or in the mode of the caller."""
    with _WithoutInitialisation():
        return make_network(config)


class _WithoutInitialisation(TorchFunctionMode):
    """Leaves out what `torch.nn.init` draws, which on tensors without memory imports the compiler, for a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == torch.nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def activation_range_names(config: NetworkConfig) -> list[str]:
    """Return the names of the values in METRICS' columns of activations, in order."""
    layers = range(config.layers)
    if isinstance(config, GPTConfig):
        return ["embedding", *block_range_names(layers), "logits"]
    if isinstance(config, BERTConfig):
        return ["embedding", *block_range_names(layers), "masked logits", "next logits"]
    encoder = block_range_names(layers, "encoder ")
    decoder = block_range_names(layers, "decoder ", cross_attention=True)
    return ["encoder embedding", *encoder, "decoder embedding", *decoder, "logits"]


def parameter_count(config: NetworkConfig) -> int:
    """Return the number of parameters, counted on the meta device without memory."""
    return _parameter_count(config)  # pyright: ignore[reportArgumentType]  # frozen models are hashable


@lru_cache(maxsize=256)
def _parameter_count(config: NetworkConfig) -> int:
    # A large network takes .2 s, and a plan asks for each of its layouts.
    return sum(parameter.numel() for parameter in make_shapes(config).parameters())


def active_parameter_count(config: NetworkConfig) -> int:
    """Return the number of parameters that one token uses: of experts, those of `experts_per_token`."""
    if not isinstance(config, GPTConfig) or config.experts is None:
        return parameter_count(config)
    matrices = 3 if is_gated(config.activation) else 2
    idle = config.layers * (config.experts - config.experts_per_token)
    return parameter_count(config) - idle * matrices * config.width * config.hidden


def flops_per_token(config: NetworkConfig, rows: RowFormat | None = None) -> float:
    """Return the FLOPs of one training token: 6 N + 12 L D T (Kaplan et al. 2020; full attention).

    N leaves out tables that are only looked up, and experts that a token does not use. BERT's head reads the masked 15%
    alone. A token of T5 is one of the raw text: kept tokens pass through the encoder, removed spans and sentinels
    through the decoder and its head, as `rows` say; by default 15% in spans of three tokens.
    """
    if isinstance(config, GPTConfig):
        return _flops_of_gpt(config)
    return _flops_of_bert(config) if isinstance(config, BERTConfig) else _flops_of_t5(config, rows)


def _flops_of_gpt(config: GPTConfig) -> float:
    table_weights = 0 if config.tied_head else config.vocab_size * config.table_width
    if config.positions == "learned":
        table_weights += (config.position_offset + config.context) * config.width
    seen = sum(min(config.block_of(layer).window or config.context, config.context) for layer in range(config.layers))
    return 6.0 * (active_parameter_count(config) - table_weights) + 12.0 * config.heads * config.size_of_head * seen


def _flops_of_bert(config: BERTConfig) -> float:
    head = config.vocab_size * config.width + config.width**2
    blocks = config.layers * (4 * config.width**2 + 2 * config.width * config.hidden)
    return 6.0 * (blocks + MASKED_SHARE * head) + 12.0 * config.layers * config.width * config.context


def _flops_of_t5(config: T5Config, rows: RowFormat | None) -> float:
    settings: tuple[float, float, Denoising] = (0.15, 3.0, "random_spans")
    if rows is not None:
        settings = (rows.noise_density, rows.mean_noise_span, rows.denoising)
    raw = raw_length(config.context, *settings)
    lengths = corrupted_lengths(raw, *settings)
    # With prefix_lm both sides are computed at their longest.
    inputs, targets = lengths.inputs, lengths.targets
    inner = config.heads * config.block(decoder=False).head_size
    attention = 4 * config.width * inner
    mlp = (3 if is_gated(config.activation) else 2) * config.width * config.hidden
    encoder = inputs * config.layers * (6.0 * (attention + mlp) + 12.0 * inner * inputs)
    # Keys and values of the encoder are computed for its tokens, queries for the decoder's.
    decoder = targets * config.layers * (6.0 * (1.5 * attention + mlp) + 12.0 * inner * (targets + inputs))
    memory = inputs * config.layers * 6.0 * attention / 2
    head = targets * 6.0 * config.vocab_size * config.width
    return (encoder + decoder + memory + head) / raw
