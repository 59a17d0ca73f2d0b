"""The plan of a recipe whose text is not here yet: its mixture from the sizes that its sources state.

The table is that of GPT-3 (Brown et al. 2020, table 2.2): source, tokens, weight, epochs.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.planning.accelerators import THIS
from flows.planning.arithmetic import Shape, Training
from flows.planning.calculator import Asked, training_told
from flows.planning.memory import network_of
from flows.planning.telling import PAGE_WIDTH, tell_training
from flows.recipe import Recipe
from flows.wording import compact
from model.errors import InputError, RecipeError
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import find_files
from tasks.sample.mixture import mixture_remarks, plan_from_sizes

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
        "warnings": [*recipe.remarks, *remarks, *mixture_remarks(config, plans)],
    }
    if asked.hardware.lower() == THIS:
        told["warnings"].append("for time, memory and cost name the hardware: --hardware a100 --devices 800 --mfu 40%")
    else:
        told["training"] = _training(recipe, asked, sum(plan.target_tokens for plan in plans.values()))
    return told


def _training(recipe: Recipe, asked: Asked, tokens: int) -> dict[str, Any]:
    from model.networks import parameter_count

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
            "-" if line["tokens"] is None else compact(line["tokens"]),
            f"{line['weight']:.1%}",
            compact(line["read_tokens"]),
            "-" if line["epochs"] is None else f"{line['epochs']:.2f}",
        )
    read = sum(line["read_tokens"] for line in told["sources"])
    table.add_row("[bold]together", "", "[bold]100.0%", f"[bold]{compact(read)}", "")
    console.print(table)
    console.print()
    if told["training"] is not None:
        tell_training(told["training"], console)
    for warning in told["warnings"]:
        console.print(f"[yellow]![/] {escape(warning)}", width=PAGE_WIDTH)
