"""The calculator's answer in words for a terminal."""

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.metrics.formatting import format_bytes, format_count, format_duration
from flows.planning.cost_model import GOOD_EPOCHS, PARTS, SECONDS_PER_DAY

MOST_DAYS_IN_HOURS = 2

LONGEST_NAME = 16

PAGE_WIDTH = 80
"""Tables keep to so many columns, whatever the window."""


def tell_training(told: dict[str, Any], console: Console) -> None:
    """FLOPs, time, speed, cost and memory of one training, and the sizes that data and hours could feed."""
    rows: list[tuple[str, str, str]] = [
        ("parameters", format_count(told["parameters"]), ""),
        ("tokens", format_count(told["tokens"]), f"{told['tokens'] / told['parameters']:.3g} a parameter"),
        ("FLOPs", f"{told['flops']:.3g}", f"{told['flops_per_token']:.3g} a token, {told['attention']}"),
    ]
    peak = told["hardware_source"]
    if told["peak_flops"] is not None:
        peak = f"peak {_teraflops(told['peak_flops'])} each, {told['arithmetic']}"
    rows.append(("hardware", f"{told['devices']:g} x {told['hardware']}", peak))
    if told["days"] is not None:
        rows.append(("time", _time(told["days"]), told["origins"]["days"]))
        rows.append(("sustained", _teraflops(told["sustained_flops"]), "by each device"))
    if told["mfu"] is not None:
        rows.append(("MFU", f"{told['mfu']:.1%}", told["origins"]["mfu"]))
    if told["cost"] is not None:
        rows.append(("cost", f"{told['cost']:,.0f}", f"{told['device_hours']:,.0f} device hours at {told['price']:g}"))
    _two_notes("training", rows, console)
    _tell_memory(told, console)


def _teraflops(flops: float) -> str:
    return f"{flops / 1e12:.3g} TFLOP/s"


def _tell_memory(told: dict[str, Any], console: Console) -> None:
    limit = told["memory_bytes"]
    fits = math.inf if limit is None else limit
    table = _table(("memory of a device", *told["memory"]))
    layouts = list(told["memory"].values())
    for part in PARTS:
        if any(layout[part] is None or layout[part] for layout in layouts):
            table.add_row(
                part, *("unknown" if layout[part] is None else format_bytes(layout[part]) for layout in layouts)
            )
    cells = [f"{'> ' if layout['total'] is None else ''}{format_bytes(layout['at_least'])}" for layout in layouts]
    red = [layout["at_least"] > fits for layout in layouts]
    table.add_row(
        "[bold]together" + ("" if limit is None else f", of {format_bytes(limit)}"),
        *(f"[bold red]{cell}[/]" if above else f"[bold]{cell}[/]" for cell, above in zip(cells, red, strict=True)),
    )
    console.print(table)
    why = {layout["unknown"] for layout in layouts if layout["total"] is None}
    notes = [
        "together: the most at once, as not all parts are there at the same time; weights and gradients are float32"
    ]
    notes += ["ZeRO has a second copy of its part of the weights (in optimizer) and begins with the whole network"]
    notes += [f"activations are unknown: {reason}" for reason in sorted(why)]
    notes += ["red does not fit"] if any(red) else []
    console.print(f"[dim]{'; '.join(notes)}[/]\n", width=PAGE_WIDTH)


def _time(days: float) -> str:
    return format_duration(days * SECONDS_PER_DAY) if days < MOST_DAYS_IN_HOURS else f"{days:,.1f} days"


