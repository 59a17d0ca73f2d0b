"""Estimate a recipe: output and cost of each stage, the mixture, the training, and the model size that the data allow.

`plan_recipe` runs a pilot; `plan_from_declared_sizes` uses the sizes that a recipe declares where its text is missing.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from flows.metrics.formatting import format_count
from flows.planning.calculator import PlanOptions, estimate_training, estimate_work
from flows.planning.cost_model import (
    THIS,
    TOKENS_PER_PARAMETER,
    Training,
    effective_tokens,
    network_of,
    optimal_parameters_for_flops,
    solve,
)
from flows.planning.estimate import SourceEstimate, estimate_sources, total
from flows.planning.pilot import Pilot, run_pilot
from flows.planning.terminal import print_training
from flows.planning.values import (
    DeclaredPlan,
    DeclaredSource,
    MixtureEstimate,
    OptimalSizes,
    PilotSummary,
    RecipePlan,
    SourceValues,
    StageEstimate,
    TrainingDisk,
    TrainingEstimate,
)
from flows.recipe.schema import Recipe
from flows.reports.document import PAGE_WIDTH, Table
from model.config.accelerators import Accelerator
from model.config.machine import machine_memory
from model.config.network import NetworkConfig
from model.engines.sizes import whole_sizes
from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import manifest_of
from tasks.artifacts.build import ProgressListener
from tasks.artifacts.results import ChunkResult, VocabResult
from tasks.chunk.mixture import plan_mixtures, whole_mixture
from tasks.sample.config import GOOD_EPOCHS, SampleConfig
from tasks.sample.discovery import find_files
from tasks.sample.mixture import mixture_remarks, plan_from_sizes

UNKNOWN = 10**15
"""Tokens assumed for a source of unknown size: more than any budget, so that no limit applies."""


def plan_recipe(
    recipe: Recipe, root: Path, pilot_share: float, options: PlanOptions, watcher: ProgressListener
) -> RecipePlan:
    """Run the pilot and return the estimate.

    Raises RecipeError for options of the calculator, and what the pilot raises.
    """
    options.check_for_recipe()
    if options.hardware.lower() != THIS:
        options.device()  # Raises for a wrong name before the pilot runs.
    pilot = run_pilot(recipe, root, pilot_share, watcher)
    sources = estimate_sources(pilot, recipe.decontaminate)
    network = network_of(recipe)
    mixture = estimate_mixture(recipe, sources)
    training, sizes = estimate_recipe_training(recipe, network, mixture, options)
    warnings = [*recipe.warnings, *_pilot_warnings(pilot, recipe, sources), *mixture["warnings"]]
    if is_unmeasured(recipe, options):
        warnings.append(
            f"train.device is {recipe.train.device}, and its speed is not known here: for time and cost name the"
            f" hardware, as in --hardware a100 --devices 8 --mfu 40%"
        )
    return {
        "recipe": recipe.name,
        "pilot": _pilot_summary(pilot, pilot_share),
        "stages": [_estimate_stage(stage, pilot, sources, recipe) for stage in pilot.artifacts],
        "sources": mixture["sources"],
        "training": training,
        "optimal_sizes": sizes,
        "disk_of_training": _training_disk(recipe, network),
        "warnings": warnings,
    }


def _pilot_warnings(pilot: Pilot, recipe: Recipe, sources: Mapping[str, SourceEstimate]) -> list[str]:
    warnings: list[str] = []
    raised = [name for name, share in pilot.shares.items() if share.raised]
    if raised:
        warnings.append(
            f"the pilot's share of {', '.join(raised)} was raised, because these sources or the whole corpus are small"
        )
    pieces, wanted = _pieces(pilot), network_of(recipe).vocab_size
    if pieces < wanted:
        warnings.append(
            f"the pilot's vocabulary has {pieces:,} tokens instead of {wanted:,}: the whole text will take fewer tokens"
            f" than estimated here"
        )
    growing = [name for name, source in sources.items() if source.removal.high - source.removal_in_pilot > 0.02]
    if growing:
        warnings.append(
            f"a pilot finds too few duplicates; in {', '.join(growing)} more are expected than it found, and the lower"
            f" ends of the intervals assume that all are pairs"
        )
    return warnings


def _pilot_summary(pilot: Pilot, pilot_share: float) -> PilotSummary:
    return {
        "root": str(pilot.root),
        "asked": pilot_share,
        "seconds": sum(measured.seconds for measured in pilot.measured.values()),
        "vocabulary": _pieces(pilot),
        "sources": {
            name: {
                "documents": pilot.artifacts["sample"].report.sources[name].documents_out,
                "share": share.of_selected,
                "raised": share.raised,
            }
            for name, share in pilot.shares.items()
        },
    }


def _estimate_stage(stage: str, pilot: Pilot, sources: Mapping[str, SourceEstimate], recipe: Recipe) -> StageEstimate:
    measured = pilot.measured[stage]
    manifest = manifest_of(pilot.artifacts[stage])
    left = "decontaminate" if stage in ("vocab", "chunk") else stage
    documents = total(source.documents[left] for source in sources.values())
    size = total(source.bytes[left] for source in sources.values())
    report = pilot.artifacts[stage].report.total()
    tokens = total(source.tokens for source in sources.values()) if stage == "chunk" else None
    work = _growth_of_work(stage, pilot, sources, recipe)
    if stage == "vocab":
        disk = float(manifest["bytes"])
    elif tokens is not None:
        packed = ChunkResult.of(pilot.artifacts["chunk"].report).mixture.values()
        disk = manifest["bytes"] * tokens.value / max(1, sum(line["tokens"] for line in packed))
    else:
        disk = manifest["bytes"] * size.value / max(1, report.bytes_out)
    return {
        "stage": stage,
        "documents": documents,
        "bytes": size,
        "tokens": tokens,
        "disk_bytes": disk,
        "seconds": measured.seconds * work,
        "pilot_peak_bytes": measured.peak_bytes,
    }


def _growth_of_work(stage: str, pilot: Pilot, sources: Mapping[str, SourceEstimate], recipe: Recipe) -> float:
    """Return the work for all data relative to the pilot's, by input bytes; sample reads every file in both."""
    if stage == "sample":
        return 1.0
    before = {"clean": "sample", "dedup": "clean", "decontaminate": "dedup"}.get(stage, "decontaminate")
    whole = sum(source.bytes[before].value for source in sources.values())
    small = float(pilot.artifacts[before].report.total().bytes_out)
    if stage == "vocab":
        whole, small = (min(size, recipe.vocab.max_bytes) for size in (whole, small))
    return max(1.0, whole / max(1.0, small))


