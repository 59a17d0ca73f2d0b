"""The equation of training: FLOPs = devices x peak x MFU x seconds, solved for whatever is missing.

MFU, model FLOPs utilisation, is the share of the devices' peak that the model's own arithmetic reaches; recomputed
activations, waiting and restarts all lower it (Chowdhery et al. 2022, PaLM, appendix B).

What training takes of each device, as `model.engines.memory` reads it off the trainer, and whether a recipe fits at
all.

Devices that training runs on: peak arithmetic of dense matrices and memory, as their makers state them.

How large a model the data can feed: compute-optimal sizes, and what repeated text is worth.

Numbers as people write them on a command line: `300B`, `1.5M`, `40%`.
"""

import difflib
import math
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from flows.metrics.formatting import format_bytes
from flows.recipe.schema import Recipe
from model.config.network import GPTConfig, NetworkConfig
from model.config.train import TrainConfig
from model.engines.memory import RankMemory, memory_of_rank, rank_memory, rank_sizes
from model.errors import RecipeError

SECONDS_PER_DAY = 86_400.0

DEFAULT_MFU = 0.40

MFU_REASON = "assumed; PaLM-540B reached 46%, OPT-175B 47% while it ran, and first runs stay below"

BALANCED = "20 tokens a parameter (Hoffmann et al. 2022)"

IMPLIED = "implied by the other numbers"

GIVEN = "given"

EXAMPLES = {"tokens": "20B", "parameters": "1B", "devices": "8", "days": "2"}
"""What may stand behind the options, where too few are given."""

_MOST_DIGITS = 4


@dataclass(frozen=True)
class Shape:
    """The three sizes of a network that decide what attention costs."""

    layers: int
    width: int
    context: int

    @property
    def attention_flops(self) -> float:
        """FLOPs of attention scores for one training token: 12 L D T (Kaplan et al. 2020, with full attention)."""
        return 12.0 * self.layers * self.width * self.context


def flops_of_token(parameters: float, shape: Shape | None = None) -> float:
    """FLOPs of one training token, forward and backward: 6 N, and attention where the network's shape is known."""
    return 6.0 * parameters + (shape.attention_flops if shape is not None else 0.0)


@dataclass(frozen=True)
class Training:
    """A training run's numbers; None where unknown. `mfu` is a share (0 to 1), `peak_flops` of one device."""

    peak_flops: float
    tokens: float | None = None
    parameters: float | None = None
    devices: float | None = None
    days: float | None = None
    mfu: float | None = None
    shape: Shape | None = None

    @property
    def flops(self) -> float:
        """Training FLOPs of the whole run."""
        return _known(self.tokens) * flops_of_token(_known(self.parameters), self.shape)

    @property
    def paid_flops(self) -> float:
        """FLOPs that the devices could do in the time at their peak."""
        return _known(self.devices) * self.peak_flops * _known(self.days) * SECONDS_PER_DAY

    @property
    def sustained_flops(self) -> float:
        """Model FLOP/s of one device over the whole time."""
        return self.flops / (_known(self.devices) * _known(self.days) * SECONDS_PER_DAY)

    @property
    def device_hours(self) -> float:
        """Hours of all devices together."""
        return _known(self.devices) * _known(self.days) * 24

    def missing(self) -> tuple[str, ...]:
        """Names of the unknowns."""
        return tuple(name for name in UNKNOWNS if getattr(self, name) is None)


UNKNOWNS = ("tokens", "parameters", "devices", "days", "mfu")


def _known(value: float | None) -> float:
    assert value is not None, "asked of a training that is not solved yet"
    return value


