"""How gradients become steps: AdamW, LAMB, SGD and Muon behind what `torch.optim` calls an optimizer.

Learning rates are set into `param_groups` at each step; every other hyper-parameter comes from the configuration, so
that a checkpoint, which holds `state` alone, never brings back an old one.

Which parameters are treated alike: matrices, the hidden ones among them, and all that is no matrix or a table.

LAMB: Adam's step, scaled for each tensor to the length of the tensor.

You et al. 2020, https://arxiv.org/abs/1904.00962, algorithm 2, with the identity as the scaling function. Made for
batches of 32K rows, where one rate does not suit all layers. As in the authors' own BERT, vectors (norms and biases)
take Adam's step as it is.

Muon for the matrices within blocks, AdamW for all else.

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/: the momentum of a matrix is made nearly orthogonal
before it becomes a step, so that no direction is left behind. Embeddings, heads, norms and biases are no such maps
between hidden states.

Stochastic gradient descent with momentum (Polyak 1964), Nesterov's variant, and decay apart from the gradient.

Penalties on the size of weights: terms of the loss, unlike decay, which leaves the gradient alone.

L1 (Tibshirani 1996) pulls each weight to zero by the same force, L2 (Krogh and Hertz 1991) by a force as large as the
weight. Their gradients count in the norm, are clipped, and pass through the optimizer's moments, where Adam divides
large ones back down: what decay apart from the gradient was made to avoid (Loshchilov and Hutter 2019).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from model.config.options import OptimizerConfig

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
    groups = group_parameters(network)
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


def set_learning_rate(groups: Iterable[dict[str, Any]], rate: float) -> None:
    """Have parameters learn at a rate, or at their share of it."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_FACTOR, 1.0)


def optimizer_tensors(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The tensors that the optimizer keeps of a parameter, by name; none before its first step."""
    kept = optimizer.state.get(parameter, {})
    return {name: value for name, value in kept.items() if isinstance(value, Tensor)}


TABLES = ("embedding", "new_rows")
"""Names of what is looked up begin so, in all networks."""


@dataclass(frozen=True)
class ParameterGroups:
    """Everything in a network that learns, in the order of its parameters."""

    matrices: list[nn.Parameter]
    """Decayed and penalised: all matrices but tables that are looked up."""
    hidden: list[nn.Parameter]
    """Those of the matrices that stand in blocks: neither embedding nor head."""
    others: list[nn.Parameter]
    """Norms, biases, and tables that are looked up."""


def group_parameters(network: nn.Module) -> ParameterGroups:
    """The parameters of a network by how they are treated; what does not learn is in no group."""
    learning = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    matrices = {name: p for name, p in learning if p.dim() >= 2 and not name.startswith(TABLES)}
    return ParameterGroups(
        matrices=list(matrices.values()),
        hidden=[p for name, p in matrices.items() if name.partition(".")[0].endswith("blocks")],
        others=[p for name, p in learning if name not in matrices],
    )


class Lamb(torch.optim.Optimizer):
    """State of a parameter: `step` f32[], `exp_avg` and `exp_avg_sq` of its shape."""

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float], eps: float, lr: float = 0.0) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step; a closure is not provided for."""
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        steps = int(state["step"])
        first = state["exp_avg"].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (second / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        update = (first / (1 - beta1**steps)).div_(root).add_(parameter, alpha=group["weight_decay"])
        if parameter.dim() >= 2:
            update.mul_(_trust(parameter.norm(), update.norm()))
        parameter.add_(update, alpha=-group["lr"])


def _trust(length: Tensor, step_length: Tensor) -> Tensor:
    """How much longer or shorter the step becomes: to the length of the tensor, and as it is where either is zero."""
    ratio = length / step_length
    return torch.where((length > 0) & (step_length > 0), ratio, torch.ones_like(ratio))


class MuonWithAdamW:
    """PyTorch's two optimizers over one network, with one state and one list of groups.

    Steps of Muon get the length that AdamW's have (Liu et al. 2025, https://arxiv.org/abs/2502.16982, section 2.2), so
    that one learning rate and one decay suit both.
    """

    def __init__(self, groups: ParameterGroups, config: OptimizerConfig) -> None:
        hidden = {id(parameter) for parameter in groups.hidden}
        decay = config.weight_decay
        self._muon = torch.optim.Muon(
            groups.hidden,
            lr=0.0,
            weight_decay=decay,
            momentum=config.momentum,
            nesterov=config.nesterov,
            adjust_lr_fn="match_rms_adamw",
        )
        heads = [parameter for parameter in groups.matrices if id(parameter) not in hidden]
        rest = [{"params": heads, "weight_decay": decay}, {"params": groups.others, "weight_decay": 0.0}]
        self._adamw = torch.optim.AdamW(
            [group for group in rest if group["params"]],
            lr=0.0,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
        self.param_groups: list[dict[str, Any]] = [*self._muon.param_groups, *self._adamw.param_groups]
        self.state = self._adamw.state = self._muon.state

    def step(self) -> None:
        """Both take their step."""
        self._muon.step()
        self._adamw.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        self._muon.zero_grad(set_to_none)
        self._adamw.zero_grad(set_to_none)


class SGDW(torch.optim.SGD):
    """PyTorch's SGD, whose `weight_decay` would be an L2 penalty, with the decay of AdamW instead.

    Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 1: weights shrink by rate times decay, and
    momentum does not see it. Each element goes its own way, so it also works on ZeRO's flat partitions.
    """

    def __init__(self, groups: list[dict[str, Any]], momentum: float, nesterov: bool, lr: float = 0.0) -> None:
        ours = [{**group, "weight_decay": 0.0, "decay": group["weight_decay"]} for group in groups]
        super().__init__(ours, lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0, foreach=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step; a closure is not provided for."""
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1.0 - group["lr"] * group["decay"])
        super().step()


def penalty(matrices: Sequence[Tensor], config: OptimizerConfig) -> Tensor:
    """l1 sum |w| + l2 / 2 sum w^2, f32[], differentiable; `matrices` not empty."""
    terms = [config.l1 * matrix.abs().sum() + config.l2 / 2 * matrix.square().sum() for matrix in matrices]
    return torch.stack(terms).sum()


@torch.no_grad()
def add_penalty(matrices: Sequence[nn.Parameter], config: OptimizerConfig) -> None:
    """Add the penalty's gradient, l1 sign(w) + l2 w, to the gradients that are there."""
    for matrix in matrices:
        if matrix.grad is not None:
            if config.l2:
                matrix.grad.add_(matrix, alpha=config.l2)
            if config.l1:
                matrix.grad.add_(matrix.sign(), alpha=config.l1)
