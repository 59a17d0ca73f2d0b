"""Render the comparison of two runs, as one HTML page in the style of the run page and as tables in a terminal.

The input is what `flows.reports.comparison.compare` returns.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.metrics.formatting import format_shots, plot_text
from flows.metrics.run_metrics import open_artifacts
from flows.reports.charts.training import plain, thin
from flows.reports.comparison import HELDOUT_DIFFERS, SAME, UNPAIRED
from flows.reports.page.render import fill
from model.checkpoint.metrics import final_rows
from model.files import write_atomically
from tasks.artifacts.artifact import Artifact

ROLES = ("series1", "accent")
"""Colour roles of the first and the second run."""

MAX_CHART_RULES = 14

MAX_SETTINGS = 15

MAX_TERMINAL_RULES = 8

MAX_SETTING_CHARS = 40

VERDICT_STYLES = {"better": "green", "worse": "red"}

NUMBER_COLUMNS = ("first", "second", "difference", "items")
"""Columns that are aligned right."""


def comparison_page(found: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """Return the comparison of the runs of `records` as HTML."""
    artifacts = [open_artifacts(record) for record in records]
    view = {"found": found, "figures": figures(found, artifacts), "heldout_differs": HELDOUT_DIFFERS}
    return fill("flows.reports", "comparison.html", view)


def write_comparison(found: dict[str, Any], records: list[dict[str, Any]], path: Path) -> None:
    """Write the comparison page to `path`."""
    write_atomically(path, comparison_page(found, records).encode("utf-8", errors="replace"))


def figures(found: dict[str, Any], artifacts: list[dict[str, Artifact]]) -> dict[str, Any]:
    """Return the figures by name; a figure without data is left out."""
    names = [run["run_id"] for run in found["runs"]]
    removed = sorted(found["removed"], key=lambda pair: -max(value or 0 for value in pair["values"]))[:MAX_CHART_RULES]
    made = {
        "loss": loss_figure(artifacts, names),
        "mixture": pairs_figure(found["mixture"], names, ".1%", "share of the tokens read"),
        "removed": pairs_figure(removed, names, ",d", "documents"),
        "bits": pairs_figure(found["bits_per_byte"], names, ".2f", "bits per byte", rangemode="normal"),
        "scores": scores_figure(found["scores"]),
    }
    return {name: figure for name, figure in made.items() if figure}


def loss_figure(artifacts: list[dict[str, Artifact]], names: list[str]) -> dict[str, Any] | None:
    """Return the loss curves of both runs over tokens read, with their difference (second minus first) below.

    None unless both runs trained.
    """
    if not all("train" in found and found["train"].rows("metrics") for found in artifacts):
        return None
    tables = [final_rows(found["train"].table("metrics"), found["train"].table("steps")) for found in artifacts]
    data = [_line(table, name, role) for table, name, role in zip(tables, names, ROLES, strict=True)]
    x, difference = _loss_difference(*tables)
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": x.tolist(),
            "y": plain(difference),
            "yaxis": "y2",
            "name": "second minus first",
            "showlegend": False,
            "meta": {"role": "series2"},
            "hovertemplate": "%{y:+.4f} at %{x:.3s} tokens<extra></extra>",
        }
    )
    layout = {
        "height": 460,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "hovermode": "x",
        "xaxis": {"title": {"text": "tokens read"}, "anchor": "y2", "tickformat": "~s", "nticks": 6},
        "yaxis": {"title": {"text": "loss, nats"}, "domain": [0.36, 1]},
        "yaxis2": {"title": {"text": "difference"}, "domain": [0, 0.28], "nticks": 4},
    }
    return {"data": data, "layout": layout}


def _line(table: pa.Table, name: str, role: str) -> dict[str, Any]:
    places = thin(table.num_rows)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": table.column("tokens").to_numpy()[places].tolist(),
        "y": plain(table.column("loss").to_numpy()[places]),
        "name": plot_text(name),
        "meta": {"role": role},
        "hovertemplate": "%{y:.4g} at %{x:.3s} tokens<extra></extra>",
    }


def _loss_difference(first: pa.Table, second: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens, second loss minus first loss) at the first run's steps that lie within the second run.

    The second run's loss is interpolated linearly between its own steps.
    """
    x, y = (first.column(name).to_numpy() for name in ("tokens", "loss"))
    other_x, other_y = (second.column(name).to_numpy() for name in ("tokens", "loss"))
    both = (x >= other_x[0]) & (x <= other_x[-1])
    places = np.flatnonzero(both)
    places = places[thin(len(places))] if len(places) else places
    return x[places], np.interp(x[places], other_x, other_y) - y[places]


def pairs_figure(
    pairs: list[dict[str, Any]], names: list[str], form: str, title: str, rangemode: str = "tozero"
) -> dict[str, Any] | None:
    """Return a dot plot with a line for each name: a ring is the first run, a dot the second. None without values."""
    ordered = [pair for pair in reversed(pairs) if any(value is not None for value in pair["values"])]
    if not ordered:
        return None
    labels = [plot_text(pair["name"]) for pair in ordered]
    joins: dict[str, list[Any]] = {"x": [], "y": []}
    for label, pair in zip(labels, ordered, strict=True):
        if None not in pair["values"]:
            joins["x"] += [*pair["values"], None]
            joins["y"] += [label, label, None]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            **joins,
            "showlegend": False,
            "hoverinfo": "skip",
            "meta": {"role": "muted1"},
        }
    ]
    for number, (name, role) in enumerate(zip(names, ROLES, strict=True)):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [pair["values"][number] for pair in ordered],
                "y": labels,
                "name": plot_text(name),
                # Equal values show as a dot inside a ring.
                "marker": {"size": 9 if number else 14, "symbol": "circle" if number else "circle-open"},
                "meta": {"role": role},
                "hovertemplate": f"%{{x:{form}}}<extra>{plot_text(name)}</extra>",
            }
        )
    layout = {
        "height": 110 + 28 * len(ordered),
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "xaxis": {"title": {"text": title}, "tickformat": form, "rangemode": rangemode},
        "yaxis": {
            "automargin": True,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": labels,
            "range": [-0.6, len(labels) - 0.4],
        },
    }
    return {"data": data, "layout": layout}


