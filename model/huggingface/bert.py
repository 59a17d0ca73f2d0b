"""BERT (Devlin et al. 2019) as `BertForPreTraining`, and Megatron-LM's (Shoeybi et al. 2019).

Megatron's norms precede each branch and follow the last block, and none follows the embedding. In the next-sentence
head, class 0 means "it follows" there and class 1 does here, so that the rows of that head are reversed.
"""

from dataclasses import replace

from model.config.network import BERTConfig
from model.huggingface.base import Activations, Family, Modules, WeightSource, in_blocks


def _modules(config: BERTConfig) -> Modules:
    after = config.norm_position == "post"
    block = {
        "attention_query": "attention.self.query",
        "attention_key": "attention.self.key",
        "attention_value": "attention.self.value",
        "attention_out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm" if after else "attention.ln",
        "mlp_in": "intermediate.dense",
        "mlp_out": "output.dense",
        "mlp_norm": "output.LayerNorm" if after else "ln",
    }
    return {
        "embedding": "bert.embeddings.word_embeddings",
        "embedding_positions": "bert.embeddings.position_embeddings",
        "embedding_types": "bert.embeddings.token_type_embeddings",
        "masked_head_bias": "cls.predictions.bias",
        "masked_head_in": "cls.predictions.transform.dense",
        "masked_head_norm": "cls.predictions.transform.LayerNorm",
        "next_head_in": "bert.pooler.dense",
        "next_head_answer": WeightSource("cls.seq_relationship", reversed_rows=True),
        "embedding_norm": "bert.embeddings.LayerNorm",
        "final_norm": "bert.encoder.ln",
        **in_blocks("blocks", "bert.encoder.layer.{}", block),
    }


BERT_FAMILY = Family(
    "bert",
    "BertForPreTraining",
    BERTConfig,
    {
        "vocab_size": ("vocab_size", 30_522),
        "context": ("max_position_embeddings", 512),
        "layers": ("num_hidden_layers", 12),
        "heads": ("num_attention_heads", 12),
        "width": ("hidden_size", 768),
        "ffn_width": ("intermediate_size", 3072),
        "norm_eps": ("layer_norm_eps", 1e-12),
    },
    Activations("hidden_act", "gelu", {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}),
    _modules,
    # The decoder of masked tokens is the embedding, with a bias.
    {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    body="bert.",
    no_weights=r"\.position_ids$",
    expected={
        "type_vocab_size": 2,
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    written={
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "dropout",
        "initializer_range": "init_std",
    },
    write_more=lambda _: {"type_vocab_size": 2},
)

MEGATRON_BERT = replace(
    BERT_FAMILY,
    model_type="megatron-bert",
    class_name="MegatronBertForPreTraining",
    names={
        **BERT_FAMILY.names,
        "vocab_size": ("vocab_size", 29_056),
        "layers": ("num_hidden_layers", 24),
        "heads": ("num_attention_heads", 16),
        "width": ("hidden_size", 1024),
        "ffn_width": ("intermediate_size", 4096),
    },
    fixed={"norm_position": "pre", "embedding_norm": False},
)
