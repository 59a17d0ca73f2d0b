"""The table of nights, and of promotions, in a terminal."""

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from flows.metrics.formatting import format_count
from flows.nightly.history import BLOCKED, FAILED, PROMOTED, Night
from flows.runs.model_registry import Promotion

STYLES = {PROMOTED: "green", BLOCKED: "red", FAILED: "red"}

WHY_LETTERS = 90

BASE_LETTERS = 6
"""What tells run ids apart, whose beginning is the time."""


def table_of_nights(nights: Sequence[Night], current: str | None) -> Table:
    """A line for each night, oldest first; `current` is the run whose model is the current one. `from` are the last
    letters of the run that a night went on from."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, side in (
        ("night (UTC)", "left"),
        ("from", "left"),
        ("files", "right"),
        ("documents", "right"),
        ("tokens", "right"),
        ("bits a byte", "left"),
        ("end", "left"),
        ("why", "left"),
    ):
        table.add_column(column, justify=side, no_wrap=column != "why")  # pyright: ignore[reportArgumentType]
    for night in nights:
        mark = " (current)" if night.run_id == current else ""
        style = STYLES.get(night.state, "")
        end = f"[{style}]{night.state}[/]{mark}" if style else f"{night.state}{mark}"
        table.add_row(
            night.run_id,
            night.base[-BASE_LETTERS:] if night.base else "-",
            f"{sum(map(len, night.files.values())):,}",
            "-" if night.documents is None else f"{night.documents:,}",
            "-" if night.tokens is None else format_count(night.tokens),
            format_bits(night),
            end,
            escape(_cut(night.why)),
        )
    return table


def table_of_promotions(told: Sequence[Promotion]) -> Table:
    """A line for each promotion, oldest first."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("", "run", "when", "who", "why"):
        table.add_column(column)
    for one in told:
        back = f" (takes {one.number - 1} back)" if one.restores is not None else ""
        table.add_row(str(one.number), one.run_id, one.when, escape(one.who), escape(_cut(f"{one.why}{back}")))
    return table


def format_bits(night: Night) -> str:
    """`2.514 -> 2.498`; a dash where there is none."""
    numbers = ["-" if value is None else f"{value:.3f}" for value in (night.bits_before, night.bits_after)]
    return "-" if numbers == ["-", "-"] else " -> ".join(numbers)


def describe_nightly_run(night: Night, remarks: Sequence[str] = ()) -> str:
    """What the command says of a night at its end."""
    lines: list[Any] = [f"night {night.run_id}: {night.state}; {night.why}"]
    if night.documents is not None:
        lines.append(
            f"{night.documents:,} new documents, {format_count(night.tokens or 0)} tokens, bits per byte"
            f" {format_bits(night)}"
        )
    lines += [f"told by {one}" for one in night.told]
    return "\n".join([*lines, *remarks])


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WHY_LETTERS else f"{line[: WHY_LETTERS - 1]}…"