def scores_figure(scores: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return score differences (second minus first) with their 95% intervals; None without a common benchmark."""
    ordered = list(reversed(scores))
    if not ordered:
        return None
    labels = [f"{plot_text(line['task'])}, {format_shots(line['shots'])}" for line in ordered]
    data = []
    for verdict, role in (("better", "good"), ("worse", "bad"), ("no difference", "muted0")):
        mine = [(label, line) for label, line in zip(labels, ordered, strict=True) if line["verdict"] == verdict]
        if mine:
            reach = [(line["high"] - line["mean"]) if line["high"] is not None else 0.0 for _, line in mine]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [line["mean"] for _, line in mine],
                    "y": [label for label, _ in mine],
                    "error_x": {"type": "data", "array": reach, "thickness": 1.5, "width": 4},
                    "name": verdict,
                    "marker": {"size": 10},
                    "meta": {"role": role},
                    "hovertemplate": "%{x:+.1%}<extra>%{y}</extra>",
                }
            )
    zero = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 0, "x1": 0, "line": {"dash": "dot"}}
    layout = {
        "height": 110 + 30 * len(ordered),
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "shapes": [zero],
        "xaxis": {"title": {"text": "second minus first"}, "tickformat": "+.0%"},
        "yaxis": {
            "automargin": True,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": labels,
            "range": [-0.6, len(labels) - 0.4],
        },
    }
    return {"data": data, "layout": layout}


def print_comparison(found: dict[str, Any], console: Console) -> None:
    """Print tables of stages, settings, training, held-out text, removals and scores."""
    for number, run in enumerate(found["runs"]):
        label = "second" if number else "first"
        console.print(f"[bold]{label:<7}[/] {escape(run['recipe'])} {run['run_id']} ({run['state']})")
    console.print()
    for table in (_stages(found), _settings(found), _numbers(found), _scores(found)):
        if table is not None:
            console.print(table)
            console.print()
    if found["heldout"] is not None:
        console.print(f"[dim]{HELDOUT_DIFFERS}[/]")
    if any(line["how"] == UNPAIRED for line in found["scores"]):
        console.print(
            "[dim]* unpaired test from standard errors, because a run did not keep the score of every item[/]"
        )


def _stages(found: dict[str, Any]) -> Table:
    table = _table("stages", "stage", "", "why")
    for line in found["stages"]:
        style = "dim" if line["verdict"] == SAME else "yellow"
        table.add_row(line["stage"], f"[{style}]{line['verdict']}[/]", escape("; ".join(line["causes"][:3])))
    return table


def _settings(found: dict[str, Any]) -> Table | None:
    if not found["recipe"]:
        return None
    table = _table(f"settings that differ ({len(found['recipe'])})", "setting", "first", "second")
    for line in found["recipe"][:MAX_SETTINGS]:
        table.add_row(escape(line["path"]), *(escape(_shorten(str(value))) for value in line["values"]))
    if len(found["recipe"]) > MAX_SETTINGS:
        table.add_row(f"... and {len(found['recipe']) - MAX_SETTINGS} more", "", "")
    return table


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SETTING_CHARS else f"{text[: MAX_SETTING_CHARS - 1]}…"


def _numbers(found: dict[str, Any]) -> Table | None:
    """Return one table of training numbers, bits per byte, and the removals that differ most."""
    removed = sorted(found["removed"], key=lambda pair: -abs(_difference(pair) or 0))[:MAX_TERMINAL_RULES]
    groups = (
        ("", found["training"]),
        ("bits per byte, ", found["bits_per_byte"]),
        ("", found["heldout"] or []),
        ("dropped by ", [pair for pair in removed if _difference(pair)]),
    )
    rows = [(f"{prefix}{pair['name']}", pair) for prefix, pairs in groups for pair in pairs]
    rows = [(name, pair) for name, pair in rows if any(value is not None for value in pair["values"])]
    if not rows:
        return None
    table = _table("numbers", "", "first", "second", "difference")
    for name, pair in rows:
        difference = _difference(pair)
        signed = "-" if difference is None else _format_signed(difference)
        table.add_row(escape(name), *map(_format_number, pair["values"]), signed)
    return table


def _difference(pair: dict[str, Any]) -> float | None:
    first, second = pair["values"]
    return None if first is None or second is None else second - first


def _format_signed(value: float) -> str:
    return "0" if not value else f"{'+' if value > 0 else '-'}{_format_number(abs(value))}"


def _format_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def _scores(found: dict[str, Any]) -> Table | None:
    if not found["scores"]:
        return None
    table = _table("scores", "benchmark", "first", "second", "difference", "items", "second is")
    for line in found["scores"]:
        interval = "" if line["low"] is None else f" ({100 * line['low']:+.1f} to {100 * line['high']:+.1f})"
        style = VERDICT_STYLES.get(line["verdict"], "default")
        table.add_row(
            escape(f"{line['task']} {format_shots(line['shots'])}"),
            *(f"{value:.1%}" for value in line["values"]),
            f"{100 * line['mean']:+.1f}{interval}{'*' if line['how'] == UNPAIRED else ''}",
            f"{line['n']:,}",
            f"[{style}]{line['verdict']}[/]",
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and column in NUMBER_COLUMNS else "left", overflow="fold")
    return table