def _pieces(pilot: Pilot) -> int:
    return VocabResult.of(pilot.artifacts["vocab"].report).vocabulary["pieces"]


def _training_disk(recipe: Recipe, network: NetworkConfig) -> TrainingDisk:
    sizes, kept = whole_sizes(network, recipe.train.trainer_config()), recipe.train.keep_checkpoints
    return {"model_bytes": sizes.weights, "checkpoint_bytes": (kept + 1) * (sizes.weights + sizes.moments)}


def plan_from_declared_sizes(recipe: Recipe, options: PlanOptions) -> DeclaredPlan:
    """Return the mixture, and the training where the hardware is named.

    The table is that of GPT-3 (Brown et al. 2020, table 2.2): source, tokens, weight, epochs. Raises RecipeError for
    options of the calculator, and where shares depend on sizes and a source declares none.
    """
    options.check_for_recipe()
    config = recipe.sample
    unknown = [source.name for source in config.sources if source.tokens is None]
    if unknown and config.temperature is not None:
        raise RecipeError(
            f"estimate: the shares of the sources depend on their sizes (temperature = {config.temperature:g}), no text"
            f" is here, and {', '.join(unknown)} declares no size. Add `tokens` to it, or provide its files."
        )
    sources = tuple(source.model_copy(update={"tokens": source.tokens or UNKNOWN}) for source in config.sources)
    plans = plan_from_sizes(config.model_copy(update={"sources": sources}), {}, {})
    lines: list[DeclaredSource] = [
        {
            "source": name,
            "tokens": None if name in unknown else plan["available_tokens"],
            "weight": plan["weight"],
            "read_tokens": plan["target_tokens"],
            "epochs": None if name in unknown else plan["epochs"],
            "asked_epochs": None if name in unknown else plan["asked_epochs"],
        }
        for name, plan in plans.items()
    ]
    warnings = ["no text is here: sizes are those that the recipe declares, and no pilot was run"]
    if unknown:
        warnings.append(f"{', '.join(unknown)}: no size is declared, so its epochs are unknown")
    plan: DeclaredPlan = {
        "recipe": recipe.name,
        "sources": lines,
        "training": None,
        "warnings": [*recipe.warnings, *warnings, *mixture_remarks(config, plans)],
    }
    if options.hardware.lower() == THIS:
        plan["warnings"].append("for time, memory and cost name the hardware: --hardware a100 --devices 800 --mfu 40%")
    else:
        network, device = network_of(recipe), options.device()
        tokens = sum(plan["target_tokens"] for plan in plans.values())
        # Days and speed decide the number of devices, which is one where neither does.
        fewest = 1 if options.days is None or options.mfu is None else None
        given = _training(network, device.peak_flops, tokens, options.devices or fewest)
        given = replace(given, days=options.days, mfu=options.mfu)
        plan["training"] = estimate_training(given, device, options.price, network, recipe.train.trainer_config())
    return plan


