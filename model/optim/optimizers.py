"""AdamW, LAMB, SGD and Muon behind the interface of `torch.optim`, and L1 and L2 penalties.

Learning rates are set into `param_groups` at each step. Every other hyper-parameter comes from the configuration:
a checkpoint holds `state` alone, so that it never brings back an old setting.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from model.config.options import OptimizerConfig

RATE_FACTOR = "rate_factor"
"""Key of a parameter group: what its learning rate is multiplied by."""

TABLES = ("embedding", "new_rows")
"""Prefixes of the names of tables that are looked up, in all networks."""


def make_optimizer(network: nn.Module, config: OptimizerConfig, width_multiplier: float = 1.0) -> "Optimizer":
    """Return the configured optimizer over the trainable parameters of the network, with learning rate 0.

    Matrices are decayed; norms, biases and embeddings (which may be the output head too) are not. In a network
    `width_multiplier` as the one that the rate was chosen for, matrices in blocks learn at the rate divided by that
    factor (Yang et al. 2022, table 8, for Adam). Their decay is multiplied by it: what is applied is decay times rate.
    """
    groups = group_parameters(network)
    transferred = {id(parameter) for parameter in groups.hidden} if width_multiplier != 1.0 else set[int]()
    hidden = [parameter for parameter in groups.matrices if id(parameter) in transferred]
    decayed = [
        {"params": hidden, "weight_decay": config.weight_decay * width_multiplier, RATE_FACTOR: 1 / width_multiplier},
        {"params": [p for p in groups.matrices if id(p) not in transferred], "weight_decay": config.weight_decay},
        {"params": groups.others, "weight_decay": 0.0},
    ]
    decayed = [group for group in decayed if group["params"]]
    if config.kind in ("adamw", "sgd"):
        decayed = [one for group in decayed for one in _by_mesh(group)]
    if config.kind == "lamb":
        return Lamb(decayed, betas=(config.beta1, config.beta2), eps=config.eps)
    if config.kind == "sgd":
        return SGDW(decayed, momentum=config.momentum, nesterov=config.nesterov)
    if config.kind == "muon":
        return MuonWithAdamW(groups, config)
    return _adamw(decayed, config)


def _adamw(groups: list[dict[str, Any]], config: OptimizerConfig) -> "AdamW":
    # Loshchilov and Hutter 2019, fused into one kernel a step.
    return AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def _by_mesh(group: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a group as groups that each have weights over one mesh of ranks, or over none: one kernel takes no
    others."""
    meshes = [getattr(parameter, "device_mesh", None) for parameter in group["params"]]
    return [
        {**group, "params": [one for one, over in zip(group["params"], meshes, strict=True) if over == mesh]}
        for mesh in dict.fromkeys(meshes)
    ]


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return what a gradient of this norm, f[], is multiplied by, f32[]: torch's factor where it is above `max_norm`,
    else 1."""
    factor = (max_norm / (norm.float() + 1e-6)).clamp(max=1.0)
    return torch.where(norm.double() > max_norm, factor, 1.0)


def set_learning_rate(groups: Iterable[dict[str, Any]], rate: float) -> None:
    """Set the learning rate of each group, times the group's `RATE_FACTOR`."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_FACTOR, 1.0)


def optimizer_tensors(optimizer: "Optimizer", parameter: Tensor) -> dict[str, Tensor]:
    """Return the state tensors of a parameter by name; empty before the first step."""
    state = optimizer.state.get(parameter, {})
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class ParameterGroups:
    """The trainable parameters of a network, in its order."""

    matrices: list[nn.Parameter]
    """Decayed and penalised: all matrices except tables."""
    hidden: list[nn.Parameter]
    """Those of the matrices that are in blocks: neither embedding nor head."""
    others: list[nn.Parameter]
    """Norms, biases and tables."""


def group_parameters(network: nn.Module) -> ParameterGroups:
    """Group the trainable parameters of a network by how they are decayed."""
    trainable = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    matrices = {name: p for name, p in trainable if p.dim() >= 2 and not name.startswith(TABLES)}
    return ParameterGroups(
        matrices=list(matrices.values()),
        hidden=[p for name, p in matrices.items() if name.partition(".")[0].endswith("blocks")],
        others=[p for name, p in trainable if name not in matrices],
    )


class Uncompiled(torch.optim.Optimizer):
    """PyTorch's methods as they are written: their wrappers import the compiler, which takes as long as the rest of
    PyTorch, and matter only where it compiles the step."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(Uncompiled, torch.optim.AdamW):
    """PyTorch's, not compiled."""

    found_inf: Tensor | None = None
    """f32[] on the device. With 1 the kernel changes nothing; `torch.amp` sets it for infinite gradients."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class OneByOne(Uncompiled, ABC):
    """An optimizer that updates each parameter by itself."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters once; closures are not supported."""
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    @abstractmethod
    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None: ...


class Lamb(OneByOne):
    """LAMB: Adam's step, scaled for each matrix to the norm of the matrix.

    You et al. 2020, https://arxiv.org/abs/1904.00962, algorithm 2, with the identity as the scaling function. Made for
    batches of 32K rows, where one rate does not suit all layers. As in the authors' own BERT, vectors (norms and
    biases) take Adam's step unscaled. State of a parameter: `step` f32[], `exp_avg` and `exp_avg_sq` of its shape.
    """

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float], eps: float, lr: float = 0.0) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
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
            update.mul_(_trust_ratio(parameter.norm(), update.norm()))
        parameter.add_(update, alpha=-group["lr"])


