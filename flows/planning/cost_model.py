"""The cost model of training: FLOPs = devices x peak x MFU x seconds, memory of a device, and compute-optimal sizes.

MFU, model FLOPs utilisation, is the share of the devices' peak that the model's own arithmetic reaches; recomputed
activations, waiting and restarts lower it (Chowdhery et al. 2022, PaLM, appendix B). Memory comes from
`model.engines.memory`. Peak FLOP/s and memory of accelerators are those that their makers state, for dense matrices.
"""

import difflib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flows.metrics.formatting import format_bytes
from flows.recipe.schema import Recipe
from model.config.accelerators import ACCELERATORS, Accelerator
from model.config.network import GPTConfig, NetworkConfig
from model.config.train import TrainConfig
from model.errors import RecipeError

if TYPE_CHECKING:
    from model.engines.memory import RankMemory

SECONDS_PER_DAY = 86_400.0

DEFAULT_MFU = 0.40

MFU_REASON = "assumed; PaLM-540B reached 46%, OPT-175B 47% while running, and first runs reach less"

BALANCED = "20 tokens per parameter (Hoffmann et al. 2022)"

IMPLIED = "implied by the other numbers"

GIVEN = "given"

EXAMPLES = {"tokens": "20B", "parameters": "1B", "devices": "8", "days": "2"}
"""Example values of options, for error messages."""

_MOST_DIGITS = 4

UNKNOWNS = ("tokens", "parameters", "devices", "days", "mfu")

_SMALLEST_NETWORK = GPTConfig(vocab_size=8, context=8, layers=1, heads=1, width=8)

THIS = "this"
"""Name of this machine's processor as an accelerator."""

TOKENS_PER_PARAMETER = 20.0
"""Tokens per parameter in compute-optimal training (Hoffmann et al. 2022, "Chinchilla", table 3)."""

REPETITION_DECAY = 15.387743
"""Repetitions after which a token is worth 1/e of a new one (R*_D of Muennighoff et al. 2023, "Scaling data-constrained
language models", section 5)."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a network that determine the cost of attention."""

    layers: int
    width: int
    context: int

    @property
    def attention_flops(self) -> float:
        """FLOPs of attention scores per training token: 12 L D T (Kaplan et al. 2020, with full attention)."""
        return 12.0 * self.layers * self.width * self.context


def flops_of_token(parameters: float, shape: Shape | None) -> float:
    """Return FLOPs per training token, forward and backward: 6 N, plus attention where the shape is known."""
    return 6.0 * parameters + (shape.attention_flops if shape is not None else 0.0)


@dataclass(frozen=True)
class Training:
    """The quantities of a training; None where unknown. `mfu` is a share (0 to 1), `peak_flops` of one device."""

    peak_flops: float
    tokens: float | None = None
    parameters: float | None = None
    devices: float | None = None
    days: float | None = None
    mfu: float | None = None
    shape: Shape | None = None
    token_flops: float | None = None
    """FLOPs of a training token, where the network is known."""

    @property
    def flops_per_token(self) -> float:
        """FLOPs of a training token: those of the network, else `flops_of_token`."""
        if self.token_flops is not None:
            return self.token_flops
        return flops_of_token(_known(self.parameters), self.shape)

    @property
    def flops(self) -> float:
        """Training FLOPs of the whole run."""
        return _known(self.tokens) * self.flops_per_token

    @property
    def paid_flops(self) -> float:
        """FLOPs that the devices could compute in the time at their peak."""
        return _known(self.devices) * self.peak_flops * _known(self.days) * SECONDS_PER_DAY

    @property
    def sustained_flops(self) -> float:
        """Model FLOP/s of one device, averaged over the whole time."""
        return self.flops / (_known(self.devices) * _known(self.days) * SECONDS_PER_DAY)

    @property
    def device_hours(self) -> float:
        """Hours of all devices together."""
        return _known(self.devices) * _known(self.days) * 24

    def missing(self) -> tuple[str, ...]:
        """Return the names of the unknown quantities."""
        return tuple(name for name in UNKNOWNS if getattr(self, name) is None)


def solve(given: Training) -> tuple[Training, dict[str, str]]:
    """Return the training without unknowns, and the origin of each quantity that was not given.

    One unknown follows from the others. Where MFU is one of several unknowns, it is assumed; where tokens and
    parameters are both unknown, they are compute-optimal, 20 tokens per parameter (Hoffmann et al. 2022). Raises
    RecipeError where more is unknown.
    """
    origins: dict[str, str] = {}
    if given.mfu is None and len(given.missing()) > 1:
        given = replace(given, mfu=DEFAULT_MFU)
        origins["mfu"] = MFU_REASON
    check_solvable(given)
    missing = given.missing()
    if missing == ("tokens", "parameters"):
        parameters = optimal_parameters_for_flops(given.paid_flops * _known(given.mfu), given.shape)
        given = replace(given, parameters=parameters, tokens=TOKENS_PER_PARAMETER * parameters)
        return given, {**origins, **dict.fromkeys(missing, BALANCED)}
    for unknown in missing:
        given = replace(given, **{unknown: _solved(given, unknown)})
        origins[unknown] = IMPLIED
    return given, origins


