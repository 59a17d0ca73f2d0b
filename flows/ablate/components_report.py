"""Parts of a network and what each is worth, as Markdown, JSON and a page."""

from pathlib import Path
from typing import Any

from flows.page.rendering import write_drawn
from flows.wording import compact
from model.durable import write_atomically
from model.sealed import write_sealed

WITHIN = 1.96
"""Standard errors on each side of a 95% interval."""
ROLES = {"head": "series1", "layer": "accent"}


def write_report(found: dict[str, Any], root: Path) -> dict[str, str]:
    """Write table and page; returns their paths."""
    folder = root / "ablations" / f"components-{found['run_id']}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / file for name, file in (("table", "table.json"), ("markdown", "table.md"))}
    write_sealed(paths["table"], found)
    write_atomically(paths["markdown"], as_markdown(found).encode())
    page = folder / "page.html"
    figures = {"size": size_figure(found), "alone": alone_figure(found)}
    write_drawn("flows.ablate", "components.html", figures, page, found=found, compact=compact, within=WITHIN)
    return {**{name: str(path) for name, path in paths.items()}, "page": str(page)}


def as_markdown(found: dict[str, Any]) -> str:
    """Parts by themselves, dearest first, then one after the other."""
    whole = f"{found['bits_per_byte']:.4f} bits per byte with {found['parameters']:,} parameters"
    parts = [
        f"# Parts of the network of run {found['run_id']}",
        "",
        f"Whole: {whole}, on {found['bytes']:,} bytes of held-out text in {found['documents']:,} documents.",
        "",
        "| taken out | parameters left | bits per byte | more | 95% |",
        "|---|---|---|---|---|",
    ]
    parts += [_row(line) for line in sorted(found["alone"], key=lambda line: -line["more"])]
    for kind, curve in found["curves"].items():
        parts += ["", f"{kind.capitalize()}s one after the other, the one that costs least by itself first:", ""]
        parts += ["| taken out | parameters left | bits per byte | more | 95% |", "|---|---|---|---|---|"]
        parts += [_row(line) for line in curve]
    return "\n".join([*parts, ""])


def _row(line: dict[str, Any]) -> str:
    reach = "" if line["stderr"] is None else f"± {WITHIN * line['stderr']:.4f}"
    return f"| {line['part']} | {line['parameters']:,} | {line['bits_per_byte']:.4f} | {line['more']:+.4f} | {reach} |"


def size_figure(found: dict[str, Any]) -> dict[str, Any]:
    """Size against bits per byte, while parts go one after the other."""
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": [line["parameters"] for line in curve],
            "y": [line["bits_per_byte"] for line in curve],
            "text": [line["part"] for line in curve],
            "name": f"{kind}s taken out",
            "meta": {"role": ROLES[kind]},
            "hovertemplate": "%{text}: %{y:.4f} bits per byte<extra></extra>",
        }
        for kind, curve in found["curves"].items()
    ]
    layout = {
        "height": 380,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {"title": {"text": "parameters left"}},
        "yaxis": {"title": {"text": "bits per byte"}, "automargin": True},
    }
    return {"data": data, "layout": layout}


def alone_figure(found: dict[str, Any]) -> dict[str, Any]:
    """What each part costs when it goes by itself."""
    ordered = sorted(found["alone"], key=lambda line: line["more"])
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [line["more"] for line in ordered],
        "y": [line["part"] for line in ordered],
        "error_x": {"type": "data", "array": [WITHIN * (line["stderr"] or 0.0) for line in ordered], "thickness": 1},
        "meta": {"role": "series1"},
        "hovertemplate": "without %{y}: %{x:+.4f} bits per byte<extra></extra>",
    }
    layout = {
        "height": 90 + 22 * len(ordered),
        "xaxis": {"title": {"text": "bits per byte more"}},
        "yaxis": {"automargin": True},
    }
    return {"data": [bars], "layout": layout}
