"""Each optimizer compared with its paper's formula or PyTorch's own, and steps that are easy to check."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from model.config.network import BERTConfig, T5Config
from model.config.options import OptimizerConfig
from model.config.train import TrainConfig
from model.nn.bert import BERT
from model.nn.gpt import GPT
from model.nn.t5 import T5
from model.optim.optimizers import (
    SGDW,
    Lamb,
    MuonWithAdamW,
    Optimizer,
    add_penalty,
    group_parameters,
    make_optimizer,
    optimizer_tensors,
    orthogonalized,
    penalty,
)
from tests.model.networks import EVERY_KIND

KINDS = ("adamw", "lamb", "sgd", "muon")
RATE = 0.01
CUDA = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and `-m cuda`"),
]


@pytest.fixture
def network() -> GPT:
    return GPT(EVERY_KIND.model_copy(update={"tied_head": False})).initialise(3)


def gradients_of(network: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)


def stepped(optimizer: Optimizer, network: nn.Module, steps: int, lr: float = RATE) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    for step in range(steps):
        gradients_of(network, step)
        optimizer.step()


def weights(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def decayed(name: str) -> bool:
    return name == "head.weight" or (name.startswith("blocks") and name.endswith("weight") and "norm" not in name)


def plain_lamb(network: GPT, config: OptimizerConfig, steps: int) -> None:
    """Algorithm 2 of You et al. 2020, written out tensor by tensor in float64."""
    values = {name: parameter.detach().double() for name, parameter in network.named_parameters()}
    first = {name: torch.zeros_like(value) for name, value in values.items()}
    second = {name: torch.zeros_like(value) for name, value in values.items()}
    for t in range(1, steps + 1):
        gradients_of(network, t - 1)
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None
            g, x = parameter.grad.double(), values[name]
            first[name] = config.beta1 * first[name] + (1 - config.beta1) * g
            second[name] = config.beta2 * second[name] + (1 - config.beta2) * g**2
            r = first[name] / (1 - config.beta1**t) / ((second[name] / (1 - config.beta2**t)) ** 0.5 + config.eps)
            r = r + (config.weight_decay * x if decayed(name) else 0)
            ratio = x.norm() / r.norm() if x.dim() == 2 and x.norm() > 0 else 1.0
            values[name] = x - RATE * ratio * r
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(values[name])


def test_lamb_is_its_papers_algorithm(network: GPT) -> None:
    config = OptimizerConfig(kind="lamb", weight_decay=0.3)
    reference = GPT(network.config).initialise(3)
    plain_lamb(reference, config, steps=5)
    optimizer = make_optimizer(network, config)
    assert isinstance(optimizer, Lamb)
    stepped(optimizer, network, 5)
    for name, value in weights(network).items():
        torch.testing.assert_close(value, reference.get_parameter(name), rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("length", [0.0, 3.0])
def test_lambs_step_of_a_matrix_is_as_long_as_rate_times_the_matrix(length: float) -> None:
    matrix = nn.Parameter(torch.full((3, 3), length / 3))
    optimizer = Lamb([{"params": [matrix]}], betas=(0.9, 0.95), eps=1e-8, lr=0.5)
    matrix.grad = torch.eye(3)
    before = matrix.detach().clone()
    optimizer.step()
    # Of a matrix of zeros there is no length: Adam's first step stays, 1 on the diagonal, sqrt(3) long.
    expected = 0.5 * (length or math.sqrt(3))
    assert float((matrix.detach() - before).norm()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, False), (0.9, True), (0.0, True)])
def test_sgd_is_pytorchs_own(network: GPT, momentum: float, nesterov: bool) -> None:
    reference = GPT(network.config).initialise(3)
    theirs = torch.optim.SGD(reference.parameters(), momentum=momentum, nesterov=nesterov and momentum > 0)
    stepped(theirs, reference, 4)
    config = OptimizerConfig(kind="sgd", momentum=momentum, nesterov=nesterov, weight_decay=0.0)
    stepped(make_optimizer(network, config), network, 4)
    for name, value in weights(network).items():
        torch.testing.assert_close(value, reference.get_parameter(name).detach(), msg=name)


def test_sgds_decay_is_apart_from_the_gradient() -> None:
    matrix = nn.Parameter(torch.full((2, 2), 10.0))
    optimizer = SGDW([{"params": [matrix], "weight_decay": 0.5}], momentum=0.9, nesterov=False, lr=0.1)
    for expected in (10 * 0.95 - 0.1, (10 * 0.95 - 0.1) * 0.95 - 0.19):
        matrix.grad = torch.ones(2, 2)
        optimizer.step()
        # An L2 penalty of .5 would be in the momentum too: 9.4, then 8.29.
        assert matrix.detach() == pytest.approx(torch.full((2, 2), expected))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_muon_is_pytorchs_on_matrices_in_blocks_and_adamw_on_the_rest(device: str) -> None:
    """To the bit on CUDA. On a processor PyTorch's rounds to bfloat16, eight bits, between the steps."""
    network, by_muon, by_adamw = (
        GPT(EVERY_KIND.model_copy(update={"tied_head": False})).initialise(3).to(device) for _ in range(3)
    )
    before = weights(network)
    config = OptimizerConfig(kind="muon")
    optimizer = make_optimizer(network, config)
    assert isinstance(optimizer, MuonWithAdamW)
    in_blocks = {name for name in before if decayed(name) and name != "head.weight"}
    assert len(in_blocks) == 6 * network.config.layers
    muon = torch.optim.Muon(
        [p for name, p in by_muon.named_parameters() if name in in_blocks],
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    stepped(muon, by_muon, 4)
    stepped(make_optimizer(by_adamw, OptimizerConfig()), by_adamw, 4)
    stepped(optimizer, network, 4)
    for name, value in weights(network).items():
        expected = (by_muon if name in in_blocks else by_adamw).get_parameter(name).detach()
        if name in in_blocks and device == "cpu":
            assert (value - expected).norm() < 0.03 * (expected - before[name]).norm(), name
        else:
            assert torch.equal(value, expected), name


@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (48, 16)])
def test_muon_applies_its_polynomial_to_singular_values(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(orthogonalized(matrix).double(), left * values @ right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("network", "tables", "outside"),
    [
        (GPT(EVERY_KIND), {"embedding.weight"}, set()),
        (
            BERT(BERTConfig(architecture="bert", vocab_size=48, context=16, layers=2, heads=2, width=16)),
            {"embedding.weight", "embedding_positions.weight", "embedding_types.weight"},
            {"masked_head_in.weight", "next_head_in.weight", "next_head_answer.weight"},
        ),
        (
            T5(T5Config(architecture="t5", vocab_size=148, context=16, layers=1, heads=2, width=16, tied_head=False)),
            {"embedding.weight", "embedding_encoder_distances.weight", "embedding_decoder_distances.weight"},
            {"head.weight"},
        ),
    ],
    ids=["gpt", "bert", "t5"],
)
def test_tables_are_no_matrices_and_heads_are_not_hidden(
    network: nn.Module, tables: set[str], outside: set[str]
) -> None:
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    groups = group_parameters(network)
    assert {names[id(p)] for p in groups.others if p.dim() == 2} == tables
    hidden = {names[id(p)] for p in groups.hidden}
    assert {names[id(p)] for p in groups.matrices} - hidden == outside
    assert hidden
    assert all("blocks." in name for name in hidden)
    assert len(groups.matrices) + len(groups.others) == len(names)


@pytest.mark.parametrize("kind", KINDS)
def test_with_its_state_back_an_optimizer_goes_on_bit_by_bit_under_new_settings(network: GPT, kind: str) -> None:
    """OPT-175B's crew changed Adam's betas, and loading the checkpoint changed them back."""
    config = OptimizerConfig.model_validate({"kind": kind})
    optimizer = make_optimizer(network, config)
    stepped(optimizer, network, 3)
    twin = GPT(network.config)
    twin.load_state_dict(network.state_dict())
    changed = config.model_copy(update={"beta1": 0.5, "momentum": 0.3, "weight_decay": 0.7})
    again, other = make_optimizer(twin, config), make_optimizer(twin, changed)
    for name, parameter in network.named_parameters():
        for moment, value in optimizer_tensors(optimizer, parameter).items():
            for one in (again, other):
                one.state[twin.get_parameter(name)][moment] = value.clone()
    setting = "momentum" if kind == "sgd" else "betas"
    assert {group[setting] for group in other.param_groups if setting in group} == {
        0.3 if kind == "sgd" else (0.5, 0.95)
    }
    stepped(optimizer, network, 1)
    stepped(again, twin, 1)
    assert all(torch.equal(value, twin.get_parameter(name)) for name, value in weights(network).items())


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_gradient_of_a_penalty_is_the_one_that_is_added(l1: float, l2: float) -> None:
    config = OptimizerConfig(l1=l1, l2=l2)
    matrices = [nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))) for seed in (1, 2)]
    (wanted,) = torch.autograd.grad(penalty(matrices, config), matrices[1:])
    for matrix in matrices:
        matrix.grad = torch.ones_like(matrix)
    add_penalty(matrices, config)
    assert matrices[1].grad is not None
    torch.testing.assert_close(matrices[1].grad, 1 + wanted)