def _training(network: NetworkConfig, peak_flops: float, tokens: int, devices: float | None) -> Training:
    from model.nn.factory import active_parameter_count, flops_per_token

    # By this formula training reports MFU too, and this machine's speed is measured.
    parameters, of_token = active_parameter_count(network), flops_per_token(network)
    return Training(peak_flops, tokens, parameters, devices, token_flops=of_token)


def print_declared_sizes(plan: DeclaredPlan, console: Console) -> None:
    """Print the plan of `plan_from_declared_sizes` in 80 columns."""
    rows: list[tuple[object, ...]] = [
        (
            line["source"],
            None if line["tokens"] is None else format_count(line["tokens"]),
            f"{line['weight']:.1%}",
            format_count(line["read_tokens"]),
            None if line["epochs"] is None else f"{line['epochs']:.2f}",
        )
        for line in plan["sources"]
    ]
    rows.append(("total", "", "100.0%", format_count(sum(line["read_tokens"] for line in plan["sources"])), ""))
    table = Table((plan["recipe"], "tokens", "weight", "read", "epochs"), rows, marked=[len(rows) - 1])
    console.print(table.rich(PAGE_WIDTH))
    console.print()
    if plan["training"] is not None:
        print_training(plan["training"], console)
    for warning in plan["warnings"]:
        console.print(f"[yellow]![/] {escape(warning)}", width=PAGE_WIDTH)


def has_local_text(config: SampleConfig) -> bool:
    """Return whether at least one source of the recipe has files to read."""
    for source in config.sources:
        try:
            find_files(config.model_copy(update={"sources": (source,)}))
        except InputError:
            continue
        return True
    return False


def estimate_mixture(recipe: Recipe, sources: Mapping[str, SourceEstimate]) -> MixtureEstimate:
    """Return the tokens that each source has and that training reads of it, as the chunk stage will plan it."""
    length, most = recipe.chunk.row_length, recipe.chunk.most_tokens
    available = {name: int(source.tokens.value / length) * most for name, source in sources.items()}
    mixture = whole_mixture(plan_mixtures(available, recipe.chunk))
    lines: list[SourceValues] = []
    warnings: list[str] = []
    empty: list[str] = []
    repeated: list[str] = []
    for name, source in sources.items():
        wanted = mixture.weights[name] * recipe.chunk.budget_tokens
        line: SourceValues = {
            "source": name,
            "tokens": source.tokens,
            "weight": mixture.weights[name],
            "read_tokens": mixture.targets[name],
            "wanted_epochs": wanted / available[name] if available[name] else None,
            "epochs": mixture.targets[name] / available[name] if available[name] else 0.0,
            "removed_as_duplicates": source.removal,
            "held_out": source.held_out,
            "tokens_per_byte": source.tokens.value / max(1.0, source.bytes["sample"].value),
        }
        lines.append(line)
        if line["wanted_epochs"] is None:
            empty.append(name)
        elif line["wanted_epochs"] > GOOD_EPOCHS:
            repeated.append(f"{name} {line['wanted_epochs']:.1f}")
    if empty:
        warnings.append(f"too little text is left to fill a sequence: {', '.join(empty)}")
    limit = f"max_epochs = {recipe.chunk.max_epochs:g}"
    if repeated:
        warnings.append(
            f"weights that need more than {GOOD_EPOCHS:g} epochs, up to which repetition is almost as good as new text"
            f" ({limit} is the limit): {', '.join(repeated)}"
        )
    if mixture.total < mixture.budget:
        warnings.append(
            f"all sources together have {mixture.total:,} of the {recipe.chunk.budget_tokens:,} tokens of the budget"
            f" within {limit}; training ends there"
        )
    return {"sources": lines, "warnings": warnings, "read_tokens": mixture.total}


