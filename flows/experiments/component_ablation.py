"""Component ablation of a trained GPT: bits per byte of held-out text with parts removed, and the report as JSON,
Markdown and a page.

Parts are layers, attentions, MLPs and heads, removed one at a time, then heads and layers cumulatively.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.metrics.formatting import format_count
from flows.reports.page.render import write_figures
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import recipe_of
from model.checksummed_json import write_sealed
from model.errors import InputError
from model.files import write_atomically
from tasks.tokenizer.open import open_tokenizer

MAX_CUMULATIVE = 12
"""Points of the curve along which parts are removed cumulatively."""


@dataclass(frozen=True)
class BitsPerByte:
    """Bits and bytes of each document."""

    bits: np.ndarray
    sizes: np.ndarray

    @property
    def value(self) -> float:
        """Bits per byte of all text together."""
        return float(self.bits.sum() / self.sizes.sum())

    def above(self, other: "BitsPerByte") -> tuple[float, float | None]:
        """Return the difference to another on the same documents, and its standard error over documents, that of a
        ratio (Cochran 1977, section 2.11); None from one document."""
        more = self.bits - other.bits
        whole, n = self.sizes.sum(), len(self.sizes)
        ratio = more.sum() / whole
        if n < 2:
            return float(ratio), None
        rest = more - ratio * self.sizes
        return float(ratio), float(math.sqrt(n / (n - 1) * (rest**2).sum()) / whole)


def measure_components(
    root: Path, run: str, advance: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Measure a run's network ablated each layer, attention, MLP and head, then ablated more and more heads or layers,
    the cheapest first; return JSON values. InputError where the network is no GPT, or has no held-out text."""
    import torch

    from model.checkpoint.weights import load_gpt
    from model.inference.scoring import text_nats
    from model.nn.pruning import Kind, Part, ablated, parts_of, removed_parameters
    from tasks.artifacts.references import resolve_artifacts
    from tasks.evaluate.perplexity import heldout_texts

    record = open_run(root, run, needs="train")
    artifacts = run_artifacts(record)
    config = recipe_of(root / "runs" / record["run_id"]).evaluate
    tokenizer = open_tokenizer(artifacts["vocab"])
    network = load_gpt(artifacts["train"].path, tokenizer.digest)
    earlier = resolve_artifacts(config.earlier, root, "decontaminate", "evaluate.earlier")
    texts, _ = heldout_texts([*earlier, artifacts["decontaminate"]], config.heldout_max_bytes, config.seed)
    documents = [text for mine in texts.values() for text in mine]
    if not documents:
        raise InputError(f"run {record['run_id']} has no held-out text to measure on (decontaminate.heldout_share)")
    ids = [row.tolist() for row in tokenizer.encode_batch(documents)]
    sizes = np.array([len(text.encode()) for text in documents], dtype=np.int64)

    def measured(parts: Sequence[Part]) -> BitsPerByte:
        with ablated(network, parts):
            nats = text_nats(network, ids, tokenizer.eos, batch_tokens=config.batch_tokens)
        return BitsPerByte(np.array(nats) / math.log(2), sizes)

    def line(parts: Sequence[Part], name: str) -> dict[str, Any]:
        found = measured(parts)
        more, error = found.above(whole)
        left = total - removed_parameters(network, parts)
        return {"part": name, "parameters": left, "bits_per_byte": found.value, "more": more, "stderr": error}

    total = sum(weight.numel() for weight in network.parameters())
    parts = parts_of(network)
    cumulative: tuple[Kind, ...] = ("head", "layer")
    steps = len(parts) + 2 * MAX_CUMULATIVE
    torch.set_num_threads(config.threads)
    whole = measured(())
    alone: list[dict[str, Any]] = []
    for done, part in enumerate(parts, start=1):
        alone.append({**line([part], part.name), "kind": part.kind})
        advance(done, steps)
    curves: dict[str, list[dict[str, Any]]] = {}
    for place, kind in enumerate(cumulative):
        order = _cheapest_first(parts, alone, kind)
        curves[kind] = [line((), "whole")]
        for done, count in enumerate(_counts(len(order)), start=1):
            name = f"{count} {kind}{'s' if count > 1 else ''}"
            curves[kind].append({**line(order[:count], name), "taken": [part.name for part in order[:count]]})
            advance(len(parts) + place * MAX_CUMULATIVE + done, steps)
    return {
        "run_id": record["run_id"],
        "parameters": total,
        "bits_per_byte": whole.value,
        "documents": len(documents),
        "bytes": int(sizes.sum()),
        "alone": alone,
        "curves": curves,
    }


def _cheapest_first(parts: Sequence[Any], alone: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    of_kind = [(line["more"], place, part) for place, (part, line) in enumerate(zip(parts, alone, strict=True))]
    return [part for _, _, part in sorted(one for one in of_kind if one[2].kind == kind)]


def _counts(parts: int) -> list[int]:
    """Return the numbers of parts to remove: all where they are few, evenly spread where they are many."""
    points = min(parts, MAX_CUMULATIVE)
    return sorted({round((point + 1) * parts / points) for point in range(points)}) if parts else []


WITHIN = 1.96
"""Standard errors on each side of a 95% interval."""

ROLES = {"head": "series1", "layer": "accent"}


def write_report(found: dict[str, Any], root: Path) -> dict[str, str]:
    """Write table and page, and return their paths."""
    folder = root / "ablations" / f"components-{found['run_id']}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / file for name, file in (("table", "table.json"), ("markdown", "table.md"))}
    write_sealed(paths["table"], found)
    write_atomically(paths["markdown"], as_markdown(found).encode())
    page = folder / "page.html"
    figures = {"size": size_figure(found), "alone": alone_figure(found)}
    write_figures(
        "flows.experiments", "components.html", figures, page, found=found, compact=format_count, within=WITHIN
    )
    return {**{name: str(path) for name, path in paths.items()}, "page": str(page)}


def as_markdown(found: dict[str, Any]) -> str:
    """Return the report as Markdown: single parts, the most costly first, then the cumulative curves."""
    whole = f"{found['bits_per_byte']:.4f} bits per byte with {found['parameters']:,} removed_parameters"
    parts = [
        f"# Parts of the network of run {found['run_id']}",
        "",
        f"Whole: {whole}, on {found['bytes']:,} bytes of held-out text in {found['documents']:,} documents.",
        "",
        "| taken out | removed_parameters left | bits per byte | more | 95% |",
        "|---|---|---|---|---|",
    ]
    parts += [_row(line) for line in sorted(found["alone"], key=lambda line: -line["more"])]
    for kind, curve in found["curves"].items():
        parts += ["", f"{kind.capitalize()}s removed cumulatively, the one that costs least by itself first:", ""]
        parts += ["| taken out | removed_parameters left | bits per byte | more | 95% |", "|---|---|---|---|---|"]
        parts += [_row(line) for line in curve]
    return "\n".join([*parts, ""])


def _row(line: dict[str, Any]) -> str:
    reach = "" if line["stderr"] is None else f"± {WITHIN * line['stderr']:.4f}"
    return f"| {line['part']} | {line['parameters']:,} | {line['bits_per_byte']:.4f} | {line['more']:+.4f} | {reach} |"


def size_figure(found: dict[str, Any]) -> dict[str, Any]:
    """Return a chart of size against bits per byte as parts are removed cumulatively."""
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
    """Return a chart of the cost of each part removed alone."""
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
