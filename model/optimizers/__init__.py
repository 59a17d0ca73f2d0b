"""How gradients become steps: AdamW, LAMB, SGD and Muon behind what `torch.optim` calls an optimizer.

Learning rates are set into `param_groups` at each step; every other hyper-parameter comes from the configuration, so
that a checkpoint, which holds `state` alone, never brings back an old one.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from model.config import OptimizerConfig
from model.optimizers.groups import grouped
from model.optimizers.lamb import Lamb
from model.optimizers.muon import MuonWithAdamW
from model.optimizers.sgd import SGDW

RATE_FACTOR = "rate_factor"
"""Key of a group of parameters whose rate is a part of the others'."""


class Optimizer(Protocol):
    """What an engine needs of one: of PyTorch's own, and of two that take turns."""

    param_groups: list[dict[str, Any]]
    state: Any
    """By parameter, a dictionary of what is remembered of it."""

    def step(self) -> Any:
        """Move the parameters along their gradients."""
        ...

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        ...


def make_optimizer(network: nn.Module, config: OptimizerConfig, times_as_wide: float = 1.0) -> Optimizer:
    """The optimizer that the configuration names, over everything in the network that learns; its rate is still 0.

    Matrices are decayed; norms, biases and embeddings (which may be the output head too) are not. In a network
    `times_as_wide` as the one that the rate is for, matrices in blocks learn at that much less of it (Yang et al. 2022,
    table 8, for Adam), and decay as there: decay is a product with the rate.
    """
    groups = grouped(network)
    transferred = {id(parameter) for parameter in groups.hidden} if times_as_wide != 1.0 else set[int]()
    hidden = [parameter for parameter in groups.matrices if id(parameter) in transferred]
    decayed = [
        {"params": hidden, "weight_decay": config.weight_decay * times_as_wide, RATE_FACTOR: 1 / times_as_wide},
        {"params": [p for p in groups.matrices if id(p) not in transferred], "weight_decay": config.weight_decay},
        {"params": groups.others, "weight_decay": 0.0},
    ]
    decayed = [group for group in decayed if group["params"]]
    betas = (config.beta1, config.beta2)
    if config.kind == "lamb":
        return Lamb(decayed, betas=betas, eps=config.eps)
    if config.kind == "sgd":
        return SGDW(decayed, momentum=config.momentum, nesterov=config.nesterov)
    if config.kind == "muon":
        return MuonWithAdamW(groups, config)
    # Loshchilov and Hutter 2019, fused into one kernel a step.
    return torch.optim.AdamW(decayed, lr=0.0, betas=betas, eps=config.eps, fused=True)


def set_rate(groups: Iterable[dict[str, Any]], rate: float) -> None:
    """Have parameters learn at a rate, or at their share of it."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_FACTOR, 1.0)


def remembered(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The tensors that the optimizer keeps of a parameter, by name; none before its first step."""
    kept = optimizer.state.get(parameter, {})
    return {name: value for name, value in kept.items() if isinstance(value, Tensor)}