def test_a_penalty_in_numbers() -> None:
    matrix = nn.Parameter(torch.tensor([[3.0, -4.0]]))
    assert float(penalty([matrix], OptimizerConfig(l1=2.0, l2=10.0)).detach()) == 2 * 7 + 10 / 2 * 25
    matrix.grad = torch.zeros(1, 2)
    add_penalty([matrix], OptimizerConfig(l1=2.0, l2=10.0))
    assert matrix.grad.tolist() == [[32.0, -42.0]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": {"kind": "lamb"}}, "lamb needs whole matrices"),
        ({"optimizer": {"kind": "muon"}}, "muon needs whole matrices"),
        ({"optimizer": {"l2": 0.1}, "zero_stage": 3}, "zero_stage = 1 or 2"),
        ({"optimizer": {"kind": "adam"}}, "'adamw', 'lamb', 'sgd' or 'muon'"),
    ],
)
def test_what_zero_cannot_do_is_refused_with_the_reason(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig.model_validate({"engine": "deepspeed", **settings})
    if "kind" in settings["optimizer"] and settings["optimizer"]["kind"] != "adam":
        assert TrainConfig.model_validate(settings).optimizer.kind == settings["optimizer"]["kind"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_overfits(kind: str) -> None:
    network = GPT(EVERY_KIND).initialise(1)
    # SGD at 0.3 is at the edge of divergence: roundings of another machine decide.
    rate = {"sgd": 0.1, "lamb": 0.02}.get(kind, 0.01)
    optimizer = make_optimizer(network, OptimizerConfig.model_validate({"kind": kind}))
    for group in optimizer.param_groups:
        group["lr"] = rate
    tokens = torch.randint(0, 48, (2, 17), generator=torch.Generator().manual_seed(6))
    losses = []
    for _ in range(200):
        logits = network(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(math.log(48), abs=0.2)
    assert losses[-1] < 0.2