def _two_notes(title: str, rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    table = Table(box=None, show_header=True, header_style="bold", pad_edge=False, width=PAGE_WIDTH)
    table.add_column(title, min_width=12)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", style="dim", ratio=1)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def tell_plan(told: dict[str, Any], console: Console) -> None:
    """The whole plan on a page of 80 columns: pilot, stages, sources, training, what could be fed, warnings."""
    pilot = told["pilot"]
    documents = sum(source["documents"] for source in pilot["sources"].values())
    console.print(
        f"[bold]{escape(told['recipe'])}[/]: a pilot of {documents:,} documents took"
        f" {format_duration(pilot['seconds'])}",
        width=PAGE_WIDTH,
    )
    _tell_stages(told, console)
    _tell_sources(told, console)
    tell_training(told["training"], console)
    _tell_feeding(told, console)
    _tell_yields(told, console)
    for warning in told["warnings"]:
        console.print(f"[yellow]![/] {escape(warning)}", width=PAGE_WIDTH)


def _tell_yields(told: dict[str, Any], console: Console) -> None:
    """What the pilot measured, as two lines for the recipe: sample then keeps what training needs and little more."""
    yields = {line["source"]: line["tokens_per_byte"] for line in told["sources"] if line["tokens_per_byte"]}
    if not yields:
        return
    measured = ", ".join(f'"{name}" = {value:.4g}' for name, value in yields.items())
    console.print("[dim]two lines for the recipe's table \\[sample]: little slack is enough with what was measured[/]")
    console.print(f"slack = 1.2\ntokens_per_byte = {{ {measured} }}\n", markup=False, highlight=False, soft_wrap=True)


def _table(columns: Iterable[str], left: int = 1) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, width=PAGE_WIDTH)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=True)
    return table


def _tell_stages(told: dict[str, Any], console: Console) -> None:
    table = _table(("stage", "documents", "95%", "text", "disk", "memory", "time here"))
    for line in told["stages"]:
        documents, peak = line["documents"], line["pilot_peak_bytes"]
        tokens = line["tokens"]
        table.add_row(
            line["stage"],
            format_count(documents["value"]),
            _range(documents),
            format_bytes(line["bytes"]["value"]) if tokens is None else f"{format_count(tokens['value'])} tok",
            format_bytes(line["disk_bytes"]),
            format_bytes(peak) if peak is not None else "-",
            format_duration(line["seconds"]),
        )
    disk = sum(line["disk_bytes"] for line in told["stages"])
    seconds = sum(line["seconds"] for line in told["stages"])
    table.add_row("[bold]together", "", "", "", f"[bold]{format_bytes(disk)}", "", f"[bold]{format_duration(seconds)}")
    console.print(table)
    training = told["disk_of_training"]
    console.print(
        f"[dim]after each stage; memory is the pilot's peak, time is its rate at the recipe's workers (sample: reading"
        f" alone). Training adds {format_bytes(training['model_bytes'])}, and"
        f" {format_bytes(training['checkpoint_bytes'])} of checkpoints while it runs; evaluate is not in it.[/]\n",
        width=PAGE_WIDTH,
    )


def _tell_sources(told: dict[str, Any], console: Console) -> None:
    table = _table(("source", "tokens", "95%", "duplicates", "weight", "read", "epochs"))
    for line in told["sources"]:
        epochs = f"{line['epochs']:.2f}"
        table.add_row(
            escape(line["source"][:LONGEST_NAME]),
            format_count(line["tokens"]["value"]),
            _range(line["tokens"]),
            f"{line['removed_as_duplicates']['value']:.0%}",
            f"{line['weight']:.2f}",
            format_count(line["read_tokens"]),
            epochs if (line["wanted_epochs"] or 0) <= GOOD_EPOCHS else f"[yellow]{epochs}[/]",
        )
    console.print(table)
    console.print()


def _range(told: dict[str, float]) -> str:
    return f"{format_count(told['low'])}-{format_count(told['high'])}" if told["low"] != told["high"] else "exact"


def _tell_feeding(told: dict[str, Any], console: Console) -> None:
    feeding = told["feeding"]
    days = feeding["days_for_data"]
    hours = "" if days is None else f";\n{_time(days)} on this hardware"
    rows = [
        (
            "by the data",
            format_count(feeding["parameters_by_data"]),
            f"{format_count(feeding['unique_tokens'])} tokens x {feeding['epochs']:g} epochs, worth"
            f" {format_count(feeding['effective_tokens'])} fresh ones{hours}",
        )
    ]
    if "bound" in feeding:
        rows.append(
            (
                "by the hours",
                format_count(feeding["parameters_by_hours"]),
                f"20 tokens a parameter in {feeding['days']:g} days",
            )
        )
        rows.append(("the bound", feeding["bound"], ""))
    else:
        rows.append(("by the hours", "-", "say --days" if days is not None else "name the hardware"))
    _two_notes("could feed", rows, console)