def _trust_ratio(norm: Tensor, update_norm: Tensor) -> Tensor:
    """Return the factor that scales an update to the norm of its tensor; 1 where either norm is zero."""
    ratio = norm / update_norm
    return torch.where((norm > 0) & (update_norm > 0), ratio, torch.ones_like(ratio))


class Muon(OneByOne):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) over matrices, all of one group.

    The momentum of a matrix is made nearly orthogonal before it is applied, on CUDA in bfloat16 as `torch.optim.Muon`
    does and on a processor in float32: without instructions for bfloat16 a processor multiplies it 20 times slower, and
    PyTorch's took four fifths of a step at width 128. State of a parameter: `momentum_buffer` of its shape.
    """

    def __init__(self, matrices: list[nn.Parameter], weight_decay: float, momentum: float, nesterov: bool) -> None:
        defaults = {"lr": 0.0, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        super().__init__(matrices, defaults)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        update = orthogonalized(gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        # An orthogonal matrix has an RMS of 1 / sqrt(its longer side), AdamW's updates one of about .2 (Liu et al.
        # 2025, https://arxiv.org/abs/2502.16982, section 2.2).
        parameter.add_(update, alpha=-group["lr"] * 0.2 * max(parameter.shape) ** 0.5)


def orthogonalized(matrix: Tensor) -> Tensor:
    """Return U V^T for a matrix U S V^T, with singular values between about .7 and 1.2, by five Newton-Schulz steps.

    A step takes each singular value x to a x + b x^3 + c x^5, with Jordan's coefficients, which bring small values up
    in few steps.
    """
    x = matrix if matrix.device.type == "cpu" else matrix.bfloat16()
    x = x if x.shape[0] <= x.shape[1] else x.T  # The product with its transpose is the smaller one.
    x = x / x.norm().clamp(min=1e-7)  # Singular values of at most 1, as the steps need.
    for _ in range(5):
        gram = x.matmul(x.T)
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


class MuonWithAdamW:
    """Muon for the matrices within blocks, AdamW for all else, with one state and one list of groups.

    Embeddings, heads, norms and biases are no maps between hidden states, so AdamW trains them. Muon's updates get the
    RMS of AdamW's, so that one learning rate and one decay suit both.
    """

    def __init__(self, groups: ParameterGroups, config: OptimizerConfig) -> None:
        hidden = {id(parameter) for parameter in groups.hidden}
        decay = config.weight_decay
        self._muon = Muon(groups.hidden, decay, config.momentum, config.nesterov)
        heads = [parameter for parameter in groups.matrices if id(parameter) not in hidden]
        rest = [{"params": heads, "weight_decay": decay}, {"params": groups.others, "weight_decay": 0.0}]
        self._adamw = _adamw([group for group in rest if group["params"]], config)
        self.param_groups: list[dict[str, Any]] = [*self._muon.param_groups, *self._adamw.param_groups]
        self.state = self._adamw.state = self._muon.state

    def step(self) -> None:
        self._muon.step()
        self._adamw.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._muon.zero_grad(set_to_none)
        self._adamw.zero_grad(set_to_none)


Optimizer = torch.optim.Optimizer | MuonWithAdamW


class SGDW(Uncompiled, torch.optim.SGD):
    """SGD with momentum (Polyak 1964), optionally Nesterov's, and decoupled weight decay.

    Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 1: weights shrink by rate times decay, which
    does not enter the momentum; the `weight_decay` of PyTorch's SGD is an L2 penalty. Every operation is element-wise,
    so it also works on ZeRO's flat partitions.
    """

    _pytorch_step = inspect.unwrap(torch.optim.SGD.step)

    def __init__(self, groups: list[dict[str, Any]], momentum: float, nesterov: bool, lr: float = 0.0) -> None:
        decoupled = [{**group, "weight_decay": 0.0, "decay": group["weight_decay"]} for group in groups]
        super().__init__(decoupled, lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0, foreach=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters once; closures are not supported."""
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1.0 - group["lr"] * group["decay"])
        self._pytorch_step()


def penalty(matrices: Sequence[Tensor], config: OptimizerConfig) -> Tensor:
    """Return l1 sum |w| + l2 / 2 sum w^2, f32[], differentiable; `matrices` must not be empty.

    L1: Tibshirani 1996; L2: Krogh and Hertz 1991. Unlike decoupled decay these gradients count in the norm, are
    clipped, and pass through the optimizer's moments, where Adam divides large ones down again (Loshchilov and Hutter
    2019).
    """
    terms = [config.l1 * matrix.abs().sum() + config.l2 / 2 * matrix.square().sum() for matrix in matrices]
    return torch.stack(terms).sum()


@torch.no_grad()
def add_penalty(matrices: Sequence[nn.Parameter], config: OptimizerConfig) -> None:
    """Add the gradient of `penalty`, l1 sign(w) + l2 w, to the gradients of the matrices that have one."""
    for matrix in matrices:
        if matrix.grad is not None:
            if config.l2:
                matrix.grad.add_(matrix, alpha=config.l2)
            if config.l1:
                matrix.grad.add_(matrix.sign(), alpha=config.l1)
