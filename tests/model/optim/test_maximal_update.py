"""Learning rates that transfer to wider networks: the maximal update parametrisation."""

import math
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as F

from benchmarks.coordinate_check import exponents, main, measure
from model.config.network import GPTConfig
from model.config.options import OptimizerConfig
from model.config.train import TrainerRun
from model.nn.gpt import GPT
from model.optim.optimizers import make_optimizer, set_learning_rate

SMALL = {"vocab_size": 48, "context": 16, "layers": 1, "heads": 2, "activation": "gelu", "init_std": 0.02}


def gpt(width: int, **choices: object) -> GPT:
    return GPT(GPTConfig.model_validate({**SMALL, "width": width, **choices})).initialise(1)


def test_at_its_own_width_nothing_changes() -> None:
    plain, transferred = gpt(32), gpt(32, mup_base_width=32)
    for (name, one), other in zip(plain.named_parameters(), transferred.parameters(), strict=True):
        assert torch.equal(one, other), name
    groups = make_optimizer(transferred, OptimizerConfig(), 1.0).param_groups
    assert ["rate_factor" in group for group in groups] == [False, False]


def test_four_times_as_wide() -> None:
    """Half as wide a start, a quarter of the rate and of the logits, and the same decay at each step."""
    plain, transferred = gpt(128), gpt(128, mup_base_width=32)
    for (name, one), other in zip(plain.named_parameters(), transferred.named_parameters(), strict=True):
        factor = 0.5 if name.startswith("blocks") and one.dim() == 2 else 1.0
        assert torch.equal(one * factor, other[1]), name
    tokens = torch.arange(16).view(1, 16)
    hidden = transferred.hidden(tokens)
    assert torch.allclose(transferred(tokens), F.linear(hidden, transferred.embedding.weight))
    assert torch.allclose(hidden.std(), torch.tensor(0.25), rtol=0.05)
    groups = make_optimizer(transferred, OptimizerConfig(weight_decay=0.1), 4.0).param_groups
    set_learning_rate(groups, 0.004)
    hidden_group, others = groups
    assert (hidden_group["lr"], others["lr"]) == (0.001, 0.004)
    assert math.isclose(hidden_group["lr"] * hidden_group["weight_decay"], 0.004 * 0.1)
    assert {tuple(p.shape) for p in hidden_group["params"]} == {(128, 128), (512, 128), (128, 512)}


def test_scores_fall_with_the_size_of_a_head() -> None:
    assert GPTConfig.model_validate({**SMALL, "width": 32}).block.score_scale is None
    wide = GPTConfig.model_validate({**SMALL, "width": 128, "mup_base_width": 32, "mup_base_head_size": 16})
    assert wide.block.score_scale == 4 / 64


def test_what_a_network_computes_does_not_grow_with_its_width() -> None:
    widths = (32, 64, 128, 256)
    standard = exponents([measure(width, None, 0.003, 4, seed=1) for width in widths])
    transferred = exponents([measure(width, 32, 0.003, 4, seed=1) for width in widths])
    assert max(transferred) < 0.15
    assert standard[1] > 0.5


def test_the_command_prints_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--widths", "32,64,128", "--base", "32"]) == 0
    reported = capsys.readouterr().out
    assert reported.count("grows") == 2


@pytest.mark.parametrize(
    ("choices", "reported"),
    [
        ({"mup_base_head_size": 16}, "needs mup_base_width"),
        ({"mup_base_width": 32, "embedding_width": 16}, "leave embedding_width out"),
    ],
)
def test_what_does_not_go_together(choices: dict, reported: str) -> None:
    with pytest.raises(ValidationError, match=reported):
        GPTConfig.model_validate({**SMALL, "width": 128, **choices})


def test_rules_are_those_of_adam(make_run: Callable[..., TrainerRun]) -> None:
    run = make_run("out")
    wide = run.model.model_copy(update={"mup_base_width": 8})
    values = run.model_dump(mode="json") | {"model": wide.model_dump(mode="json")}
    TrainerRun.model_validate(values)
    values["train"]["optimizer"]["kind"] = "sgd"
    with pytest.raises(ValidationError, match=r"optimizer\.kind is sgd"):
        TrainerRun.model_validate(values)