def solve(given: Training) -> tuple[Training, dict[str, str]]:
    """The training with nothing unknown, and how each number that was not given came to be, by its name.

    One unknown follows from the others. Where MFU and something else are unknown, MFU is assumed; where tokens and
    parameters both are, they are chosen as Hoffmann et al. (2022) would: 20 tokens a parameter. Raises RecipeError
    where that is not enough.
    """
    origins: dict[str, str] = {}
    if given.mfu is None and len(given.missing()) > 1:
        given = replace(given, mfu=DEFAULT_MFU)
        origins["mfu"] = MFU_REASON
    check_solvable(given)
    missing = given.missing()
    if missing == ("tokens", "parameters"):
        parameters = balanced_parameters(given.paid_flops * _known(given.mfu), given.shape)
        given = replace(given, parameters=parameters, tokens=TOKENS_PER_PARAMETER * parameters)
        return given, {**origins, **dict.fromkeys(missing, BALANCED)}
    for unknown in missing:
        given = replace(given, **{unknown: _solved(given, unknown)})
        origins[unknown] = IMPLIED
    return given, origins


def check_solvable(given: Training) -> None:
    """Raise RecipeError, with what could be added, where too little is known; looks at no `peak_flops`."""
    for name in ("days", "devices", "mfu"):
        if getattr(given, name) == 0:
            raise RecipeError(f"plan: --{name} is 0, so nothing is computed; give a number above 0")
    missing = tuple(name for name in given.missing() if name != "mfu" or len(given.missing()) == 1)
    if len(missing) < 2 or missing == ("tokens", "parameters"):
        return
    sought = [("tokens", "parameters")] if {"tokens", "parameters"} <= {*missing} else []
    sought += [(name,) for name in missing if not sought or name not in sought[0]]
    additions = [
        f"  to learn the {' and the '.join(names)}, add "
        + " ".join(f"--{name} {EXAMPLES[name]}" for name in missing if name not in names)
        for names in sought
    ]
    open_ones = ", ".join(f"--{name}" for name in missing)
    head = f"plan: too little is known: {open_ones} are all open."
    raise RecipeError("\n".join([head, *additions, "or plan a recipe: bessemer estimate quickstart"]))


def _solved(given: Training, unknown: str) -> float:
    if unknown == "mfu":
        return given.flops / given.paid_flops
    speed = given.peak_flops * _known(given.mfu)
    if unknown == "days":
        return given.flops / (_known(given.devices) * speed * SECONDS_PER_DAY)
    if unknown == "devices":
        return math.ceil(round(given.flops / (speed * _known(given.days) * SECONDS_PER_DAY), _MOST_DIGITS))
    useful = given.paid_flops * _known(given.mfu)
    if unknown == "tokens":
        return useful / flops_of_token(_known(given.parameters), given.shape)
    of_attention = given.shape.attention_flops if given.shape is not None else 0.0
    parameters = (useful / _known(given.tokens) - of_attention) / 6
    if parameters <= 0:
        raise RecipeError(
            f"plan: attention alone over {_known(given.tokens):.3g} tokens takes more than {useful:.3g} FLOPs; give"
            f" more --days or --devices, or fewer --tokens"
        )
    return parameters


def balanced_parameters(flops: float, shape: Shape | None = None) -> float:
    """The parameters N that `flops` train on 20 N tokens: 20 N (6 N + attention) = flops."""
    attention = shape.attention_flops if shape is not None else 0.0
    per_token = flops / TOKENS_PER_PARAMETER
    return (-attention + math.sqrt(attention**2 + 24 * per_token)) / 12


_ANY = GPTConfig(vocab_size=8, context=8, layers=1, heads=1, width=8)

PARTS = ("weights", "gradients", "optimizer", "buffers", "activations")


def network_of(recipe: Recipe) -> NetworkConfig:
    """The network that the recipe trains, with the vocabulary that it asks for."""
    network = recipe.train.model
    if "vocab_size" in network.model_fields_set:
        return network
    from tasks.vocab.extenders import requested_vocabulary_size

    return network.model_copy(update={"vocab_size": requested_vocabulary_size(recipe.vocab)})


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
            of_all = rank_sizes(_ANY, layout).of(parameters)
            memory = memory_of_rank(of_all, of_all, layout)
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


