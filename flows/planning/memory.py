"""What training takes of each device, as `model.memory` reads it off the trainer, and whether a recipe fits at all."""

from dataclasses import asdict, replace
from typing import Any

from flows.recipe import Recipe
from flows.wording import size
from model import micro_batch
from model.architecture import GPTConfig, NetworkConfig
from model.config import TrainConfig
from model.errors import RecipeError
from model.memory import RankMemory, rank_memory, sizes_of, spread

_ANY = GPTConfig(vocab_size=8, context=8, layers=1, heads=1, width=8)
PARTS = ("weights", "gradients", "optimizer", "buffers", "activations")


def network_of(recipe: Recipe) -> NetworkConfig:
    """The network that the recipe trains, with the vocabulary that it asks for."""
    network = recipe.train.model
    if "vocab_size" in network.model_fields_set:
        return network
    from tasks.vocab.kinds import pieces_asked

    return network.model_copy(update={"vocab_size": pieces_asked(recipe.vocab)})


def layouts(train: TrainConfig, devices: int) -> dict[str, TrainConfig]:
    """Ways to spread a training over so many devices, by name: the recipe's own where it cuts a copy of the model, else
    whole copies and each stage of ZeRO that can do the optimizer."""
    parts = train.tensor_parallel * train.pipeline_parallel
    if parts > 1:
        return {f"tensor {train.tensor_parallel} x pipeline {train.pipeline_parallel}": train}
    over = {"ranks": devices, "batch_rows": max(train.batch_rows, devices)}
    found = {"native": train.model_copy(update={**over, "engine": "native", "zero_stage": 1})}
    if train.optimizer.kind in ("adamw", "sgd"):
        for stage in (1, 2, 3):
            found[f"ZeRO-{stage}"] = train.model_copy(update={**over, "engine": "deepspeed", "zero_stage": stage})
    return found


def memory_told(network: NetworkConfig | None, train: TrainConfig, parameters: float, devices: float) -> dict[str, Any]:
    """Bytes of each device by layout and part, as plain values; of a network of which only its parameters are known
    without activations."""
    told: dict[str, Any] = {}
    for name, layout in layouts(train, max(1, round(devices))).items():
        if network is None:
            # Types of weights and what the optimizer remembers hang on no size.
            of_all = sizes_of(_ANY, layout).of(parameters)
            memory = spread(of_all, of_all, layout)
        else:
            memory = rank_memory(network, layout)
        told[name] = {**asdict(memory), "at_least": memory.at_least, "total": memory.total}
    return told


def recipe_memory(recipe: Recipe) -> RankMemory:
    """What a rank of the recipe's training holds."""
    train = recipe.train.trainer_config()
    if train.micro_batch_rows == "auto":
        # Found before the first step, and never fewer.
        train = train.model_copy(update={"micro_batch_rows": 1})
    memory = rank_memory(network_of(recipe), train)
    usual = type(recipe.chunk).model_fields
    told = [
        name
        for name in ("denoising", "noise_density", "mean_noise_span")
        if getattr(recipe.chunk, name) != usual[name].default
    ]
    if recipe.train.model.architecture == "t5" and told:
        return replace(memory, activations=None, unknown=f"chunk.{told[0]} makes rows of other lengths")
    return memory


def check_memory(recipe: Recipe) -> None:
    """Raise RecipeError where the recipe's training cannot fit this machine or its devices."""
    memory, train = recipe_memory(recipe), recipe.train
    here = train.ranks // train.hosts.count
    if train.device == "cuda":
        import torch

        here, room, whose = 1, torch.cuda.get_device_properties(0).total_memory, "the device"
    else:
        room, whose = micro_batch.memory_of_machine(), "this machine"
    taken = here * memory.at_least
    if taken <= room:
        return
    ranks = f"{here} ranks take " if here > 1 else ""
    raise RecipeError(
        f"train: {ranks}at least {size(taken)}, and {whose} has {size(room)}. Each rank: {memory_words(memory)}."
        f" {_cure(memory)} `bessemer plan` shows other layouts"
    )


def memory_words(memory: RankMemory) -> str:
    """The sum: `weights 51.4 GB + gradients 51.4 GB + ...`."""
    if memory.start >= memory.at_least:
        return f"{size(memory.start)} of weights, which each makes whole before they are spread over the ranks"
    parts = [f"{name} {size(getattr(memory, name))}" for name in PARTS if getattr(memory, name)]
    words = " + ".join(parts)
    if memory.activations is None:
        words += f"; activations come on top (unknown: {memory.unknown})"
    elif not memory.accumulates:
        words += "; gradients and activations of the one micro-batch of a step are not all there at once"
    return words


def _cure(memory: RankMemory) -> str:
    if memory.activations and memory.at_least - memory.activations < memory.activations:
        return "Lower train.micro_batch_rows or train.model.context, or set train.recompute = true;"
    return "Choose a smaller train.model, or devices with more memory;"
