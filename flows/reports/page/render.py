"""The template of the run page with its words, its style, and the library that draws, packed."""

import base64
import functools
import gzip
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from flows.metrics.accounting import format_energy
from flows.metrics.escaping import escaped
from flows.metrics.formatting import (
    describe_rows,
    format_bytes,
    format_count,
    format_duration,
    format_language,
    format_shots,
    format_time,
)
from flows.metrics.run_metrics import describe_base_model
from flows.runs.guards import describe_gate
from model.files import write_atomically

HERE = importlib.resources.files("flows.reports.page")

SHADED = ("scatter", "bar")
"""Kinds of traces that `draw.js` colours by their role."""


def render(view: Mapping[str, Any]) -> str:
    """The run page as HTML; `view` has everything that its template shows, by name."""
    return fill("flows.reports.page", "template.html", view)


def fill(room: str, template: str, view: Mapping[str, Any]) -> str:
    """A page in the look of the run page: a template of a room, which extends `frame.html`, with what it shows.

    `view["figures"]` are Plotly's by name; each is drawn in the element `figure-NAME`, in the colour of the role that
    its traces' `meta` names.
    """
    for name, figure in view["figures"].items():
        shaded = [trace for trace in figure["data"] if trace["type"] in SHADED]
        assert all("role" in trace["meta"] for trace in shaded), f"{name}: a trace without a role has no colour"
        assert "height" in figure["layout"], f"{name}: the height of a figure is its element's"
    files = {name: (HERE / name).read_text(encoding="utf-8") for name in ("style.css", "draw.js")}
    plotly = packed_plotly() if view["figures"] else ""
    page = environment().from_string((importlib.resources.files(room) / template).read_text(encoding="utf-8"))
    return page.render(**view, plotly=plotly, style=files["style.css"], draw=files["draw.js"])


def write_drawn(
    room: str, template: str, figures: Mapping[str, dict[str, Any] | None], path: Path, **view: Any
) -> None:
    """Write `path` from a template of a room, as `fill` does; a figure that is None is left out."""
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    write_atomically(path, fill(room, template, {"figures": drawn, **view}).encode())


@functools.cache
def packed_plotly() -> str:
    """Plotly's script, gzip in base64: two fifths of its bytes, which every browser since 2023 unpacks by itself."""
    script = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    return base64.b64encode(gzip.compress(script.read_bytes(), mtime=0)).decode()


def environment() -> jinja2.Environment:
    """Autoescape is on: documents, paths and evidence hold HTML that must be shown, never run."""
    loader = jinja2.FunctionLoader(lambda name: (HERE / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        finalize=lambda value: escaped(value) if type(value) is str else value,  # markup of templates is no plain str
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        duration=format_duration,
        compact=format_count,
        size=format_bytes,
        energy=format_energy,
        clock=format_time,
        shots=format_shots,
        rows_told=describe_rows,
        base_model_told=describe_base_model,
        gate_told=describe_gate,
        language_word=format_language,
        inline_script=inline_script,
    )
    return environment


def inline_script(value: Any) -> str:
    """JSON that may stand within a script element: nothing in it can end the element or begin a comment."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
