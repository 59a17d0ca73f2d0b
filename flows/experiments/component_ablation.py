"""Component ablation of a trained GPT: bits per byte of held-out text with parts removed, and the report.

Parts are layers, attentions, MLPs and heads, removed one at a time, then heads and layers cumulatively.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np

from flows.experiments.studies import ReportFiles, write_report
from flows.metrics.formatting import format_count
from flows.reports.charts.figure import LEGEND, Figure, axis, bars, figure, points, reach
from flows.reports.document import Chart, Document, Part, Section, Table
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import recipe_of
from model.errors import InputError
from tasks.common.numeric import Z_95
from tasks.tokenizer.open import open_tokenizer

if TYPE_CHECKING:
    from model.nn.pruning import Part as NetworkPart

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


class Removal(TypedDict):
    """The network without a part, or without several."""

    part: str
    parameters: int
    """Those that are left."""
    bits_per_byte: float
    more: float
    """Than the whole network's."""
    stderr: float | None
    kind: NotRequired[str]
    """Of a single part."""
    taken: NotRequired[list[str]]
    """Names of several."""


class Components(TypedDict):
    """What the parts of a run's network are worth."""

    run_id: str
    parameters: int
    bits_per_byte: float
    documents: int
    bytes: int
    alone: list[Removal]
    curves: dict[str, list[Removal]]
    """By kind of part, from the whole network on."""


def measure_components(root: Path, run: str, advance: Callable[[int, int], None]) -> Components:
    """Measure a run's network without each layer, attention, MLP and head, then without more and more heads or layers,
    the cheapest first. InputError where the network is no GPT, or has no held-out text."""
    import torch

    from model.checkpoint.weights import load_gpt
    from model.inference.scoring import text_nats
    from model.nn.pruning import ablated, parts_of, removed_parameters
    from tasks.artifacts.references import resolve_artifacts
    from tasks.evaluate.heldout import heldout_documents

    record = open_run(root, run, needs="train")
    artifacts = run_artifacts(record)
    config = recipe_of(root / "runs" / record["run_id"]).evaluate
    tokenizer = open_tokenizer(artifacts["vocab"])
    network = load_gpt(artifacts["train"].path, tokenizer.digest)
    earlier = resolve_artifacts(config.earlier, root, "decontaminate", "evaluate.earlier")
    found = heldout_documents([*earlier, artifacts["decontaminate"]], config.heldout_max_bytes, config.seed)
    documents = [one.text for of_source in found.values() for one in of_source]
    if not documents:
        raise InputError(f"run {record['run_id']} has no held-out text to measure on (decontaminate.heldout_share)")
    ids = [row.tolist() for row in tokenizer.encode_batch(documents)]
    sizes = np.array([len(text.encode()) for text in documents], dtype=np.int64)

    def measured(parts: "Sequence[NetworkPart]") -> BitsPerByte:
        with ablated(network, parts):
            nats = text_nats(network, ids, tokenizer.opening, batch_tokens=config.batch_tokens)
        return BitsPerByte(np.array(nats) / math.log(2), sizes)

    def line(parts: "Sequence[NetworkPart]", name: str) -> Removal:
        found = measured(parts)
        more, error = found.above(whole)
        left = total - removed_parameters(network, parts)
        return {"part": name, "parameters": left, "bits_per_byte": found.value, "more": more, "stderr": error}

    total = sum(weight.numel() for weight in network.parameters())
    parts = parts_of(network)
    steps = len(parts) + 2 * MAX_CUMULATIVE
    torch.set_num_threads(config.threads)
    whole = measured(())
    alone: list[Removal] = []
    for done, part in enumerate(parts, start=1):
        alone.append({**line([part], part.name), "kind": part.kind})
        advance(done, steps)
    curves: dict[str, list[Removal]] = {}
    cost = {line["part"]: line["more"] for line in alone}
    for place, kind in enumerate(("head", "layer")):
        order = sorted((part for part in parts if part.kind == kind), key=lambda part: cost[part.name])
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


def _counts(parts: int) -> list[int]:
    """Return the numbers of parts to remove: all where they are few, evenly spread where they are many."""
    points = min(parts, MAX_CUMULATIVE)
    return sorted({round((point + 1) * parts / points) for point in range(points)}) if parts else []


ROLES = {"head": "series1", "layer": "accent"}


def write_components(found: Components, root: Path) -> ReportFiles:
    return write_report(found, components_document(found), root / "ablations" / f"components-{found['run_id']}")


def components_document(found: Components) -> Document:
    """Return the report: single parts, the most costly first, then the cumulative curves."""
    lead = (
        f"Whole: {found['bits_per_byte']:.4f} bits per byte with {found['parameters']:,} parameters, on"
        f" {found['bytes']:,} bytes of held-out text in {found['documents']:,} documents. A part is taken out by taking"
        f" away what it adds to the residual stream."
    )
    ordered = sorted(found["alone"], key=lambda line: -line["more"])
    alone = [Chart("alone", alone_figure(found), "cost of each part"), _table(ordered)]
    parts: list[Part] = [Chart("size", size_figure(found), "size against bits per byte")]
    for kind, curve in found["curves"].items():
        parts += [f"{kind.capitalize()}s removed cumulatively:", _table(curve)]
    sections = (
        Section("Each part by itself", alone, "Bits per byte more without it, with 95% intervals over documents."),
        Section("Size against bits per byte", parts, "The part that costs least by itself is taken out first."),
    )
    return Document(f"Parts of the network of run {found['run_id']}", sections, format_count(found["parameters"]), lead)


def _table(lines: Sequence[Removal]) -> Table:
    rows = [
        (
            line["part"],
            line["parameters"],
            f"{line['bits_per_byte']:.4f}",
            f"{line['more']:+.4f}",
            "" if line["stderr"] is None else f"± {Z_95 * line['stderr']:.4f}",
        )
        for line in lines
    ]
    return Table(("taken out", "parameters left", "bits per byte", "more", "95%"), rows)


def size_figure(found: Components) -> Figure:
    """Return a chart of size against bits per byte as parts are removed cumulatively."""
    data = [
        points(
            ROLES[kind],
            [line["parameters"] for line in curve],
            [line["bits_per_byte"] for line in curve],
            "%{text}: %{y:.4f} bits per byte",
            mode="lines+markers",
            text=[line["part"] for line in curve],
            name=f"{kind}s taken out",
        )
        for kind, curve in found["curves"].items()
    ]
    across, up = axis("parameters left"), axis("bits per byte", automargin=True)
    return figure(data, 380, legend=LEGEND, xaxis=across, yaxis=up)


def alone_figure(found: Components) -> Figure:
    """Return a chart of the cost of each part removed alone."""
    ordered = sorted(found["alone"], key=lambda line: line["more"])
    lengths, names = [line["more"] for line in ordered], [line["part"] for line in ordered]
    errors = reach([Z_95 * (line["stderr"] or 0.0) for line in ordered])
    shown = bars("series1", lengths, names, "without %{y}: %{x:+.4f} bits per byte", error_x=errors)
    return figure([shown], 90 + 22 * len(ordered), xaxis=axis("bits per byte more"), yaxis={"automargin": True})
