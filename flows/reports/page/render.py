"""Fill HTML templates in the style of the run page, with figures and the packed Plotly script inside the file."""

import base64
import functools
import gzip
import importlib.resources
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from flows.metrics.accounting import format_energy
from flows.metrics.escaping import escaped
from flows.metrics.formatting import (
    describe_rows,
    format_bytes,
    format_cell,
    format_count,
    format_duration,
    format_language,
    format_shots,
    format_time,
    strict_json,
)
from flows.metrics.run_metrics import describe_base_model
from flows.reports.charts.figure import Figure
from flows.reports.charts.scores import score_error
from flows.runs.guards import describe_gate
from model.files import write_atomically
from tasks.sample.formats import named_record

HERE = importlib.resources.files("flows.reports.page")

COLOURED_TRACES = ("scatter", "bar")
"""Types of traces that `draw.js` colours by their role."""


def fill(template: str, view: Mapping[str, Any]) -> str:
    """Fill a template, which extends `frame.html`, and return the page as HTML; `view` has what it shows, by name.

    `view["figures"]` are Plotly figures by name; each is drawn in the element `figure-NAME`, in the colours of the
    roles that the `meta` of its traces name.
    """
    for name, figure in view["figures"].items():
        coloured = [trace for trace in figure["data"] if trace["type"] in COLOURED_TRACES]
        assert all("role" in trace["meta"] for trace in coloured), f"{name}: a trace without a role has no colour"
        assert "height" in figure["layout"], f"{name}: a figure needs a height, which its element takes"
    files = {name: (HERE / name).read_text(encoding="utf-8") for name in ("style.css", "draw.js")}
    plotly = packed_plotly() if view["figures"] else ""
    return (
        environment()
        .get_template(template)
        .render(**view, plotly=plotly, style=files["style.css"], draw=files["draw.js"])
    )


def write_figures(template: str, figures: Mapping[str, Figure | None], path: Path, **view: Any) -> None:
    """Fill a template and write it to `path`; a figure that is None is left out."""
    present = {name: figure for name, figure in figures.items() if figure is not None}
    write_atomically(path, fill(template, {"figures": present, **view}).encode("utf-8", errors="replace"))


@functools.cache
def packed_plotly() -> str:
    """Return Plotly's script, gzip-compressed in base64: two fifths of its size; browsers since 2023 can unpack it."""
    script = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    return base64.b64encode(gzip.compress(script.read_bytes(), mtime=0)).decode()


@functools.cache
def environment() -> jinja2.Environment:
    """Return the template environment, with autoescape on: documents, paths and evidence may contain HTML."""
    loader = jinja2.FunctionLoader(lambda name: (HERE / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        finalize=lambda value: (
            escaped(value) if type(value) is str else value
        ),  # Markup of templates is a subclass of str.
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
        score_error=score_error,
        describe_rows=describe_rows,
        describe_base_model=describe_base_model,
        describe_gate=describe_gate,
        language_word=format_language,
        inline_script=inline_script,
        shell_quoted=shlex.quote,
        named_record=named_record,
        readable=functools.partial(json.dumps, indent=1),
        cell=format_cell,
        words=_words,
    )
    return environment


def _words(text: str) -> Markup:
    """Return a sentence as HTML, with what is between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(escaped(text)))))  # escaped


def inline_script(value: Any) -> str:
    """Return JSON that is safe inside a script element: it can neither end the element nor begin a comment."""
    return strict_json(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
