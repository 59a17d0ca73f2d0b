"""Compute the numbers of one training: for `bessemer estimate` without a recipe, and for a recipe's model."""

import math
from dataclasses import dataclass, replace
from typing import Any

from flows.metrics.formatting import format_count
from flows.planning.cost_model import (
    GIVEN,
    THIS,
    UNKNOWNS,
    Accelerator,
    Shape,
    Training,
    check_solvable,
    find_accelerator,
    flops_of_token,
    memory_told,
    solve,
)
from model.config.network import NetworkConfig
from model.config.train import TrainConfig
from model.errors import RecipeError

SIZES_OF_RECIPE = {
    "tokens": "--set budget_tokens=...",
    "parameters": "--set train.model.layers=... and --set train.model.width=...",
    "layers": "--set train.model.layers=...",
    "width": "--set train.model.width=...",
    "context": "--set train.model.context=...",
}
"""Size that a recipe has of its own -> the option that changes it there."""


@dataclass(frozen=True)
class Asked:
    """What the command line says about the training; None where it says nothing. `price` is that of a device hour."""

    hardware: str = THIS
    devices: float | None = None
    days: float | None = None
    mfu: float | None = None
    price: float | None = None
    tokens: float | None = None
    parameters: float | None = None
    layers: int | None = None
    width: int | None = None
    context: int | None = None

    def check_for_recipe(self) -> None:
        """Raise RecipeError where a size is given that a recipe has of its own."""
        for name, cure in SIZES_OF_RECIPE.items():
            value = getattr(self, name)
            if value is not None:
                raise RecipeError(
                    f"plan: --{name} {format_count(value)} is for the calculator; with a recipe the sizes are its own."
                    f" Leave it out, or change the recipe's with {cure}"
                )

    def device(self) -> Accelerator:
        """The device named, or this machine's processor, measured."""
        if self.hardware.lower() != THIS:
            return find_accelerator(self.hardware)
        from flows.planning.machine_speed import measured_processor

        return measured_processor()

    def shape(self) -> Shape | None:
        """The network's shape where it is given; RecipeError where only a part of it is."""
        sizes = (self.layers, self.width, self.context)
        if self.layers is None and self.width is None and self.context is None:
            return None
        if self.layers is None or self.width is None or self.context is None:
            raise RecipeError(f"--layers, --width and --context belong together; found {sizes}")
        return Shape(self.layers, self.width, self.context)


def calculate(asked: Asked) -> dict[str, Any]:
    """The calculator: any sensible subset of tokens, parameters, devices, days and MFU gives the rest."""
    devices = 1 if asked.devices is None and asked.hardware.lower() == THIS else asked.devices
    given = Training(math.nan, asked.tokens, asked.parameters, devices, asked.days, asked.mfu, asked.shape())
    check_solvable(given)  # Before this machine is measured, which takes seconds.
    device = asked.device()
    return training_told(replace(given, peak_flops=device.peak_flops), device, asked.price)


def training_told(
    given: Training,
    device: Accelerator,
    price: float | None,
    network: NetworkConfig | None = None,
    train: TrainConfig = TrainConfig(),  # noqa: B008  # frozen
) -> dict[str, Any]:
    """The solved training: FLOPs, days, MFU, memory by layout, cost where an hour of a device has a `price`.

    `network` and `train` are the recipe's, where there is one.
    """
    solved, origins = solve(given)
    assert solved.parameters is not None
    assert solved.devices is not None
    return {
        **_work_told(solved),
        "hardware": device.name,
        "hardware_source": device.source,
        "peak_flops": device.peak_flops,
        "days": solved.days,
        "device_hours": solved.device_hours,
        "mfu": solved.mfu,
        "origins": {name: origins.get(name, GIVEN) for name in UNKNOWNS},
        "sustained_flops": solved.sustained_flops,
        "price": price,
        "cost": None if price is None else price * solved.device_hours,
        "arithmetic": device.arithmetic,
        "memory_bytes": device.memory_bytes,
        "memory": memory_told(network, train, solved.parameters, solved.devices),
    }


def work_alone_told(
    given: Training, hardware: str, price: float | None, network: NetworkConfig, train: TrainConfig
) -> dict[str, Any]:
    """The same of devices of which nothing is known: FLOPs and memory; what hangs on their speed is None."""
    assert given.parameters is not None
    assert given.devices is not None
    unknown = ("peak_flops", "days", "device_hours", "mfu", "sustained_flops", "cost", "memory_bytes", "arithmetic")
    return {
        **_work_told(given),
        "hardware": hardware,
        "hardware_source": "not measured here",
        **dict.fromkeys(unknown),
        "origins": {},
        "price": price,
        "memory": memory_told(network, train, given.parameters, given.devices),
    }


def _work_told(training: Training) -> dict[str, Any]:
    assert training.parameters is not None
    return {
        "parameters": training.parameters,
        "tokens": training.tokens,
        "flops": training.flops,
        "flops_per_token": flops_of_token(training.parameters, training.shape),
        "attention": "with attention" if training.shape is not None else "6 N, without attention",
        "devices": training.devices,
    }
