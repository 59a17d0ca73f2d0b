"""Options of GPT: what each computes, how it is initialised, and which combinations are refused."""

import math
import shutil
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn import functional as F

from model.config.network import GPTConfig
from model.config.options import ScheduleConfig
from model.config.train import TrainerRun
from model.data.row_format import NO_LOSS
from model.engines.runtime import seed_dropout
from model.nn.block import KeyValueCache, distance_bias, distance_bucket
from model.nn.factory import flops_per_token, parameter_count
from model.nn.gpt import GPT, prefix_mask
from model.objectives.causal import next_token_nats
from model.train.trainer import train

BEFORE_LLAMA: dict[str, Any] = {"norm": "layernorm", "activation": "gelu", "qk_norm": "none", "biases": True}
SIZES: dict[str, Any] = {"vocab_size": 40, "context": 16, "layers": 2, "heads": 2, "width": 16, "init_std": 0.3}
SIZES |= BEFORE_LLAMA
T_FIXUP: dict[str, Any] = {"init": "t_fixup", "norm": "none", "embedding_norm": False, "qk_norm": "none"}
TOKENS = torch.randint(0, 40, (3, 16), generator=torch.Generator().manual_seed(2))

CHOICES = st.fixed_dictionaries(
    {
        "positions": st.sampled_from(["rotary", "learned", "relative"]),
        "activation": st.sampled_from(["relu", "gelu", "gelu_tanh", "geglu", "geglu_tanh", "swiglu"]),
        "norm": st.sampled_from(["layernorm", "rmsnorm"]),
        "norm_position": st.sampled_from(["pre", "post", "branch"]),
        "embedding_norm": st.booleans(),
        "qk_norm": st.sampled_from(["none", "head", "all"]),
        "kv_heads": st.sampled_from([None, 1]),
        "head_size": st.sampled_from([None, 6]),
        "window": st.sampled_from([None, 12]),
        "biases": st.booleans(),
        "tied_head": st.booleans(),
    }
)


def gpt(**choices: Any) -> GPT:
    return GPT(GPTConfig.model_validate(SIZES | choices)).initialise(1).eval()


@settings(max_examples=40, deadline=None)
@given(choices=CHOICES | st.just(T_FIXUP))
def test_any_choice_is_causal_reads_its_cache_right_and_learns_everywhere(choices: dict[str, Any]) -> None:
    network = gpt(**choices)
    whole = network(TOKENS)
    changed = TOKENS.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 40
    assert torch.equal(network(changed)[:, :9], whole[:, :9])
    assert not torch.allclose(network(changed)[:, 9:], whole[:, 9:])
    cache = KeyValueCache()
    pieces = [network(TOKENS[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 16))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-4, atol=1e-4)
    nats, ranges = next_token_nats(network, TOKENS[:, :-1], TOKENS[:, 1:])
    nats.backward()
    assert len(ranges) == 6
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []
    assert any("bias" in name for name, _ in network.named_parameters()) == choices.get("biases", True)


@given(distance=st.integers(-400, 400))
def test_a_bucket_holds_one_distance_or_a_range_that_grows_as_logarithms_do(distance: int) -> None:
    before, both = (int(distance_bucket(torch.tensor(distance), bidirectional=ways)) for ways in (False, True))
    far = max(-distance, 0)
    assert before == (far if far < 16 else min(31, 16 + int(math.log(far / 16) / math.log(8) * 16 + 1e-6)))
    far, side = abs(distance), 16 * (distance > 0)
    assert both == side + (far if far < 8 else min(15, 8 + int(math.log(far / 8) / math.log(16) * 8 + 1e-6)))


def test_the_bias_of_a_distance_is_its_bucket_s_row() -> None:
    table = torch.nn.Embedding(32, 2)
    bias = distance_bias(table, range(2, 4), 4, bidirectional=False)
    assert bias.shape == (1, 2, 2, 4)
    assert torch.equal(bias[0, :, 0, 0], table.weight[2])
    assert torch.equal(bias[0, :, 1, 2], table.weight[1])
    assert torch.equal(bias[0, :, 1, 3], table.weight[0])


