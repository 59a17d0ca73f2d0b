"""The plan of a recipe: what each stage leaves and costs, what the mixture reads, what training takes and feeds.

The plan of a recipe whose text is not here yet: its mixture from the sizes that its sources state.

The table is that of GPT-3 (Brown et al. 2020, table 2.2): source, tokens, weight, epochs.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.metrics.formatting import format_count
from flows.planning.calculator import Asked, training_told, work_alone_told
from flows.planning.cost_model import (
    GOOD_EPOCHS,
    THIS,
    Accelerator,
    Shape,
    Training,
    balanced_parameters,
    effective_tokens,
    network_of,
    parameters_fed_by,
    solve,
)
from flows.planning.estimate import SourceEstimate, estimate_sources, total
from flows.planning.pilot import STAGES, Pilot, run_pilot
from flows.planning.terminal import PAGE_WIDTH, tell_training
from flows.recipe.schema import Recipe
from model.config.network import NetworkConfig
from model.engines.memory import rank_sizes
from model.errors import InputError, RecipeError
from model.train.micro_batch import machine_memory
from tasks.artifacts.build import ProgressListener
from tasks.chunk.mixture import plan_mixture
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import find_files
from tasks.sample.mixture import mixture_remarks, plan_from_sizes


def plan_recipe(
    recipe: Recipe, root: Path, pilot_share: float, asked: Asked, watcher: ProgressListener
) -> dict[str, Any]:
    """Run the pilot and give the plan as plain values.

    Raises RecipeError for options that only the calculator knows, and what the pilot raises.
    """
    asked.check_for_recipe()
    if asked.hardware.lower() != THIS:
        asked.device()  # A wrong name must not cost a pilot.
    pilot = run_pilot(recipe, root, pilot_share, watcher)
    sources = estimate_sources(pilot, recipe.decontaminate)
    network = network_of(recipe)
    mixture = mixture_told(recipe, sources)
    training, feeding = training_and_feeding(recipe, network, mixture, asked)
    told = {
        "recipe": recipe.name,
        "pilot": _pilot_told(pilot, pilot_share),
        "stages": [_stage_told(stage, pilot, sources, recipe) for stage in STAGES],
        "sources": mixture["sources"],
        "training": training,
        "feeding": feeding,
        "disk_of_training": _training_disk(recipe, network),
    }
    warnings = [*recipe.warnings, *_pilot_warnings(pilot, recipe, sources), *mixture["warnings"]]
    if is_unmeasured(recipe, asked):
        warnings.append(
            f"train.device is {recipe.train.device}, and no figure of such a device exists here: for time and cost name"
            f" it, as in --hardware a100 --devices 8 --mfu 40%"
        )
    return {**told, "warnings": warnings}


def _pilot_told(pilot: Pilot, asked: float) -> dict[str, Any]:
    return {
        "root": str(pilot.root),
        "asked": asked,
        "seconds": sum(measured.seconds for measured in pilot.measured.values()),
        "vocabulary": pilot.artifacts["vocab"].report.facts["vocabulary"]["pieces"],
        "sources": {
            name: {
                "documents": pilot.artifacts["sample"].report.sources[name].documents_out,
                "share": share.of_selected,
                "selected_by_recipe": share.recipe_rate,
                "raised": share.raised,
            }
            for name, share in pilot.shares.items()
        },
    }


def _stage_told(stage: str, pilot: Pilot, sources: Mapping[str, SourceEstimate], recipe: Recipe) -> dict[str, Any]:
    """One stage of the whole: what comes out, disk, seconds on this machine, and the memory that the pilot took."""
    measured = pilot.measured[stage]
    manifest = pilot.artifacts[stage].manifest
    left = "decontaminate" if stage in ("vocab", "chunk") else stage
    documents = total(source.documents[left] for source in sources.values())
    size = total(source.bytes[left] for source in sources.values())
    report = pilot.artifacts[stage].report.total()
    tokens = total(source.tokens for source in sources.values()) if stage == "chunk" else None
    work = _growth_of_work(stage, pilot, sources, recipe)
    if stage == "vocab":
        disk = float(manifest["bytes"])
    elif tokens is not None:
        disk = manifest["bytes"] * tokens.value / max(1, _pilot_tokens(pilot))
    else:
        disk = manifest["bytes"] * size.value / max(1, report.bytes_out)
    return {
        "stage": stage,
        "documents": documents.to_json(),
        "bytes": size.to_json(),
        "tokens": None if tokens is None else tokens.to_json(),
        "disk_bytes": disk,
        "seconds": measured.seconds * work,
        "pilot_seconds": measured.seconds,
        "pilot_peak_bytes": measured.peak_bytes,
    }


def _pilot_tokens(pilot: Pilot) -> int:
    return sum(line["tokens"] for line in pilot.artifacts["chunk"].report.facts["mixture"].values())


def _growth_of_work(stage: str, pilot: Pilot, sources: Mapping[str, SourceEstimate], recipe: Recipe) -> float:
    """How many times the pilot's work the whole is, by bytes that come in; sample reads every file in both."""
    if stage == "sample":
        return 1.0
    before = {"clean": "sample", "dedup": "clean", "decontaminate": "dedup"}.get(stage, "decontaminate")
    whole = sum(source.bytes[before].value for source in sources.values())
    small = float(pilot.artifacts[before].report.total().bytes_out)
    if stage == "vocab":
        whole, small = (min(size, recipe.vocab.max_bytes) for size in (whole, small))
    return max(1.0, whole / max(1.0, small))


