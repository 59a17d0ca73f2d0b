"""BERT (Devlin et al. 2019) as `BertForPreTraining`, and Megatron-LM's (Shoeybi et al. 2019).

Megatron's norms precede each branch and follow the last block, and none follows the embedding. In the next-sentence
head, class 0 means "it follows" there and class 1 does here, so that the rows of that head are reversed.
"""

import functools
from dataclasses import replace
from typing import Any

from model.config.network import BERTConfig
from model.huggingface.base import Family, WeightSource, linear, name_of, read_named, write_named
from model.huggingface.settings import Settings

BERT_ALIASES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""The decoder of masked tokens is the embedding, with the bias `cls.predictions.bias`."""

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}


_NAMES = {
    "vocab_size": ("vocab_size", 30_522),
    "context": ("max_position_embeddings", 512),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "width": ("hidden_size", 768),
    "ffn_width": ("intermediate_size", 3072),
    "norm_eps": ("layer_norm_eps", 1e-12),
}


def bert_weight_map(config: BERTConfig) -> dict[str, WeightSource]:
    weight_map = {
        "embedding.weight": WeightSource("bert.embeddings.word_embeddings.weight"),
        "embedding_positions.weight": WeightSource("bert.embeddings.position_embeddings.weight"),
        "embedding_types.weight": WeightSource("bert.embeddings.token_type_embeddings.weight"),
        "masked_head_bias": WeightSource("cls.predictions.bias"),
        **linear("masked_head_in", "cls.predictions.transform.dense", biases=True),
        **linear("masked_head_norm", "cls.predictions.transform.LayerNorm", biases=True),
        **linear("next_head_in", "bert.pooler.dense", biases=True),
        "next_head_answer.weight": WeightSource("cls.seq_relationship.weight", reversed_rows=True),
        "next_head_answer.bias": WeightSource("cls.seq_relationship.bias", reversed_rows=True),
    }
    if config.norm_position == "post":
        attention_norm, mlp_norm = "attention.output.LayerNorm", "output.LayerNorm"
        weight_map |= linear("embedding_norm", "bert.embeddings.LayerNorm", biases=True)
    else:
        attention_norm, mlp_norm = "attention.ln", "ln"
        weight_map |= linear("final_norm", "bert.encoder.ln", biases=True)
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            weight_map |= linear(f"{ours}.attention_{part}", f"{theirs}.attention.self.{part}", biases=True)
        weight_map |= linear(f"{ours}.attention_out", f"{theirs}.attention.output.dense", biases=True)
        weight_map |= linear(f"{ours}.attention_norm", f"{theirs}.{attention_norm}", biases=True)
        weight_map |= linear(f"{ours}.mlp_in", f"{theirs}.intermediate.dense", biases=True)
        weight_map |= linear(f"{ours}.mlp_out", f"{theirs}.output.dense", biases=True)
        weight_map |= linear(f"{ours}.mlp_norm", f"{theirs}.{mlp_norm}", biases=True)
    return weight_map


def _read(settings: Settings, **norms: Any) -> BERTConfig:
    settings.expect("type_vocab_size", 2)
    settings.expect("position_embedding_type", "absolute")
    settings.expect("is_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("tie_word_embeddings", True)
    return settings.build(
        BERTConfig,
        **read_named(settings, _NAMES),
        activation=settings.lookup("hidden_act", _ACTIVATIONS, "gelu"),
        **norms,
    )


def _write(config: BERTConfig) -> dict[str, Any]:
    return {
        **write_named(config, _NAMES),
        "hidden_act": name_of(config.activation, _ACTIVATIONS, "gelu"),
        "type_vocab_size": 2,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "initializer_range": config.init_std,
    }


BERT_FAMILY = Family(
    "bert",
    "BertForPreTraining",
    _read,
    _write,
    bert_weight_map,
    BERT_ALIASES,
    body="bert.",
    no_weights=r"\.position_ids$",
)

MEGATRON_BERT = replace(
    BERT_FAMILY,
    model_type="megatron-bert",
    class_name="MegatronBertForPreTraining",
    read=functools.partial(_read, norm_position="pre", embedding_norm=False),
)