def test_learned_positions_start_where_the_cache_ends() -> None:
    network = gpt(positions="learned", embedding_norm=False)
    rows = network.enter(TOKENS[:, 4:6], begin=4) - network.embedding(TOKENS[:, 4:6])
    torch.testing.assert_close(rows[0], network.embedding_positions.weight[4:6], rtol=0, atol=1e-6)


def test_post_norm_leaves_a_normalised_stream() -> None:
    stream = gpt(norm_position="post").hidden(TOKENS)
    torch.testing.assert_close(stream.mean(-1), torch.zeros(3, 16), rtol=0, atol=1e-5)
    torch.testing.assert_close(stream.var(-1, correction=0), torch.ones(3, 16), rtol=1e-3, atol=0)


def test_a_gated_mlp_has_about_as_many_weights_and_multiplies_by_its_gate() -> None:
    plain, gated = (GPTConfig.model_validate(SIZES | {"width": 96, "activation": a}) for a in ("gelu", "swiglu"))
    assert (plain.hidden, gated.hidden) == (384, 256)
    assert parameter_count(gated) == pytest.approx(parameter_count(plain), rel=0.01)
    block = gpt(activation="swiglu", biases=False).blocks[0]
    x = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(1))
    gate, value = block.mlp_gate.weight @ x[0, 0], block.mlp_in.weight @ x[0, 0]
    torch.testing.assert_close(block._mlp(x, [])[0, 0], block.mlp_out.weight @ (F.silu(gate) * value))


def test_a_head_of_its_own_costs_a_table_and_no_arithmetic() -> None:
    tied, own = (GPTConfig.model_validate(SIZES | {"tied_head": tied}) for tied in (True, False))
    assert parameter_count(own) == parameter_count(tied) + 40 * 16
    assert flops_per_token(own) == flops_per_token(tied)
    learned = GPTConfig.model_validate(SIZES | {"positions": "learned"})
    assert parameter_count(learned) == parameter_count(tied) + 16 * 16
    assert flops_per_token(learned) == flops_per_token(tied)


def test_qk_norm_bounds_the_scores_whatever_the_weights() -> None:
    network = gpt(qk_norm="head")
    before = network(TOKENS)
    with torch.no_grad():
        for block in network.blocks:
            for projection in (block.attention_query, block.attention_key):
                projection.weight *= 100
                projection.bias *= 100
    torch.testing.assert_close(network(TOKENS), before, rtol=1e-3, atol=1e-3)


def test_z_loss_is_in_the_gradient_and_not_in_the_loss() -> None:
    inputs, targets = TOKENS[:, :-1], TOKENS[:, 1:].clone()
    targets[:, :4] = NO_LOSS
    plain, with_z = gpt(), gpt(z_loss=0.5)
    without, _ = next_token_nats(plain, inputs, targets)
    nats, _ = next_token_nats(with_z, inputs, targets)
    assert torch.equal(nats, without)
    nats.backward()
    squares = plain(inputs)[:, 4:].logsumexp(-1).square().sum()
    (without + 0.5 * squares).backward()
    for one, other in zip(with_z.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)


def test_a_prefix_sees_itself_in_both_directions_and_is_not_reached_by_what_follows() -> None:
    visible = prefix_mask(torch.tensor([3, 1]), 4)
    assert visible[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert torch.equal(visible[1, 0], torch.ones(4, 4, dtype=torch.bool).tril())
    network = gpt(positions="relative")
    mask = prefix_mask(torch.full((3,), 5), 16)
    before = network.hidden(TOKENS, visible_B1TT=mask)
    for place, reached_from in ((4, 0), (9, 9)):
        changed = TOKENS.clone()
        changed[:, place] = (changed[:, place] + 1) % 40
        after = network.hidden(changed, visible_B1TT=mask)
        unmoved = (after == before).all(-1).all(0).tolist()
        assert unmoved == [place < reached_from for place in range(16)]


def test_dropout_is_off_where_nothing_is_trained_and_keeps_the_mean() -> None:
    network = gpt(dropout=0.25)
    assert torch.equal(network(TOKENS), gpt()(TOKENS))
    network.train()
    assert not torch.equal(network(TOKENS), network(TOKENS))
    block = network.blocks[0]
    dropped = block._dropout(torch.ones(10_000), None, 0)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.03)


