"""Pages of this room and its neighbours: one HTML file each, in the run page's style, that opens offline."""

import importlib.resources
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from model.durable import write_atomically


def write_drawn(
    template: str, figures: Mapping[str, dict[str, Any] | None], path: Path, room: str = "flows.ablate", **view: Any
) -> None:
    """Write `path` from a template of a room; a figure that is None is left out, `view` is what it shows besides."""
    from plotly.offline import get_plotlyjs

    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    here, shared = importlib.resources.files(room), importlib.resources.files("flows.page")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string((here / template).read_text(encoding="utf-8")).render(
        figures=list(drawn),
        # No text within may end the script that holds it.
        data=re.sub(r"<(?=[/!])", r"\\u003c", json.dumps(drawn)),
        plotly=get_plotlyjs() if drawn else "",
        style=(shared / "style.css").read_text(encoding="utf-8"),
        draw=(shared / "draw.js").read_text(encoding="utf-8"),
        **view,
    )
    write_atomically(path, page.encode())