def _solved(given: Training, unknown: str) -> float:
    if unknown == "mfu":
        return given.flops / given.paid_flops
    speed = given.peak_flops * _known(given.mfu)
    if unknown == "days":
        return given.flops / (_known(given.devices) * speed * SECONDS_PER_DAY)
    if unknown == "devices":
        return max(1, math.ceil(round(given.flops / (speed * _known(given.days) * SECONDS_PER_DAY), _MOST_DIGITS)))
    useful = given.paid_flops * _known(given.mfu)
    if unknown == "tokens":
        return useful / given.flops_per_token
    of_attention = given.shape.attention_flops if given.shape is not None else 0.0
    parameters = (useful / _known(given.tokens) - of_attention) / 6
    if parameters <= 0:
        raise RecipeError(
            f"estimate: attention alone over {_known(given.tokens):.3g} tokens takes more than {useful:.3g} FLOPs;"
            f" give more --days or --devices, or fewer --tokens"
        )
    return parameters


def check_solvable(given: Training) -> None:
    """Raise RecipeError, with the options to add or to leave out, where too little or too much is given; does not read
    `peak_flops`."""
    for name in ("days", "devices", "mfu"):
        if getattr(given, name) == 0:
            raise RecipeError(f"estimate: --{name} is 0, so nothing is computed; give a number above 0")
    if not given.missing():
        raise RecipeError(
            f"estimate: tokens, parameters, devices ({_known(given.devices):g}), days and MFU are all given, and each"
            f" follows from the others. Leave out one of --days, --mfu and --devices"
        )
    missing = tuple(name for name in given.missing() if name != "mfu" or len(given.missing()) == 1)
    if len(missing) < 2 or missing == ("tokens", "parameters"):
        return
    sought = [("tokens", "parameters")] if {"tokens", "parameters"} <= {*missing} else []
    sought += [(name,) for name in missing if not sought or name not in sought[0]]
    additions = [
        f"  for the {' and the '.join(names)}, add "
        + " ".join(f"--{name} {EXAMPLES[name]}" for name in missing if name not in names)
        for names in sought
    ]
    unknown = ", ".join(f"--{name}" for name in missing)
    head = f"estimate: too little is known: {unknown} are all unknown."
    raise RecipeError("\n".join([head, *additions, "or estimate a recipe: bessemer estimate quickstart"]))


def optimal_parameters_for_flops(flops: float, shape: Shape | None = None) -> float:
    """Return the parameters N that `flops` train on 20 N tokens: 20 N (6 N + attention) = flops."""
    attention = shape.attention_flops if shape is not None else 0.0
    per_token = flops / TOKENS_PER_PARAMETER
    return (-attention + math.sqrt(attention**2 + 24 * per_token)) / 12


def network_of(recipe: Recipe) -> NetworkConfig:
    """Return the network that the recipe trains, with the vocabulary size that the recipe asks for."""
    network = recipe.train.model
    if "vocab_size" in network.model_fields_set:
        return network
    from tasks.vocab.extenders import requested_vocabulary_size

    return network.model_copy(update={"vocab_size": requested_vocabulary_size(recipe.vocab)})


def layouts(train: TrainConfig, devices: int, *, has_experts: bool = False) -> dict[str, TrainConfig]:
    """Return ways to distribute a training over `devices`, by name.

    The recipe's own layout where it uses tensor or pipeline parallelism, else data parallelism, FSDP where the recipe
    has it, and each ZeRO stage that supports optimizer and network.
    """
    parts = train.tensor_parallel * train.pipeline_parallel
    if parts > 1:
        return {f"tensor {train.tensor_parallel} x pipeline {train.pipeline_parallel}": train}
    over = {"ranks": devices, "batch_rows": max(train.batch_rows, devices)}
    found = {"native": train.model_copy(update={**over, "engine": "native", "zero_stage": 1})}
    if train.engine == "fsdp":
        found["FSDP"] = train.model_copy(update=over)
    if train.optimizer.kind in ("adamw", "sgd") and not has_experts:
        for stage in (1, 2, 3):
            found[f"ZeRO-{stage}"] = train.model_copy(update={**over, "engine": "deepspeed", "zero_stage": stage})
    return found


