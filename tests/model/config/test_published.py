"""Networks with the weights of `transformers` give its logits, and weights round-trip unchanged."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model.config.network import BERTConfig, T5Config
from model.huggingface.base import WeightMap, by_published_name, export_weights
from model.huggingface.bert import BERT_FAMILY
from model.huggingface.decoders import GPT2
from model.huggingface.settings import Settings
from model.huggingface.t5 import T5_FAMILY
from model.nn.bert import BERT
from model.nn.gpt import GPT
from model.nn.t5 import T5

transformers = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {"vocab_size": 40, "layers": 2, "heads": 2, "width": 16}
TOKENS = torch.randint(3, 40, (3, 12), generator=torch.Generator().manual_seed(2))
IS_TOKEN = torch.arange(12) < torch.tensor([12, 7, 1])[:, None]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def shaken(network: nn.Module) -> nn.Module:
    """The network with random numbers in every weight, biases and norms too, large enough that each one matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            # With 0.3, float32 rounds logits of T5 (its attention is unscaled) by 2e-5 on some processors.
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


def without(weights: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name not in aliases}


def import_weights(
    published: Mapping[str, Tensor], weight_map: WeightMap, aliases: Mapping[str, str]
) -> dict[str, Tensor]:
    """Convert published weights to ours, by name; `aliases` are published names that repeat another tensor."""
    named = by_published_name(weight_map)
    assert named.keys() == published.keys() - aliases.keys()
    weights: dict[str, Tensor] = {}
    for name, parts in named.items():
        for ours in parts:
            weight_map[ours].add_to(weights, ours, name, published[name])
    return weights


def assert_same(given: Mapping[str, Tensor], published: Mapping[str, Tensor]) -> None:
    assert given.keys() == published.keys()
    assert [name for name in given if not torch.equal(given[name], published[name])] == []


def published_gpt2() -> nn.Module:
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return shaken(transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=40, **sizes)))


def test_gpt2() -> None:
    theirs = published_gpt2()
    config = GPT2.read(Settings({"vocab_size": 40, "n_positions": 16, "n_layer": 2, "n_head": 2, "n_embd": 16}))
    ours = GPT(config).eval()
    ours.load_state_dict(
        import_weights(theirs.state_dict(), GPT2.weight_map(config, ours.state_dict()), GPT2.aliases(config))
    )
    torch.testing.assert_close(ours(TOKENS), theirs(TOKENS).logits, **CLOSE)
    assert_same(
        export_weights(ours.state_dict(), GPT2.weight_map(config, ours.state_dict())),
        without(theirs.state_dict(), GPT2.aliases(config)),
    )


def test_bert() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = transformers.BertConfig(vocab_size=40, max_position_embeddings=16, **sizes)
    theirs = shaken(transformers.BertForPreTraining(settings))
    config = BERTConfig(context=16, ffn_width=24, **SIZES)
    ours = BERT(config).eval()
    ours.load_state_dict(
        import_weights(
            theirs.state_dict(), BERT_FAMILY.weight_map(config, ours.state_dict()), BERT_FAMILY.aliases(config)
        )
    )
    types = (torch.arange(12) >= 4).long().expand(3, -1) * IS_TOKEN
    expected = theirs(input_ids=TOKENS, token_type_ids=types, attention_mask=IS_TOKEN.long())
    hidden = ours.hidden(TOKENS, types, IS_TOKEN)
    positions = torch.tensor([[2, 7, 11], [0, 6, 0], [0, 0, 0]])
    at_positions = expected.prediction_logits.gather(1, positions[..., None].expand(-1, -1, 40))
    torch.testing.assert_close(ours.masked_logits(hidden, positions), at_positions, **CLOSE)
    torch.testing.assert_close(ours.next_logits(hidden), expected.seq_relationship_logits.flip(1), **CLOSE)
    assert_same(
        export_weights(ours.state_dict(), BERT_FAMILY.weight_map(config, ours.state_dict())),
        without(theirs.state_dict(), BERT_FAMILY.aliases(config)),
    )


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_t5(version: str) -> None:
    first = version == "1.0"
    # A head size that is not width over heads, as in T5 v1.1's small.
    sizes = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    projection = "relu" if first else "gated-gelu"
    settings = transformers.T5Config(
        vocab_size=40, feed_forward_proj=projection, tie_word_embeddings=first, decoder_start_token_id=0, **sizes
    )
    theirs = transformers.T5ForConditionalGeneration(settings)
    if not first:
        # transformers 5 ties the head whatever its settings say, until it loads weights with one of its own.
        theirs.lm_head.weight = nn.Parameter(torch.zeros(40, 16))
    shaken(theirs)
    activation = "relu" if first else "geglu_tanh"
    config = T5Config(head_size=6, ffn_width=24, activation=activation, tied_head=first, **SIZES)
    ours = T5(config).eval()
    aliases = T5_FAMILY.aliases(config)
    ours.load_state_dict(import_weights(theirs.state_dict(), T5_FAMILY.weight_map(config, ours.state_dict()), aliases))
    decoder_inputs = TOKENS[:, :9].flip(0)
    expected = theirs(input_ids=TOKENS, attention_mask=IS_TOKEN.long(), decoder_input_ids=decoder_inputs)
    logits = ours.logits(ours.decode(decoder_inputs, ours.encode(TOKENS, IS_TOKEN), IS_TOKEN))
    torch.testing.assert_close(logits, expected.logits, **CLOSE)
    assert_same(
        export_weights(ours.state_dict(), T5_FAMILY.weight_map(config, ours.state_dict())),
        without(theirs.state_dict(), aliases),
    )
