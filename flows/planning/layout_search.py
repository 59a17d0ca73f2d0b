"""Find the cheapest way to divide a training over devices: data x tensor x pipeline ranks, and rows of a micro-batch.

A layout's cost is the time of a step: the arithmetic, longer by what is recomputed and by the pipeline's bubble, and
all messages as if nothing were computed meanwhile. It ranks layouts and is no forecast. Layouts are ordered by sizes
alone; the cheapest are started dry (`model/engines/dry_layout.py`), which says whether they fit."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict

from flows.planning.cost_model import network_of
from flows.recipe.schema import Recipe
from model.config.accelerators import Accelerator
from model.config.network import NetworkConfig
from model.config.rules import check_consistency
from model.config.train import TrainConfig
from model.errors import RecipeError

if TYPE_CHECKING:
    from model.engines.counters import Messages
    from model.engines.dry_layout import DryLayout, DryRank

EFFICIENCY = 0.5
"""Share of the peak that arithmetic reaches between messages, where no MFU is given; assumed."""

FREE = 0.1
"""Share of a device's memory that is left to libraries and to fragmentation; assumed."""

MACHINE = 8
"""Devices of a machine, which are linked by more than the network."""

MOST_STAGES = 8

MOST_ROWS = 16
"""Largest micro-batch that is tried."""

MOST_STARTS = 4
"""Layouts that are started dry, each in seconds."""


def search_layouts(
    network: NetworkConfig, train: TrainConfig, device: Accelerator, devices: int
) -> "tuple[list[TriedLayout], str]":
    """Return the layouts of a training over so many devices that were started dry, the cheapest that fits first, and
    why some were not tried; RecipeError for devices without known links."""
    from model.engines.dry_layout import dry_layout

    if device.links is None:
        raise RecipeError(
            f"estimate --layout: the speed of messages between devices of {device.name} is not known here; name an"
            f" accelerator on which the trainer runs: --hardware v100, a100, h100 or h200"
        )
    candidates, reasons = list[TrainConfig](), dict[str, None]()
    over = {"engine": "fsdp", "zero_stage": type(train).model_fields["zero_stage"].default, "compile": False}
    for settings in _combinations(train, devices):
        try:
            candidate = TrainConfig.model_validate(train.model_dump() | over | settings)
            check_consistency(network, candidate)
        except ValueError as error:
            if "batch_rows" not in (reason := _reason(error)):  # Other sizes are tried anyway.
                reasons[reason] = None
            continue
        candidates.append(candidate)
    rough = [(_rough_seconds(network, one, device), one) for one in candidates]
    found: list[TriedLayout] = []
    for least, candidate in sorted(rough, key=lambda one: one[0]):
        best = min((one["seconds"] for one in found if one["fits"]), default=float("inf"))
        if len(found) >= MOST_STARTS or least > best:
            break
        if _least_bytes(network, candidate) > device.memory_bytes:
            continue
        layout = dry_layout(network, candidate)
        fits = layout.fullest.peak <= (1 - FREE) * device.memory_bytes
        seconds = step_seconds(network, candidate, layout, device)
        found.append({**_values(candidate, layout), "seconds": seconds, "fits": fits})
    found.sort(key=lambda one: (not one["fits"], one["seconds"]))
    return found, "; ".join(reasons)