def test_a_resumed_run_drops_what_an_undisturbed_one_does(make_run) -> None:
    def with_dropout(name: str, dropout: float = 0.3) -> TrainerRun:
        run = make_run(name)
        return run.model_copy(update={"model": run.model.model_copy(update={"dropout": dropout})})

    whole, resumed, without = with_dropout("whole"), with_dropout("resumed"), with_dropout("without", 0.0)
    weights = (train(whole) / "model.safetensors").read_bytes()
    shutil.copytree(whole.out / "checkpoints", resumed.out / "checkpoints")
    shutil.rmtree(resumed.out / "checkpoints" / "step-000000012")
    torch.manual_seed(77)
    assert (train(resumed) / "model.safetensors").read_bytes() == weights
    assert (train(without) / "model.safetensors").read_bytes() != weights


def test_each_step_and_rank_and_seed_drops_other_values() -> None:
    def drawn(*place: int) -> tuple[float, ...]:
        seed_dropout(*place)
        return tuple(torch.rand(4).tolist())

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    places = [(seed, step, rank) for seed in (1, 2) for step in (0, 1, 11) for rank in (0, 1, 11)]
    assert len({drawn(*place) for place in places}) == len(places)


def test_t_fixup_starts_from_the_deviations_of_its_paper() -> None:
    config = GPTConfig.model_validate(SIZES | T_FIXUP | {"vocab_size": 2000, "width": 64, "layers": 4})
    network = GPT(config).initialise(1)
    xavier = math.sqrt(2 / (64 + 64))
    block = network.blocks[1]
    projections = (block.attention_query, block.attention_key, block.attention_value)
    query, key, value = (projection.weight.detach() for projection in projections)
    branch = 0.67 * 4**-0.25
    assert float(network.embedding.weight.detach().std()) == pytest.approx(64**-0.5 * 36**-0.25, rel=0.02)
    assert float(query.std()) == pytest.approx(xavier / math.sqrt(2), rel=0.05)
    assert float(key.std()) == pytest.approx(xavier / math.sqrt(2), rel=0.05)
    assert float(value.std()) == pytest.approx(xavier * branch, rel=0.05)
    mlp_in = network.blocks[1].mlp_in.weight.detach()
    assert float(mlp_in.std()) == pytest.approx(math.sqrt(2 / (64 + 256)) * branch, rel=0.05)


@pytest.mark.parametrize(
    ("choices", "reported"),
    [
        (
            {"init": "t_fixup"},
            'norm = "layernorm". Set norm = "none" and',
        ),
        (T_FIXUP | {"qk_norm": "head"}, 'has qk_norm = "head". Set qk_norm = "none" and, since'),
        ({"norm": "none"}, 'set init = "t_fixup"'),
        ({"width": 18, "heads": 4, "positions": "learned"}, "Choose width 16"),
        ({"width": 18, "heads": 2}, "rotary positions rotate pairs"),
        (
            {"rotary_scaling": {"kind": "dynamic", "factor": 2, "original_context": 8}, "head_size": 2},
            "only one pair of a head is rotated",
        ),
    ],
)
def test_inconsistent_options_are_refused_with_a_hint(choices: dict[str, Any], reported: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GPTConfig.model_validate(SIZES | choices)
    assert reported in str(caught.value)


def test_t_fixup_is_refused_with_a_warm_up(make_run) -> None:
    run = make_run()
    fixed = run.model.model_dump() | T_FIXUP
    reported = run.model_dump(exclude_none=True) | {"model": fixed}
    with pytest.raises(ValidationError, match=r"without warm-up, and schedule\.warmup_share is 0\.05"):
        TrainerRun.model_validate(reported)
    reported["train"]["schedule"] = ScheduleConfig(warmup_share=0.0)
    assert TrainerRun.model_validate(reported).model.init == "t_fixup"
