"""Calculate time, cost and memory of one training from options, as `bessemer estimate` prints without a recipe."""

import math
from dataclasses import dataclass, replace

from flows.metrics.formatting import format_count
from flows.planning.cost_model import (
    GIVEN,
    THIS,
    UNKNOWNS,
    Shape,
    Training,
    check_solvable,
    find_accelerator,
    memory_by_layout,
    solve,
)
from flows.planning.values import TrainingEstimate, Work
from model.config.accelerators import Accelerator
from model.config.network import NetworkConfig
from model.config.train import TrainConfig
from model.errors import RecipeError

RECIPE_SIZES = {
    "tokens": "--set budget_tokens=...",
    "parameters": "--set train.model.layers=... and --set train.model.width=...",
    "layers": "--set train.model.layers=...",
    "width": "--set train.model.width=...",
    "context": "--set train.model.context=...",
}
"""Size that a recipe defines -> the option that changes it in the recipe."""


@dataclass(frozen=True)
class PlanOptions:
    """Options of the command line; None where an option is not given. `price` is that of a device hour."""

    hardware: str = THIS
    devices: int | None = None
    days: float | None = None
    mfu: float | None = None
    price: float | None = None
    tokens: float | None = None
    parameters: float | None = None
    layers: int | None = None
    width: int | None = None
    context: int | None = None

    def check_for_recipe(self) -> None:
        """Raise RecipeError where an option gives a size that the recipe defines."""
        for name, override in RECIPE_SIZES.items():
            value = getattr(self, name)
            if value is not None:
                raise RecipeError(
                    f"estimate: --{name} {format_count(value)} is for the calculator; a recipe defines its own sizes."
                    f" Leave it out, or change the recipe's with {override}"
                )

    def device(self) -> Accelerator:
        """Return the accelerator of that name, or this machine's processor, measured."""
        if self.hardware.lower() != THIS:
            return find_accelerator(self.hardware)
        from flows.planning.machine_speed import measured_processor

        return measured_processor()

    def shape(self) -> Shape | None:
        """Return the network's shape, or None; raise RecipeError where only a part of it is given."""
        sizes = (self.layers, self.width, self.context)
        if self.layers is None and self.width is None and self.context is None:
            return None
        if self.layers is None or self.width is None or self.context is None:
            raise RecipeError(f"--layers, --width and --context must be given together; found {sizes}")
        return Shape(self.layers, self.width, self.context)


def calculate(options: PlanOptions) -> TrainingEstimate:
    """Solve for the unknowns among tokens, parameters, devices, days and MFU, from those that are given."""
    devices = 1 if options.devices is None and options.hardware.lower() == THIS else options.devices
    given = Training(math.nan, options.tokens, options.parameters, devices, options.days, options.mfu, options.shape())
    check_solvable(given)  # Before this machine is measured, which takes seconds.
    device = options.device()
    return estimate_training(replace(given, peak_flops=device.peak_flops), device, options.price)


def estimate_training(
    given: Training,
    device: Accelerator,
    price: float | None,
    network: NetworkConfig | None = None,
    train: TrainConfig = TrainConfig(),  # noqa: B008  # frozen
) -> TrainingEstimate:
    """Return FLOPs, days, MFU, memory by layout, and cost where `price` (of a device hour) is given.

    `network` and `train` are the recipe's, where there is one.
    """
    solved, origins = solve(given)
    assert solved.parameters is not None
    assert solved.devices is not None
    return {
        **_work(solved, network),
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
        "memory": memory_by_layout(network, train, solved.parameters, solved.devices),
    }


def _work(training: Training, network: NetworkConfig | None) -> Work:
    assert training.parameters is not None
    assert training.tokens is not None
    total = training.parameters
    if network is not None:
        from model.nn.factory import parameter_count

        total = parameter_count(network)
    return {
        "parameters": training.parameters,
        "total_parameters": total,
        "tokens": training.tokens,
        "flops": training.flops,
        "flops_per_token": training.flops_per_token,
        "attention": "6 N, without attention" if training.shape is training.token_flops is None else "with attention",
        "devices": training.devices,
    }


def estimate_work(
    given: Training, hardware: str, price: float | None, network: NetworkConfig, train: TrainConfig
) -> TrainingEstimate:
    """Return the same values for unknown devices: FLOPs and memory; values that depend on speed are None."""
    assert given.parameters is not None
    assert given.devices is not None
    return {
        **_work(given, network),
        "hardware": hardware,
        "hardware_source": "not measured here",
        "peak_flops": None,
        "days": None,
        "device_hours": None,
        "mfu": None,
        "origins": {},
        "sustained_flops": None,
        "price": price,
        "cost": None,
        "arithmetic": None,
        "memory_bytes": None,
        "memory": memory_by_layout(network, train, given.parameters, given.devices),
    }