def memory_by_layout(
    network: NetworkConfig | None, train: TrainConfig, parameters: float, devices: float
) -> "dict[str, RankMemory]":
    """Return bytes per device by layout.

    Without `network` only the number of parameters is known, and activations are left out.
    """
    # It loads PyTorch, which takes seconds.
    from model.engines.memory import memory_of_rank, rank_memory
    from model.engines.sizes import rank_sizes

    found: dict[str, RankMemory] = {}
    has_experts = isinstance(network, GPTConfig) and network.experts is not None
    for name, layout in layouts(train, max(1, round(devices)), has_experts=has_experts).items():
        if network is None:
            # Data types and optimizer states per parameter do not depend on the size of the network.
            found[name] = memory_of_rank(rank_sizes(_SMALLEST_NETWORK, layout).of(parameters), layout)
        else:
            found[name] = rank_memory(network, layout)
    return found


BUCKET_BYTES = 100e6
"""More than DeepSpeed's buckets take."""


def memory_bound(recipe: Recipe) -> float:
    """Return bytes that a rank of the recipe's training surely does not reach, computed without PyTorch.

    Eight float32 numbers for each weight (gradient, moments, copies); for each token of a micro-batch more than a block
    keeps of the stream, the MLP and the scores of attention; and the logits.
    """
    network, train = network_of(recipe), recipe.train.trainer_config()
    experts, chosen = 1, 1
    if isinstance(network, GPTConfig) and network.experts is not None:
        experts, chosen = network.experts, network.experts_per_token
    blocks = network.layers * (2 if network.architecture == "t5" else 1)
    head_size = getattr(network, "head_size", None) or network.width // network.heads
    width, hidden = max(network.width, network.heads * head_size), network.hidden
    weights = 3 * network.vocab_size * width + blocks * (8 * width**2 + 4 * width * hidden * experts)
    rows = 1 if train.micro_batch_rows == "auto" else train.rows_at_once
    of_block = 50 * width + 10 * hidden * chosen + 10 * network.heads * network.context
    of_passes = rows * network.context * (blocks * of_block + 8 * network.vocab_size)
    return 4.0 * (8 * weights + of_passes) + BUCKET_BYTES


def recipe_memory(recipe: Recipe) -> "RankMemory":
    """Return the memory of a rank in the recipe's training."""
    # It loads PyTorch, which takes seconds.
    from model.engines.memory import rank_memory

    train = recipe.train.trainer_config()
    if train.micro_batch_rows == "auto":
        # The trainer finds the size before the first step; one row is the minimum.
        train = train.model_copy(update={"micro_batch_rows": 1})
    memory = rank_memory(network_of(recipe), train)
    fields = type(recipe.chunk).model_fields
    changed = [
        name
        for name in ("denoising", "noise_density", "mean_noise_span")
        if getattr(recipe.chunk, name) != fields[name].default
    ]
    if recipe.train.model.architecture == "t5" and changed:
        return replace(memory, activations=None, unknown=f"chunk.{changed[0]} changes the lengths of sequences")
    return memory


def format_memory(memory: "RankMemory") -> str:
    """Return the memory as a sum: `weights 51.4 GB + gradients 51.4 GB + ...`."""
    if memory.start >= memory.at_least:
        return f"{format_bytes(memory.start)} of weights, which each rank initialises whole before they are sharded"
    text = " + ".join(f"{name} {format_bytes(size)}" for name, size in memory.parts.items() if size)
    if memory.activations is None:
        text += f"; activations are added to this (unknown: {memory.unknown})"
    elif not memory.accumulates:
        text += "; gradients and activations of a step's single micro-batch are not all in memory at once"
    return text


def memory_hint(memory: "RankMemory") -> str:
    """Return how to reduce the memory of a rank."""
    if memory.activations and memory.at_least - memory.activations < memory.activations:
        return "Lower train.micro_batch_rows or train.model.context, or set train.recompute = true;"
    return "Choose a smaller train.model, or devices with more memory;"


def find_accelerator(name: str) -> Accelerator:
    """Return the accelerator of that name; raise RecipeError with the known names for any other."""
    wanted = name.lower()
    if wanted in ACCELERATORS:
        return ACCELERATORS[wanted]
    known = [*ACCELERATORS, THIS]
    close = difflib.get_close_matches(wanted, known, n=1)
    hint = f"; did you mean `{close[0]}`?" if close else "."
    raise RecipeError(f"--hardware {name}: unknown{hint} Known: {', '.join(known)} (this machine's processor)")


def effective_tokens(unique: float, epochs: float) -> float:
    """Return the number of new tokens that `unique` tokens read `epochs` times are worth.

    D' = U + U R* (1 - exp(-R / R*)) with R = epochs - 1 repetitions (Muennighoff et al. 2023, equation 5); up to one
    epoch every token is new.
    """
    if epochs <= 1:
        return unique * epochs
    repetitions = epochs - 1
    return unique * (1 + REPETITION_DECAY * (1 - math.exp(-repetitions / REPETITION_DECAY)))


def _known(value: float | None) -> float:
    assert value is not None, "the training must be solved first"
    return value