def mixture_told(recipe: Recipe, sources: Mapping[str, SourceEstimate]) -> dict[str, Any]:
    """What each source can give and what training reads of it, as the chunk stage will plan it."""
    length, most = recipe.chunk.row_length, recipe.chunk.most_tokens
    available = {name: int(source.tokens.value / length) * most for name, source in sources.items()}
    mixture = plan_mixture(
        available,
        recipe.chunk.weights,
        recipe.chunk.budget_tokens,
        recipe.chunk.max_epochs,
        recipe.chunk.temperature,
    )
    lines: list[dict[str, Any]] = []
    warnings: list[str] = []
    for name, source in sources.items():
        wanted = mixture.weights[name] * recipe.chunk.budget_tokens
        line = {
            "source": name,
            "tokens": source.tokens.to_json(),
            "weight": mixture.weights[name],
            "wanted_tokens": wanted,
            "read_tokens": mixture.targets[name],
            "wanted_epochs": wanted / available[name] if available[name] else None,
            "epochs": mixture.targets[name] / available[name] if available[name] else 0.0,
            "removed_as_duplicates": source.removal.to_json(),
            "removed_in_pilot": source.removal_in_pilot,
            "held_out": source.held_out,
            "tokens_per_byte": source.tokens.value / max(1.0, source.bytes["sample"].value),
        }
        lines.append(line)
        if line["wanted_epochs"] is None:
            warnings.append(f"{name}: nothing is left of it that fills a row")
        elif line["wanted_epochs"] > GOOD_EPOCHS:
            warnings.append(
                f"{name}: its weight asks for {line['wanted_epochs']:.1f} epochs; repetition is almost as good as new"
                f" text up to 4, and chunk.max_epochs = {recipe.chunk.max_epochs:g} stops there"
            )
    if mixture.total < mixture.budget:
        warnings.append(
            f"all sources together give {mixture.total:,} of the {recipe.chunk.budget_tokens:,}"
            f" tokens of the budget within chunk.max_epochs = {recipe.chunk.max_epochs:g}; training ends there"
        )
    return {"sources": lines, "warnings": warnings, "read_tokens": mixture.total}


