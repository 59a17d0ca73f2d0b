"""How gradients become steps: AdamW, LAMB, SGD and Muon behind what `torch.optim` calls an optimizer.

Learning rates are set into `param_groups` at each step; every other hyper-parameter comes from the configuration, so
that a checkpoint, which holds `state` alone, never brings back an old one.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from model.config import OptimizerConfig
from model.optimizers.groups import grouped
from model.optimizers.lamb import Lamb
from model.optimizers.muon import MuonWithAdamW
from model.optimizers.sgd import SGDW


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


def make_optimizer(network: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer that the configuration names, over everything in the network that learns; its rate is still 0.

    Matrices are decayed; norms, biases and embeddings (which may be the output head too) are not.
    """
    groups = grouped(network)
    decayed = [
        {"params": groups.matrices, "weight_decay": config.weight_decay},
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


def remembered(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The tensors that the optimizer keeps of a parameter, by name; none before its first step."""
    kept = optimizer.state.get(parameter, {})
    return {name: value for name, value in kept.items() if isinstance(value, Tensor)}