def _combinations(train: TrainConfig, devices: int) -> Iterator[dict[str, int]]:
    for tensor in (1, 2, 4, 8):
        for stages in range(1, min(MOST_STAGES, devices // tensor) + 1):
            if devices % (tensor * stages):
                continue
            share = train.batch_rows // (devices // (tensor * stages))
            for rows in (2**power for power in range(MOST_ROWS.bit_length())):
                if rows <= share:
                    yield {
                        "tensor_parallel": tensor,
                        "pipeline_parallel": stages,
                        "micro_batch_rows": rows,
                        "ranks": devices,
                    }


def _reason(error: ValueError) -> str:
    text = str(error).partition("Value error, ")[2].partition(" [type=")[0] or str(error)
    return text.partition(". ")[0]


def step_flops(network: NetworkConfig, train: TrainConfig) -> float:
    """Return the FLOPs of a step on one device, recomputed ones included."""
    from model.nn.factory import flops_per_token
    from model.objectives.synthetic import random_batch

    tokens = train.batch_rows * random_batch(network, 1).tokens
    return flops_per_token(network) * tokens / train.ranks * (4 / 3 if train.recompute else 1)


def step_seconds(network: NetworkConfig, train: TrainConfig, layout: "DryLayout", device: Accelerator) -> float:
    """Return the time of a step in a layout that was started dry."""
    arithmetic = step_flops(network, train) / (EFFICIENCY * device.peak_flops) / (1 - layout.bubble)
    return arithmetic + max(_message_seconds(train, rank.messages, device) for rank in layout.ranks)


def _message_seconds(train: TrainConfig, messages: "Messages", device: Accelerator) -> float:
    """Return the time of messages: in a ring a rank sends all that it gathers or divides, and twice what it sums."""
    links = device.links
    assert links is not None, "`search_layouts` refuses a device without known links"
    data = links.machine if train.tensor_parallel * train.data_parallel <= MACHINE else links.network
    return (
        (messages.all_gather + messages.reduce_scatter + 2 * messages.sums) / data
        + 2 * messages.tensor_sums / (links.machine if train.tensor_parallel <= MACHINE else links.network)
        + messages.sends / links.network
    )


def _rough_seconds(network: NetworkConfig, train: TrainConfig, device: Accelerator) -> float:
    """Return the time of a step from sizes alone: weights gathered once or twice a micro-batch, four sums of the stream
    a block."""
    from model.engines.counters import Messages
    from model.engines.dry_layout import micro_batch_count
    from model.nn.factory import parameter_count

    stages, tensor, passes = train.pipeline_parallel, train.tensor_parallel, micro_batch_count(train)
    weights = 4 * parameter_count(network) / (stages * tensor)
    stream = 4.0 * train.rows_at_once * network.context * network.width
    messages = Messages(
        all_gather=(2 if stages == 1 else 1) * passes * weights,
        reduce_scatter=(passes if stages == 1 else 1) * weights,
        tensor_sums=4 * passes * network.layers / stages * stream if tensor > 1 else 0.0,
        sends=passes * stream if stages > 1 else 0.0,
    )
    bubble = (stages - 1) / (passes + stages - 1)
    arithmetic = step_flops(network, train) / (EFFICIENCY * device.peak_flops) / (1 - bubble)
    return arithmetic + _message_seconds(train, messages, device)


def _least_bytes(network: NetworkConfig, train: TrainConfig) -> float:
    """Return less than a rank needs: its weights, and inputs of blocks of micro-batches in flight."""
    from model.engines.dry_layout import micro_batch_count
    from model.nn.factory import parameter_count

    in_flight = min(train.pipeline_parallel, micro_batch_count(train))
    stream = 4.0 * train.rows_at_once * network.context * network.width
    return 4 * parameter_count(network) / train.ranks + in_flight * network.layers / train.pipeline_parallel * stream


class StartedLayout(TypedDict):
    """A layout that was started dry."""

    layout: str
    """`data 32 x tensor 4 x pipeline 8, 1 row`."""
    ranks: "tuple[DryRank, ...]"
    micro_batches: int
    bubble: float
    peak: float
    settings: dict[str, int | str]
    """Keys of `train`."""


class OwnLayout(StartedLayout):
    """The recipe's, which is not compared with others."""

    seconds: None
    fits: None


class TriedLayout(StartedLayout):
    """One of a search, and its cost."""

    seconds: float
    """Of a step."""
    fits: bool


class KeptValues(TypedDict):
    """Bytes of activations that a micro-batch of so many rows keeps, with recomputing and without."""

    rows: int
    recomputed: float
    whole: float


class LayoutSection(TypedDict):
    """A recipe's layout and the cheapest for a device, as `estimate --layout` prints them."""

    recipe: str
    engine: str
    own: OwnLayout | None
    kept: list[KeptValues]
    memory_bytes: float | None
    """Of the device."""
    tried: list[TriedLayout]
    """The cheapest that fits first."""
    refused: str
    """Why some were not tried; empty where nothing prevented any."""


def layout_section(recipe: Recipe, device: Accelerator | None, devices: int | None) -> LayoutSection:
    """Return the recipe's layout as its ranks start, and the cheapest that fits the device.

    Without a device nothing is searched.
    """
    from model.engines.dry_layout import dry_layout

    train, network = recipe.train.trainer_config(), network_of(recipe)
    own = dry_layout(network, train) if train.divides_weights else None
    section: LayoutSection = {
        "recipe": recipe.name,
        "engine": train.engine,
        "own": None if own is None else {**_values(train, own), "seconds": None, "fits": None},
        "kept": [] if own is None else _kept(network, train, own.ranks[0]),
        "memory_bytes": None if device is None else device.memory_bytes,
        "tried": [],
        "refused": "",
    }
    if device is not None:
        section["tried"], section["refused"] = search_layouts(network, train, device, devices or train.ranks)
    return section


def _kept(network: NetworkConfig, train: TrainConfig, first: "DryRank") -> list[KeptValues]:
    """Return what micro-batches of some sizes keep on the first rank, which was started as `train` has it."""
    from model.engines.dry_layout import dry_rank

    def kept(rows: int, recompute: bool) -> float:
        if (rows, recompute) == (train.rows_at_once, train.recompute):
            return first.kept
        batch_rows = rows * train.data_parallel
        changed = {"recompute": recompute, "micro_batch_rows": rows, "batch_rows": batch_rows}
        return dry_rank(network, train.model_copy(update=changed), 0).kept

    return [
        {"rows": rows, "recomputed": kept(rows, True), "whole": kept(rows, False)}
        for rows in (train.rows_at_once, 2 * train.rows_at_once)
    ]


def _values(train: TrainConfig, layout: "DryLayout") -> StartedLayout:
    rows = f"{train.rows_at_once} row{'s' * (train.rows_at_once > 1)}"
    parts = f"data {train.data_parallel} x tensor {train.tensor_parallel} x pipeline {train.pipeline_parallel}"
    return {
        "layout": f"{parts}, {rows}",
        "ranks": layout.ranks,
        "micro_batches": layout.micro_batches,
        "bubble": layout.bubble,
        "peak": layout.fullest.peak,
        "settings": {
            name: getattr(train, name)
            for name in ("engine", "ranks", "tensor_parallel", "pipeline_parallel", "micro_batch_rows")
        },
    }
