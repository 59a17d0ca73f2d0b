"""The sizes of what a rank holds between steps: its part of the weights, and the optimizer's moments of them.

Weights have the sizes and types of the network's parameters, which are created on PyTorch's meta device without memory.
The optimizer's state is what it keeps after a step over parameters of one element.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from model.config.network import NetworkConfig, width_multiplier
from model.config.train import TrainConfig
from model.engines.layout import Place
from model.nn.factory import make_shapes
from model.nn.stages import stages_holding
from model.optim.optimizers import make_optimizer, optimizer_tensors


@dataclass(frozen=True)
class Sizes:
    """Elements of a network, or of a rank's part of it, and bytes of its weights and of the optimizer's moments."""

    elements: float
    weights: float
    moments: float

    def of(self, elements: float) -> "Sizes":
        """Return the sizes scaled to a network of so many elements."""
        factor = elements / self.elements
        return Sizes(elements, factor * self.weights, factor * self.moments)


def whole_sizes(model: NetworkConfig, train: TrainConfig) -> Sizes:
    """Return the sizes of the whole network."""
    return rank_sizes(
        model, train.model_copy(update={"tensor_parallel": 1, "pipeline_parallel": 1, "engine": "native"})
    )


def rank_sizes(model: NetworkConfig, train: TrainConfig, rank: int = 0) -> Sizes:
    """Return the sizes of the part that a rank holds; with ZeRO, of the whole."""
    network, place = make_shapes(model), Place(train, rank)
    weights = {
        name: weight
        for name, weight in network.named_parameters()
        if place.stage in stages_holding(name, model, train.pipeline_parallel)
    }
    elements = {
        name: math.prod(side.stop - side.start for side in place.part(name, weight.shape))
        for name, weight in weights.items()
    }
    moments = moments_per_element(network, model, train)
    return Sizes(
        elements=sum(elements.values()),
        weights=sum(count * weights[name].element_size() for name, count in elements.items()),
        moments=sum(count * moments[name] for name, count in elements.items()),
    )


def moments_per_element(network: nn.Module, model: NetworkConfig, train: TrainConfig) -> dict[str, int]:
    """Return the bytes of optimizer state for each element, by parameter name, measured by a step over parameters of
    one element. These replace the parameters of the network."""
    for name, parameter in list(network.named_parameters()):
        module, _, kind = name.rpartition(".")
        one = nn.Parameter(torch.zeros((1,) * parameter.dim(), dtype=parameter.dtype))
        one.grad = torch.zeros_like(one)
        setattr(network.get_submodule(module), kind, one)
    optimizer = make_optimizer(network, train.optimizer, width_multiplier(model))
    optimizer.step()
    return {
        name: sum(state.nbytes for state in optimizer_tensors(optimizer, one).values() if state.shape == one.shape)
        for name, one in network.named_parameters()
    }
