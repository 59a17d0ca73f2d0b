"""Low-rank adapters: matrices keep their weights, and learn a product of two narrow ones beside them.

Hu et al. 2021, https://arxiv.org/abs/2106.09685, section 4.1: W x + (alpha / r) B A x, where A is random and B zero, so
that training begins at the trained model. After training the product is added to W.

Shapes: I inputs, O outputs, R rank.
"""

import math

import torch
from torch import Tensor, nn

from model.errors import RecipeError
from model.finetune.config import LoRAConfig
from model.nn.block import Block


class AdaptedLinear(nn.Module):
    """A linear layer that does not change, and its adapter."""

    def __init__(self, base: nn.Linear, config: LoRAConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = config.alpha / config.r
        down_RI = torch.empty(config.r, base.in_features)
        # As nn.Linear's own initial weights.
        bound = 1 / math.sqrt(base.in_features)
        self.adapter_down = nn.Parameter(down_RI.uniform_(-bound, bound, generator=generator))
        self.adapter_up = nn.Parameter(torch.zeros(base.out_features, config.r))

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[..., I] to f32[..., O]."""
        return self.base(x) + self.scale * (x @ self.adapter_down.T @ self.adapter_up.T)

    def merged(self) -> Tensor:
        """Return the weights f32[O, I] of a linear layer that computes the same."""
        return self.base.weight.detach() + self.scale * (self.adapter_up.detach() @ self.adapter_down.detach())


def add_adapters(network: nn.Module, config: LoRAConfig, seed: int) -> None:
    """Freeze a network, and give each linear layer of its blocks that `config.targets` names an adapter, in place.

    Raises RecipeError where the network has none of a name.
    """
    generator = torch.Generator().manual_seed(seed)
    network.requires_grad_(False)
    blocks = [module for module in network.modules() if isinstance(module, Block)]
    layers = [
        (block, name, layer)
        for block in blocks
        for name, layer in block.named_children()
        if isinstance(layer, nn.Linear)
    ]
    known = sorted({name for _, name, _ in layers})
    if missing := [target for target in config.targets or () if target not in known]:
        raise RecipeError(
            f"lora.targets names {', '.join(missing)}, which the network does not have; it has {', '.join(known)}"
        )
    for block, name, layer in layers:
        if config.targets is None or name in config.targets:
            setattr(block, name, AdaptedLinear(layer, config, generator))


def merged_weights(modules: nn.Module) -> dict[str, Tensor]:
    """Return the weights of modules with adapters added to their matrices, under the names that they have without."""
    adapted = {name: one for name, one in modules.named_modules() if isinstance(one, AdaptedLinear)}
    found: dict[str, Tensor] = {}
    for name, weight in modules.state_dict().items():
        layer, _, own = name.rpartition(".")
        if layer in adapted:
            continue
        outer, _, base = layer.rpartition(".")
        if base == "base" and outer in adapted:
            found[f"{outer}.{own}"] = adapted[outer].merged() if own == "weight" else weight
        else:
            found[name] = weight
    return {name: weight.detach().cpu().clone() for name, weight in found.items()}
