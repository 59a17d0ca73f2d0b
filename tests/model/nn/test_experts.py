"""A mixture of experts: what a plain loop over tokens computes, the balance, what it costs, and what it excludes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.config.network import GPTConfig
from model.config.rules import check_experts
from model.config.train import TrainConfig
from model.engines.memory import activation_bytes
from model.engines.sizes import rank_sizes
from model.nn.experts import Experts, balance_loss
from model.nn.factory import active_parameter_count, flops_per_token, parameter_count
from model.nn.gpt import GPT
from model.objectives.causal import next_token_nats

SIZES: dict[str, Any] = {"vocab_size": 50, "context": 16, "layers": 2, "heads": 2, "width": 16, "ffn_width": 24}
MIXTRAL: dict[str, Any] = {
    "vocab_size": 32_000, "context": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "width": 4096, "ffn_width": 14_336,
    "qk_norm": "none", "tied_head": False,
}  # fmt: skip


def network(**choices: Any) -> GPT:
    return GPT(GPTConfig.model_validate(SIZES | {"experts": 4, **choices})).initialise(1)


def experts(**choices: Any) -> Experts:
    found = network(**choices).blocks[0].experts
    assert isinstance(found, Experts)
    return found


def one_by_one(layer: Experts, x_ND: Tensor) -> Tensor:
    """Return what the experts give each token, computed for one token after the other."""
    rows = []
    for x_D in x_ND:
        probability_E = F.linear(x_D, layer.router.weight).softmax(0)
        chosen = sorted(range(len(probability_E)), key=lambda number: -probability_E[number].item())
        chosen = chosen[: layer.config.experts_per_token]
        total = sum(probability_E[number] for number in chosen) if layer.config.experts_sum_to_one else 1
        outputs = [(F.silu(x_D @ layer.mlp_gate[e]) * (x_D @ layer.mlp_in[e])) @ layer.mlp_out[e] for e in chosen]
        rows.append(sum(probability_E[e] / total * out for e, out in zip(chosen, outputs, strict=True)))
    return torch.stack(rows)


def test_by_default_two_experts_are_weighted_to_a_sum_of_one_as_in_mixtral() -> None:
    config = experts().config
    assert (config.experts_per_token, config.experts_sum_to_one) == (2, True)


@pytest.mark.parametrize(("per_token", "sum_to_one"), [(1, True), (2, True), (4, True), (1, False), (3, False)])
def test_each_token_gets_its_experts_whatever_else_is_in_the_batch(per_token: int, sum_to_one: bool) -> None:
    layer = experts(experts_per_token=per_token, experts_sum_to_one=sum_to_one)
    x_BTD = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(2), requires_grad=True)
    found, _ = layer(x_BTD)
    expected = one_by_one(layer, x_BTD.flatten(0, 1)).view_as(found)
    torch.testing.assert_close(found, expected)
    weights = [x_BTD, *layer.parameters()]
    ours = torch.autograd.grad(found.square().sum(), weights)
    theirs = torch.autograd.grad(expected.square().sum(), weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_no_token_is_left_out_where_all_choose_one_expert() -> None:
    layer = experts(experts_per_token=1)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[2] = 1.0
    x_BTD = torch.rand(1, 50, 16)
    found, balance = layer(x_BTD)
    alone = (F.silu(x_BTD @ layer.mlp_gate[2]) * (x_BTD @ layer.mlp_in[2])) @ layer.mlp_out[2]
    torch.testing.assert_close(found, alone)
    assert float(balance) > 3.5


def test_the_balance_is_one_for_equal_use_and_the_number_of_experts_for_one() -> None:
    equal = torch.full((8, 4), 0.25)
    assert float(balance_loss(equal, torch.tensor([2, 2, 2, 2]))) == 1.0
    assert float(balance_loss(F.one_hot(torch.zeros(8).long(), 4).float(), torch.tensor([8, 0, 0, 0]))) == 4.0
    # f = (.5, .5, 0, 0) and P = (.4, .4, .1, .1): 4 (.2 + .2) = 1.6.
    assert float(balance_loss(torch.tensor([[0.4, 0.4, 0.1, 0.1]]), torch.tensor([3, 3, 0, 0]))) == pytest.approx(1.6)


def test_the_balance_is_in_the_gradient_and_not_in_the_loss() -> None:
    tokens = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(3))
    losses, gradients = [], []
    for balance in (0.0, 0.5):
        made = network(balance=balance)
        nats, _ = next_token_nats(made, tokens[:, :-1], tokens[:, 1:])
        nats.backward()
        losses.append(float(nats))
        gradients.append({name: parameter.grad for name, parameter in made.named_parameters()})
    assert losses[0] == losses[1]
    # By hand: 32 predictions, half of the sum of both blocks' balances.
    made = network()
    balances: list[Tensor] = []
    made.hidden(tokens[:, :-1], balances=balances)
    (0.5 * 32 * torch.stack(balances).sum()).backward()
    for name, parameter in made.named_parameters():
        added = gradients[1][name] - gradients[0][name]
        torch.testing.assert_close(added, torch.zeros_like(added) if parameter.grad is None else parameter.grad)


def test_steps_on_the_balance_alone_spread_tokens_over_experts() -> None:
    layer = experts(experts_per_token=1)
    with torch.no_grad():
        layer.router.weight[0] += 0.5
    x_BTD = torch.rand(8, 16, 16, generator=torch.Generator().manual_seed(4))
    optimizer = torch.optim.Adam([layer.router.weight], lr=0.03)
    before = float(layer(x_BTD)[1])
    for _ in range(100):
        optimizer.zero_grad()
        layer(x_BTD)[1].backward()
        optimizer.step()
    assert before > 2.5
    assert float(layer(x_BTD)[1]) < 1.2


def test_weights_are_counted_in_all_and_those_of_a_token() -> None:
    mixtral = GPTConfig.model_validate(MIXTRAL | {"experts": 8})
    # Jiang et al. 2024: 47B parameters, 13B active.
    assert parameter_count(mixtral) == 46_702_792_704
    assert active_parameter_count(mixtral) == 12_879_925_248
    dense = GPTConfig.model_validate(MIXTRAL | {"ffn_width": 2 * 14_336})
    routers = 32 * 8 * 4096
    assert active_parameter_count(mixtral) == parameter_count(dense) + routers
    assert flops_per_token(mixtral) == flops_per_token(dense) + 6 * routers


def test_memory_counts_all_experts_and_the_activations_of_a_step() -> None:
    small = SIZES | {"layers": 1}
    one, four, eight = (GPTConfig.model_validate(small | {"experts": count}) for count in (2, 4, 8))
    train = TrainConfig(batch_rows=4, micro_batch_rows=4)
    assert rank_sizes(four, train).weights == 4 * parameter_count(four)
    # All have the same rows; more experts add columns of the router's probabilities.
    assert activation_bytes(one, train) <= activation_bytes(four, train) < activation_bytes(eight, train)
    assert activation_bytes(eight, train) < 1.2 * activation_bytes(four, train)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"experts": 2, "experts_per_token": 3}, "Choose experts_per_token 2 or less"),
        ({"experts": 2, "biases": True}, "set biases = false"),
        ({"experts_per_token": 1}, "experts_per_token needs experts"),
        ({"balance": 0.1}, "balance needs experts"),
    ],
)
def test_a_network_that_cannot_be_is_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPTConfig.model_validate(SIZES | choices)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"tensor_parallel": 2, "ranks": 2}, "tensor_parallel = 1"),
        ({"pipeline_parallel": 2, "ranks": 2}, "pipeline_parallel = 1"),
        ({"engine": "deepspeed"}, "engine = native"),
        ({"engine": "fsdp"}, "engine = native"),
        ({"compile": True}, "compile = false"),
        ({"optimizer": {"kind": "muon"}}, "optimizer.kind = adamw"),
    ],
)
def test_a_training_that_does_not_take_experts_is_refused(settings: dict[str, Any], advice: str) -> None:
    train = TrainConfig.model_validate(settings)
    with pytest.raises(ValueError, match=f"Set {advice}, or leave model.experts out"):
        check_experts(GPTConfig(experts=4), train)
    check_experts(GPTConfig(), train)
