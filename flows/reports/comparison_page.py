"""The pictures of a comparison as plain Plotly figures, painted as those of the run page.

The comparison of two runs as one HTML file.

The comparison of two runs on a screen of the terminal.

Two runs beside each other: `differing.py` finds what differs, `charts.py` draws it, `writing.py` makes a page of it
in the look of the run page, `telling.py` a table for the terminal.
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
from flows.reports.comparison import APART, OTHER_TEXT, SAME
from flows.reports.page.render import fill
from model.checkpoint.metrics import final_rows
from model.files import write_atomically
from tasks.artifacts.artifact import Artifact

ROLES = ("series1", "accent")
"""Colours of the first run and the second."""

MOST_CHART_RULES = 14


def figures(found: dict[str, Any], artifacts: list[dict[str, Artifact]]) -> dict[str, Any]:
    """The figures that there are, by name; `found` is what `compare` gives."""
    names = [run["run_id"] for run in found["runs"]]
    removed = sorted(found["removed"], key=lambda pair: -max(value or 0 for value in pair["values"]))[:MOST_CHART_RULES]
    made = {
        "loss": loss_figure(artifacts, names),
        "mixture": pairs_figure(found["mixture"], names, ".1%", "share of the tokens read"),
        "removed": pairs_figure(removed, names, ",d", "documents"),
        "bits": pairs_figure(found["bits_per_byte"], names, ".2f", "bits per byte", rangemode="normal"),
        "scores": scores_figure(found["scores"]),
    }
    return {name: figure for name, figure in made.items() if figure}


def loss_figure(artifacts: list[dict[str, Artifact]], names: list[str]) -> dict[str, Any] | None:
    """The losses of both trainings over the tokens that they read, and below the second's less the first's where both
    have one; None unless both trained."""
    if not all("train" in found and found["train"].rows("metrics") for found in artifacts):
        return None
    tables = [final_rows(found["train"].table("metrics"), found["train"].table("steps")) for found in artifacts]
    data = [_line(table, name, role) for table, name, role in zip(tables, names, ROLES, strict=True)]
    x, apart = _differences(*tables)
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": x.tolist(),
            "y": plain(apart),
            "yaxis": "y2",
            "name": "second less first",
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


def _differences(first: pa.Table, second: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the first's steps up to where the second ends, and the second's loss there (between its own steps, on a
    line) less the first's."""
    x, y = (first.column(name).to_numpy() for name in ("tokens", "loss"))
    other_x, other_y = (second.column(name).to_numpy() for name in ("tokens", "loss"))
    both = (x >= other_x[0]) & (x <= other_x[-1])
    places = np.flatnonzero(both)
    places = places[thin(len(places))] if len(places) else places
    return x[places], np.interp(x[places], other_x, other_y) - y[places]


def pairs_figure(
    pairs: list[dict[str, Any]], names: list[str], form: str, title: str, rangemode: str = "tozero"
) -> dict[str, Any] | None:
    """A line for each name with a ring for the first run and a dot for the second; None without values."""
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
                # Two that are the same are a dot in a ring.
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
    """The second run's scores less the first's, with their 95% intervals; None without a benchmark in both."""
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
        "xaxis": {"title": {"text": "second less first"}, "tickformat": "+.0%"},
        "yaxis": {
            "automargin": True,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": labels,
            "range": [-0.6, len(labels) - 0.4],
        },
    }
    return {"data": data, "layout": layout}


def comparison_page(found: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """The page of what `compare` found between the runs of `records`."""
    artifacts = [open_artifacts(record) for record in records]
    told = {"found": found, "figures": figures(found, artifacts), "other_text": OTHER_TEXT}
    return fill("flows.reports", "comparison.html", told)


def write_comparison(found: dict[str, Any], records: list[dict[str, Any]], path: Path) -> None:
    """Write the page to `path`."""
    write_atomically(path, comparison_page(found, records).encode("utf-8", errors="replace"))


MOST_SETTINGS, MOST_TERMINAL_RULES, SETTING_LETTERS = 15, 8, 40

VERDICTS = {"better": "green", "worse": "red"}


def tell_comparison(found: dict[str, Any], console: Console) -> None:
    """Stages, settings, training, held-out text, scores, and the rules whose removals differ most."""
    for number, run in enumerate(found["runs"]):
        word = "second" if number else "first"
        console.print(f"[bold]{word:<7}[/] {escape(run['recipe'])} {run['run_id']} ({run['state']})")
    console.print()
    for table in (_stages(found), _settings(found), _numbers(found), _scores(found)):
        if table is not None:
            console.print(table)
            console.print()
    if found["heldout"] is not None:
        console.print(f"[dim]{OTHER_TEXT}[/]")
    if any(line["how"] == APART for line in found["scores"]):
        console.print("[dim]* from standard errors, as if the items were others: a run did not keep every item's[/]")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and column in NUMBERS else "left", overflow="fold")
    return table


NUMBERS = ("first", "second", "difference", "items")


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
    for line in found["recipe"][:MOST_SETTINGS]:
        table.add_row(escape(line["path"]), *(escape(_cut(str(value))) for value in line["values"]))
    if len(found["recipe"]) > MOST_SETTINGS:
        table.add_row(f"... and {len(found['recipe']) - MOST_SETTINGS} more", "", "")
    return table


def _numbers(found: dict[str, Any]) -> Table | None:
    """Training, bits per byte, and removals, one below the other."""
    removed = sorted(found["removed"], key=lambda pair: -abs(_apart(pair) or 0))[:MOST_TERMINAL_RULES]
    groups = (
        ("", found["training"]),
        ("bits per byte, ", found["bits_per_byte"]),
        ("", found["heldout"] or []),
        ("dropped by ", [pair for pair in removed if _apart(pair)]),
    )
    rows = [(f"{words}{pair['name']}", pair) for words, pairs in groups for pair in pairs]
    rows = [(name, pair) for name, pair in rows if any(value is not None for value in pair["values"])]
    if not rows:
        return None
    table = _table("numbers", "", "first", "second", "difference")
    for name, pair in rows:
        apart = _apart(pair)
        table.add_row(escape(name), *map(_told, pair["values"]), "-" if apart is None else _signed(apart))
    return table


def _scores(found: dict[str, Any]) -> Table | None:
    if not found["scores"]:
        return None
    table = _table("scores", "benchmark", "first", "second", "difference", "items", "second is")
    for line in found["scores"]:
        interval = "" if line["low"] is None else f" ({100 * line['low']:+.1f} to {100 * line['high']:+.1f})"
        style = VERDICTS.get(line["verdict"], "default")
        table.add_row(
            escape(f"{line['task']} {format_shots(line['shots'])}"),
            *(f"{value:.1%}" for value in line["values"]),
            f"{100 * line['mean']:+.1f}{interval}{'*' if line['how'] == APART else ''}",
            f"{line['n']:,}",
            f"[{style}]{line['verdict']}[/]",
        )
    return table


def _apart(pair: dict[str, Any]) -> float | None:
    first, second = pair["values"]
    return None if first is None or second is None else second - first


def _told(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def _signed(value: float) -> str:
    return "0" if not value else f"{'+' if value > 0 else '-'}{_told(abs(value))}"


def _cut(words: str) -> str:
    return words if len(words) <= SETTING_LETTERS else f"{words[: SETTING_LETTERS - 1]}…"
