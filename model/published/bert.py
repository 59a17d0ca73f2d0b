"""BERT (Devlin et al. 2019), as `BertForPreTraining` names its weights.

Its answer 0 to whether the second stretch follows is "it does", and ours 1, so that rows of that head change places
when its weights are taken over.
"""

from collections.abc import Mapping

from torch import Tensor

from model.architecture import BERTConfig
from model.published.origin import Origin, give_back, linear, take_over

BERT_COPIES = frozenset({"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"})
"""The decoder of hidden tokens is the embedding, with the bias `cls.predictions.bias`."""
_ANSWERS = ("next_head_answer.weight", "next_head_answer.bias")


def bert_origins(config: BERTConfig) -> dict[str, Origin]:
    """Where each weight of ours comes from."""
    origins = {
        "embedding.weight": Origin(("bert.embeddings.word_embeddings.weight",)),
        "embedding_positions.weight": Origin(("bert.embeddings.position_embeddings.weight",)),
        "embedding_types.weight": Origin(("bert.embeddings.token_type_embeddings.weight",)),
        "masked_head_bias": Origin(("cls.predictions.bias",)),
        **linear("embedding_norm", "bert.embeddings.LayerNorm", biases=True),
        **linear("masked_head_in", "cls.predictions.transform.dense", biases=True),
        **linear("masked_head_norm", "cls.predictions.transform.LayerNorm", biases=True),
        **linear("next_head_in", "bert.pooler.dense", biases=True),
        **linear("next_head_answer", "cls.seq_relationship", biases=True),
    }
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"bert.encoder.layer.{layer}"
        projections = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        origins |= linear(f"{ours}.attention_in", *projections, biases=True)
        origins |= linear(f"{ours}.attention_out", f"{theirs}.attention.output.dense", biases=True)
        origins |= linear(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm", biases=True)
        origins |= linear(f"{ours}.mlp_in", f"{theirs}.intermediate.dense", biases=True)
        origins |= linear(f"{ours}.mlp_out", f"{theirs}.output.dense", biases=True)
        origins |= linear(f"{ours}.mlp_norm", f"{theirs}.output.LayerNorm", biases=True)
    return origins


def take_over_bert(published: Mapping[str, Tensor], config: BERTConfig) -> dict[str, Tensor]:
    """Our weights of a published BERT; InputError where it is another network."""
    weights = take_over(published, bert_origins(config), BERT_COPIES)
    return weights | {name: weights[name].flip(0) for name in _ANSWERS}


def give_back_bert(weights: Mapping[str, Tensor], config: BERTConfig) -> dict[str, Tensor]:
    """The published weights of our BERT, without copies."""
    turned = dict(weights) | {name: weights[name].flip(0) for name in _ANSWERS}
    return give_back(turned, bert_origins(config))
