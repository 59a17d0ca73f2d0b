"""The calculator's answer in words for a terminal."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.planning.arithmetic import SECONDS_PER_DAY
from flows.wording import compact, duration, size

MOST_DAYS_IN_HOURS = 2
PAGE_WIDTH = 80
"""Tables keep to so many columns, whatever the window."""


def tell_training(told: dict[str, Any], console: Console) -> None:
    """FLOPs, time, speed, cost and memory of one training, and the sizes that data and hours could feed."""
    rows: list[tuple[str, str, str]] = [
        ("parameters", compact(told["parameters"]), ""),
        ("tokens", compact(told["tokens"]), f"{told['tokens'] / told['parameters']:.3g} a parameter"),
        ("FLOPs", f"{told['flops']:.3g}", f"{told['flops_per_token']:.3g} a token, {told['attention']}"),
        ("hardware", f"{told['devices']:g} x {told['hardware']}", f"peak {told['peak_flops'] / 1e12:.3g} TFLOP/s each"),
        ("time", _time(told["days"]), told["origins"]["days"]),
        ("sustained", f"{told['sustained_flops'] / 1e12:.3g} TFLOP/s", "by each device"),
        ("MFU", f"{told['mfu']:.1%}", told["origins"]["mfu"]),
    ]
    if told["cost"] is not None:
        rows.append(("cost", f"{told['cost']:,.0f}", f"{told['device_hours']:,.0f} device hours at {told['price']:g}"))
    _two_notes("training", rows, console)
    _tell_memory(told, console)


def _tell_memory(told: dict[str, Any], console: Console) -> None:
    limit = told["memory_bytes"]
    table = Table(box=None, header_style="bold", pad_edge=False, width=PAGE_WIDTH)
    table.add_column("memory of a device", min_width=18)
    for stage in told["memory"]:
        table.add_column(f"ZeRO-{stage}", justify="right")
    cells = [size(needed) if needed <= limit else f"[red]{size(needed)}[/]" for needed in told["memory"].values()]
    table.add_row(f"{told['arithmetic']}, of {size(limit)}", *cells)
    console.print(table)
    console.print("[dim]weights, gradients and AdamW; activations come on top; red does not fit[/]\n")


def _time(days: float) -> str:
    return duration(days * SECONDS_PER_DAY) if days < MOST_DAYS_IN_HOURS else f"{days:,.1f} days"


def _two_notes(title: str, rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    table = Table(box=None, show_header=True, header_style="bold", pad_edge=False, width=PAGE_WIDTH)
    table.add_column(title, min_width=12)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", style="dim", ratio=1)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()