def training_and_feeding(
    recipe: Recipe, network: NetworkConfig, mixture: Mapping[str, Any], asked: Asked
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The recipe's own training on the hardware asked for, and the sizes that its data and the hours could feed."""
    from model.nn.factory import parameter_count

    shape = Shape(network.layers, network.width, network.context)
    if is_unmeasured(recipe, asked):
        devices, tokens = asked.devices or recipe.train.ranks, mixture["read_tokens"]
        work = Training(math.nan, tokens, parameter_count(network), devices, shape=shape)
        told = work_alone_told(work, recipe.train.device, asked.price, network, recipe.train.trainer_config())
        return told, _fed_by_data(recipe, mixture, asked.days)
    measured = asked.hardware.lower() == THIS and asked.mfu is None
    device = _measured_here(recipe, network) if measured else asked.device()
    devices = asked.devices or 1
    given = Training(
        device.peak_flops,
        mixture["read_tokens"],
        parameter_count(network),
        devices,
        mfu=1.0 if measured else asked.mfu,
        shape=shape,
    )
    told = training_told(given, device, asked.price, network, recipe.train.trainer_config())
    feeding = _feeding(recipe, mixture, replace(given, mfu=told["mfu"]), asked.days)
    if measured:
        # The rate is that of steps themselves; no figure says what share of the processor's best that is.
        told |= {"mfu": None, "peak_flops": None}
    return told, feeding


def _measured_here(recipe: Recipe, network: NetworkConfig) -> Accelerator:
    """This machine, with the FLOP/s that steps of the recipe's training sustain as its own."""
    from flows.planning.machine_speed import measured_step

    train = recipe.train
    step = measured_step(network, train.rows_at_once, train.threads, train.dtype)
    source = f"measured: {step.tokens_per_second:,.0f} tokens/s, {train.threads} threads"
    return Accelerator(THIS, step.flops, float(machine_memory()), source, train.dtype)


def is_unmeasured(recipe: Recipe, asked: Asked) -> bool:
    """Whether the recipe trains on devices, and no hardware is named: what the processor does says nothing of them."""
    return recipe.train.device != "cpu" and asked.hardware.lower() == THIS


def _feeding(recipe: Recipe, mixture: Mapping[str, Any], given: Training, days: float | None) -> dict[str, Any]:
    """The compute-optimal model of all text read `max_epochs` times, and of the hours, and which is the bound."""
    told = _fed_by_data(recipe, mixture, days)
    data_model = replace(given, tokens=told["read_tokens"], parameters=told["parameters_by_data"], shape=None)
    told["days_for_data"] = solve(data_model)[0].days
    if days:
        budget = replace(given, days=days).paid_flops * (given.mfu or 0.0)
        told["parameters_by_hours"] = balanced_parameters(budget)
        told["bound"] = "data" if told["parameters_by_data"] < told["parameters_by_hours"] else "hours"
    return told


def _fed_by_data(recipe: Recipe, mixture: Mapping[str, Any], days: float | None) -> dict[str, Any]:
    unique = sum(line["tokens"]["value"] for line in mixture["sources"])
    epochs = recipe.chunk.max_epochs
    effective = effective_tokens(unique, epochs)
    return {
        "unique_tokens": unique,
        "epochs": epochs,
        "effective_tokens": effective,
        "parameters_by_data": parameters_fed_by(effective),
        "read_tokens": unique * epochs,
        "days": days,
        "days_for_data": None,
    }


def _training_disk(recipe: Recipe, network: NetworkConfig) -> dict[str, float]:
    sizes, kept = rank_sizes(network, recipe.train.trainer_config()), recipe.train.keep_checkpoints
    return {"model_bytes": sizes.weights, "checkpoint_bytes": (kept + 1) * (sizes.weights + sizes.moments)}


def _pilot_warnings(pilot: Pilot, recipe: Recipe, sources: Mapping[str, SourceEstimate]) -> list[str]:
    warnings: list[str] = []
    raised = [name for name, share in pilot.shares.items() if share.raised]
    if raised:
        warnings.append(
            f"the pilot took more than was asked of {', '.join(raised)}: they, or the whole, are small, and less would"
            f" tell little"
        )
    pieces, asked = pilot.artifacts["vocab"].report.facts["vocabulary"]["pieces"], network_of(recipe).vocab_size
    if pieces < asked:
        warnings.append(
            f"the pilot's text gave a vocabulary of {pieces:,} pieces, not {asked:,}: the whole will"
            f" have fewer tokens than told here"
        )
    growing = [name for name, source in sources.items() if source.removal.high - source.removal_in_pilot > 0.02]
    if growing:
        warnings.append(
            f"a pilot sees too few duplicates; for {', '.join(growing)} more are expected than it met, and the lower"
            f" ends of the intervals hold if all of them came in pairs"
        )
    return warnings


UNKNOWN = 10**15
"""Tokens of a source that states no size: more than any budget, so that no cap stops it."""


def text_is_here(config: SampleConfig) -> bool:
    """Whether at least one source of the recipe has files to read."""
    for source in config.sources:
        try:
            find_files(config.model_copy(update={"sources": (source,)}))
        except InputError:
            continue
        return True
    return False


def plan_by_stated_sizes(recipe: Recipe, asked: Asked) -> dict[str, Any]:
    """The mixture as plain values, and the training where the hardware is named.

    Raises RecipeError for options that only the calculator knows, and where shares go by size and a source states none.
    """
    asked.check_for_recipe()
    config = recipe.sample
    unknown = [source.name for source in config.sources if source.tokens is None]
    if unknown and config.temperature is not None:
        raise RecipeError(
            f"plan: the shares of the sources go by their sizes (temperature = {config.temperature:g}), no text is here"
            f" and {', '.join(unknown)} states no size. Give it `tokens`, or bring its files."
        )
    sources = tuple(source.model_copy(update={"tokens": source.tokens or UNKNOWN}) for source in config.sources)
    plans = plan_from_sizes(config.model_copy(update={"sources": sources}), {}, {})
    lines = [
        {
            "source": name,
            "tokens": None if name in unknown else plan.available_tokens,
            "weight": plan.weight,
            "read_tokens": plan.target_tokens,
            "epochs": None if name in unknown else plan.epochs,
            "asked_epochs": None if name in unknown else plan.asked_epochs,
        }
        for name, plan in plans.items()
    ]
    remarks = ["none of the text is here: sizes are those that the recipe states, and no pilot was run"]
    if unknown:
        remarks.append(f"{', '.join(unknown)}: no size is stated, so nothing says how often training repeats it")
    told: dict[str, Any] = {
        "recipe": recipe.name,
        "sources": lines,
        "training": None,
        "warnings": [*recipe.warnings, *remarks, *mixture_remarks(config, plans)],
    }
    if asked.hardware.lower() == THIS:
        told["warnings"].append("for time, memory and cost name the hardware: --hardware a100 --devices 800 --mfu 40%")
    else:
        told["training"] = _training(recipe, asked, sum(plan.target_tokens for plan in plans.values()))
    return told


def _training(recipe: Recipe, asked: Asked, tokens: int) -> dict[str, Any]:
    from model.nn.factory import parameter_count

    network = network_of(recipe)
    device = asked.device()
    shape = Shape(network.layers, network.width, network.context)
    given = Training(
        device.peak_flops, tokens, parameter_count(network), asked.devices or 1, asked.days, asked.mfu, shape
    )
    return training_told(given, device, asked.price, network, recipe.train.trainer_config())


def tell_stated_sizes(told: Mapping[str, Any], console: Console) -> None:
    """The plan on a page of 80 columns."""
    table = Table(box=None, header_style="bold", pad_edge=False, width=PAGE_WIDTH)
    table.add_column(escape(told["recipe"]), no_wrap=True)
    for column in ("tokens", "weight", "read", "epochs"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in told["sources"]:
        table.add_row(
            escape(line["source"]),
            "-" if line["tokens"] is None else format_count(line["tokens"]),
            f"{line['weight']:.1%}",
            format_count(line["read_tokens"]),
            "-" if line["epochs"] is None else f"{line['epochs']:.2f}",
        )
    read = sum(line["read_tokens"] for line in told["sources"])
    table.add_row("[bold]together", "", "[bold]100.0%", f"[bold]{format_count(read)}", "")
    console.print(table)
    console.print()
    if told["training"] is not None:
        tell_training(told["training"], console)
    for warning in told["warnings"]:
        console.print(f"[yellow]![/] {escape(warning)}", width=PAGE_WIDTH)