def memory_words(memory: RankMemory) -> str:
    """The sum: `weights 51.4 GB + gradients 51.4 GB + ...`."""
    if memory.start >= memory.at_least:
        return f"{format_bytes(memory.start)} of weights, which each makes whole before they are spread over the ranks"
    parts = [f"{name} {format_bytes(getattr(memory, name))}" for name in PARTS if getattr(memory, name)]
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


THIS = "this"


@dataclass(frozen=True)
class Accelerator:
    """One device: dense (not sparse) bf16 FLOP/s, or the type named, and bytes of memory."""

    name: str
    peak_flops: float
    memory_bytes: float
    source: str
    arithmetic: str = "bfloat16"


ACCELERATORS = {
    device.name: device
    for device in (
        Accelerator("v100", 125e12, 32e9, "NVIDIA V100 data sheet (2020), SXM2 32 GB", "float16"),
        Accelerator("a100", 312e12, 80e9, "NVIDIA A100 data sheet (2021), SXM 80 GB"),
        Accelerator("a100-40gb", 312e12, 40e9, "NVIDIA A100 data sheet (2020), 40 GB"),
        Accelerator("h100", 989e12, 80e9, "NVIDIA H100 data sheet (2023), SXM, half of the sparse figure"),
        Accelerator("h200", 989e12, 141e9, "NVIDIA H200 data sheet (2024), SXM, half of the sparse figure"),
        Accelerator("tpu-v4", 275e12, 32e9, "Jouppi et al. 2023, table 4"),
        Accelerator("tpu-v5e", 197e12, 16e9, "Google Cloud documentation, TPU v5e"),
        Accelerator("tpu-v5p", 459e12, 95e9, "Google Cloud documentation, TPU v5p"),
    )
}


def find_accelerator(name: str) -> Accelerator:
    """The device of that name; RecipeError with those that are known, for another one."""
    wanted = name.lower()
    if wanted in ACCELERATORS:
        return ACCELERATORS[wanted]
    known = [*ACCELERATORS, THIS]
    close = difflib.get_close_matches(wanted, known, n=1)
    hint = f"; did you mean `{close[0]}`?" if close else "."
    raise RecipeError(f"--hardware {name}: unknown{hint} Known are {', '.join(known)} (this machine's processor)")


TOKENS_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022 ("Chinchilla"), table 3: compute-optimal training reads about 20 tokens for each parameter."""

REPETITION_DECAY = 15.387743
"""R*_D of Muennighoff et al. 2023 ("Scaling data-constrained language models", section 5): repetitions after which
1/e of a fresh token's worth is left."""

GOOD_EPOCHS = 4.0
"""Repetition up to here is almost as good as new text (Muennighoff et al. 2023, abstract)."""


def effective_tokens(unique: float, epochs: float) -> float:
    """What `unique` tokens read `epochs` times are worth in fresh tokens (Muennighoff et al. 2023, equation 5).

    D' = U + U R* (1 - exp(-R / R*)) with R = epochs - 1 repetitions; up to one epoch every token is fresh.
    """
    if epochs <= 1:
        return unique * epochs
    repetitions = epochs - 1
    return unique * (1 + REPETITION_DECAY * (1 - math.exp(-repetitions / REPETITION_DECAY)))


def parameters_fed_by(tokens: float) -> float:
    """Parameters of the compute-optimal model for that many (effective) tokens."""
    return tokens / TOKENS_PER_PARAMETER


_MULTIPLES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([KMBT]?)", re.IGNORECASE)


def count(text: str | None, option: str) -> float | None:
    """The positive number that `300B` or `3e11` means; None for None, RecipeError for anything else."""
    if text is None:
        return None
    match = _COUNT.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise RecipeError(f"{option} {text}: write a positive count such as 2000000, 2M, 1.5B or 3e11")
    return float(match[1]) * _MULTIPLES[match[2].upper()]