def estimate_recipe_training(
    recipe: Recipe, network: NetworkConfig, mixture: MixtureEstimate, options: PlanOptions
) -> tuple[TrainingEstimate, OptimalSizes]:
    """Return the recipe's training on the given hardware, and the compute-optimal sizes for its data and the time."""
    tokens = mixture["read_tokens"]
    if is_unmeasured(recipe, options):
        work = _training(network, math.nan, tokens, options.devices or recipe.train.ranks)
        training = estimate_work(work, recipe.train.device, options.price, network, recipe.train.trainer_config())
        return training, _optimal_size_for_data(recipe, mixture, options.days)
    measured = options.hardware.lower() == THIS and options.mfu is None
    device = _measure_this_machine(recipe, network) if measured else options.device()
    given = _training(network, device.peak_flops, tokens, options.devices or 1)
    given = replace(given, mfu=1.0 if measured else options.mfu)
    training = estimate_training(given, device, options.price, network, recipe.train.trainer_config())
    sizes = _optimal_sizes(recipe, mixture, replace(given, mfu=training["mfu"]), options.days)
    if measured:
        # The measured FLOP/s are those of training steps; the processor's peak is not known.
        training["mfu"] = training["peak_flops"] = None
    return training, sizes


def _optimal_size_for_data(recipe: Recipe, mixture: MixtureEstimate, days: float | None) -> OptimalSizes:
    unique = sum(line["tokens"].value for line in mixture["sources"])
    epochs = recipe.chunk.max_epochs
    effective = effective_tokens(unique, epochs)
    return {
        "unique_tokens": unique,
        "epochs": epochs,
        "effective_tokens": effective,
        "parameters_by_data": effective / TOKENS_PER_PARAMETER,
        "read_tokens": unique * epochs,
        "days": days,
        "days_for_data": None,
    }


def _measure_this_machine(recipe: Recipe, network: NetworkConfig) -> Accelerator:
    """Return this machine as an accelerator whose peak is the FLOP/s of the recipe's training steps."""
    from flows.planning.machine_speed import measured_step

    train = recipe.train
    step = measured_step(network, train.rows_at_once, train.threads, train.dtype)
    source = f"measured: {step.tokens_per_second:,.0f} tokens/s, {train.threads} threads"
    return Accelerator(THIS, {train.dtype: step.flops}, float(machine_memory()), source, train.dtype)


def _optimal_sizes(recipe: Recipe, mixture: MixtureEstimate, given: Training, days: float | None) -> OptimalSizes:
    """Return the compute-optimal parameters for all text read `max_epochs` times and for the time, and the bound."""
    sizes = _optimal_size_for_data(recipe, mixture, days)
    data_model = replace(given, tokens=sizes["read_tokens"], parameters=sizes["parameters_by_data"], token_flops=None)
    sizes["days_for_data"] = solve(data_model)[0].days
    if days:
        budget = replace(given, days=days).paid_flops * (given.mfu or 0.0)
        sizes["parameters_by_hours"] = optimal_parameters_for_flops(budget)
        sizes["bound"] = "data" if sizes["parameters_by_data"] < sizes["parameters_by_hours"] else "hours"
    return sizes


def is_unmeasured(recipe: Recipe, options: PlanOptions) -> bool:
    """Return whether the recipe trains on accelerators and no hardware is named, so that their speed is unknown."""
    return recipe.train.device != "cpu" and options.hardware.lower() == THIS
