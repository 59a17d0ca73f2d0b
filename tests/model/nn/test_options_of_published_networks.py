"""Options of published networks: narrow embeddings, parallel branches, offset or partly rotary positions."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn import functional as F

from model.config.network import GPTConfig
from model.nn.block import AttentionContext, KeyValueCache
from model.nn.factory import flops_per_token, parameter_count
from model.nn.gpt import GPT
from model.nn.rotary import apply_rotary, rotary_table

SIZES: dict[str, Any] = {"vocab_size": 40, "context": 16, "layers": 2, "heads": 2, "width": 16, "init_std": 0.3}
SIZES |= {"norm": "layernorm", "activation": "gelu", "qk_norm": "none", "biases": True, "embedding_norm": True}
TOKENS = torch.randint(0, 40, (3, 16), generator=torch.Generator().manual_seed(2))
YALM: dict[str, Any] = {"embedding_width": 8, "embedding_projection": "padding", "first_input_norm": False}
CHOICES = st.fixed_dictionaries(
    {
        "positions": st.sampled_from(["rotary", "learned", "relative"]),
        "embedding_width": st.sampled_from([None, 8]),
        "parallel_residual": st.booleans(),
        "embedding_norm": st.booleans(),
        "first_input_norm": st.booleans(),
        "tied_head": st.booleans(),
        "head_bias": st.booleans(),
    }
)


def gpt(**choices: Any) -> GPT:
    return GPT(GPTConfig.model_validate(SIZES | choices)).initialise(1).eval()


@settings(max_examples=40, deadline=None)
@given(choices=CHOICES, padding=st.booleans(), share=st.sampled_from([0.25, 0.5, 1.0]), offset=st.integers(0, 3))
def test_any_choice_is_causal_reads_its_cache_right_and_learns_everywhere(
    choices: dict[str, Any], padding: bool, share: float, offset: int
) -> None:
    choices["rotary_share"] = share
    choices["position_offset"] = offset if choices["positions"] == "learned" else 0
    choices["embedding_projection"] = "padding" if padding and choices["embedding_width"] else "matrix"
    network = gpt(**choices)
    whole = network(TOKENS)
    changed = TOKENS.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 40
    assert torch.equal(network(changed)[:, :9], whole[:, :9])
    assert not torch.allclose(network(changed)[:, 9:], whole[:, 9:])
    cache = KeyValueCache()
    pieces = [network(TOKENS[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 16))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-4, atol=1e-4)
    F.cross_entropy(whole[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_a_padded_embedding_is_normalised_where_it_is_narrow_and_zero_beside() -> None:
    rows = gpt(**YALM).enter(TOKENS)
    torch.testing.assert_close(rows[..., :8].mean(-1), torch.zeros(3, 16), rtol=0, atol=1e-5)
    torch.testing.assert_close(rows[..., :8].var(-1, correction=0), torch.ones(3, 16), rtol=1e-3, atol=0)
    assert not rows[..., 8:].any()


def test_the_way_out_of_a_padded_embedding_is_matrix_gelu_and_norm() -> None:
    network = gpt(**YALM, head_bias=True)
    with torch.no_grad():
        torch.nn.init.normal_(network.head_bias)
    stream = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    projected = F.gelu(F.layer_norm(stream, (16,)) @ network.head_projection.weight.T + network.head_projection.bias)
    expected = F.layer_norm(projected, (8,), network.head_norm.weight, network.head_norm.bias, 1e-5)
    torch.testing.assert_close(network.leave(stream), expected)
    logits = expected @ network.embedding.weight.T + network.head_bias
    torch.testing.assert_close(network.logits(expected), logits)


def test_the_first_block_alone_goes_without_its_input_norm() -> None:
    first, second = gpt(**YALM).blocks
    assert [name for name, _ in first.named_parameters() if "attention_norm" in name] == []
    assert len([name for name, _ in second.named_parameters() if "attention_norm" in name]) == 2


def test_parallel_branches_read_the_same_stream() -> None:
    block = gpt(parallel_residual=True, positions="learned").blocks[0]
    stream = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(1))
    read = block.attention_norm(stream)
    # One token attends to itself alone, so what attention mixes is its value.
    value = block.attention_value.weight @ read[0, 0] + block.attention_value.bias
    attended = block.attention_out.weight @ value + block.attention_out.bias
    expected = stream[0, 0] + attended + block._mlp(block.mlp_norm(stream), [])[0, 0]
    torch.testing.assert_close(block(stream, AttentionContext(causal=True))[0][0, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_share_of_each_head_turns_and_the_rest_stays() -> None:
    heads = torch.randn(1, 1, 6, 16, generator=torch.Generator().manual_seed(1))
    turned = apply_rotary(heads, *rotary_table(6, 4))
    assert torch.equal(turned[..., 4:], heads[..., 4:])
    torch.testing.assert_close(turned[..., :4], apply_rotary(heads[..., :4], *rotary_table(6, 4)))
    assert not torch.allclose(turned[..., 1:, :4], heads[..., 1:, :4])


def test_a_larger_base_turns_the_slowest_pair_slower() -> None:
    _, slow = rotary_table(2, 4, base=100.0)
    # The second of two pairs turns by 1 / sqrt(base) a token.
    torch.testing.assert_close(slow[1, 1], torch.tensor(0.1).sin())


def test_positions_begin_behind_the_offset() -> None:
    network = gpt(positions="learned", position_offset=2, embedding_norm=False)
    assert network.embedding_positions.weight.shape == (18, 16)
    rows = network.enter(TOKENS[:, 4:6], begin=4) - network.embedding(TOKENS[:, 4:6])
    torch.testing.assert_close(rows[0], network.embedding_positions.weight[6:8], rtol=0, atol=1e-6)


def test_a_narrow_embedding_costs_its_columns_and_two_matrices() -> None:
    wide, narrow = (GPTConfig.model_validate(SIZES | {"embedding_width": columns}) for columns in (None, 8))
    assert parameter_count(narrow) == parameter_count(wide) - 40 * 8 + 2 * 8 * 16
    assert flops_per_token(narrow) - flops_per_token(wide) == 6 * (2 * 8 * 16 - 40 * 8)
    own = GPTConfig.model_validate(SIZES | {"embedding_width": 8, "tied_head": False})
    assert flops_per_token(own) == flops_per_token(narrow)
    late = {"positions": "learned", "position_offset": 2}
    assert flops_per_token(GPTConfig.model_validate(SIZES | late)) == flops_per_token(wide)


@pytest.mark.parametrize(
    ("choices", "reported"),
    [
        ({"position_offset": 2}, 'set positions = "learned"'),
        ({"embedding_projection": "padding"}, "set embedding_width, or leave it out"),
        ({"embedding_width": 16}, "embedding_width 16 is not below width 16"),
        ({"norm_position": "post", "parallel_residual": True}, 'set norm_position = "pre"'),
        ({"norm_position": "post", "first_input_norm": False}, 'set norm_position = "pre"'),
        ({"rotary_share": 0.4}, "rotary_share 0.4 of the 8 values of a head are 3, and rotary positions rotate pairs"),
        ({"rotary_share": 0.1}, "rotary_share 0.1 of the 8 values of a head are 0"),
    ],
)
def test_options_without_effect_are_refused(choices: dict[str, Any], reported: str) -> None:
    with pytest.raises(ValidationError, match=reported):
        GPTConfig.model_validate(SIZES | choices)
