"""The table of a ladder, as Markdown, JSON and a page: runs, law, prediction, and what was measured."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.ablate.measuring import Measured
from flows.page.rendering import write_drawn
from flows.scaling.drawing import figure
from flows.scaling.ladder import LadderConfig, Size
from flows.scaling.law import Law, fit
from model.durable import write_atomically
from model.sealed import write_sealed

TABLE, MARKDOWN, PAGE = "table.json", "table.md", "page.html"


@dataclass
class Rung:
    """A size, and what came of its runs so far, by seed."""

    size: Size
    parameters: int
    """Weights in blocks."""
    tokens: int
    """What each run reads."""
    runs: dict[int, Measured] = field(default_factory=dict)

    def losses(self, measure: str) -> list[float]:
        """Of the runs that came to numbers."""
        return [run.values[measure] for run in self.runs.values() if measure in run.values]


def write_report(name: str, asked: LadderConfig, rungs: list[Rung], folder: Path) -> dict[str, Any]:
    """Write what is known so far; returns it, with `told`, the outcome in a sentence, and where it stands."""
    found = gathered(asked, rungs)
    found |= {"name": name, "told": told(found)}
    paths = {"markdown": str(folder / MARKDOWN), "page": str(folder / PAGE), "table": str(folder / TABLE)}
    write_sealed(folder / TABLE, found)
    write_atomically(folder / MARKDOWN, as_markdown(found).encode())
    write_drawn("flows.scaling", "page.html", {"law": figure(found)}, folder / PAGE, found=found)
    return found | paths


def gathered(asked: LadderConfig, rungs: list[Rung]) -> dict[str, Any]:
    """All of it as JSON values; `law` and `prediction` are None until enough runs stand."""
    *fitted, held_back = rungs
    lines = [_line(rung, asked.measure) for rung in rungs]
    points = [(float(rung.parameters), loss) for rung in fitted for loss in rung.losses(asked.measure)]
    law = fit(points) if all(rung.losses(asked.measure) for rung in fitted) else None
    measured = held_back.losses(asked.measure)
    prediction = None if law is None else _prediction(law, held_back, measured)
    return {
        "measure": asked.measure,
        "tokens_per_parameter": None if asked.tokens else asked.tokens_per_parameter,
        "lines": lines,
        "law": None if law is None else _law(law),
        "prediction": prediction,
    }


def _line(rung: Rung, measure: str) -> dict[str, Any]:
    return {
        "size": rung.size.name,
        "parameters": rung.parameters,
        "tokens": rung.tokens,
        "losses": rung.losses(measure),
        "runs": {seed: run.run_id for seed, run in rung.runs.items()},
        "failed": {seed: run.cause for seed, run in rung.runs.items() if run.cause},
    }


def _law(law: Law) -> dict[str, float]:
    return {"E": law.irreducible, "A": law.factor, "alpha": law.exponent, "scatter": law.scatter, "runs": law.runs}


def _prediction(law: Law, rung: Rung, measured: list[float]) -> dict[str, Any]:
    said = law.predict(rung.parameters)
    mean = sum(measured) / len(measured) if measured else None
    return {
        "size": rung.size.name,
        "parameters": rung.parameters,
        "loss": said.loss,
        "low": said.low,
        "high": said.high,
        "measured": mean,
        "off": None if mean is None else mean / said.loss - 1,
        "inside": None if mean is None else said.low <= mean <= said.high,
    }


def told(found: dict[str, Any]) -> str:
    """The outcome in a sentence."""
    said = found["prediction"]
    if said is None:
        done = sum(bool(line["losses"]) for line in found["lines"])
        return f"{done} of {len(found['lines'])} sizes are measured; the law takes all but the largest"
    words = (
        f"{said['size']} ({said['parameters']:,} weights) should reach {said['loss']:.4f} {found['measure']}"
        f" ({said['low']:.4f} to {said['high']:.4f})"
    )
    if said["measured"] is None:
        return f"{words}; not measured yet"
    where = "inside" if said["inside"] else "outside of"
    return f"{words}; it reached {said['measured']:.4f}, {said['off']:+.2%}, {where} the interval"


def as_markdown(found: dict[str, Any]) -> str:
    """The table of sizes, the law, and the outcome."""
    rows = [f"| size | weights in blocks | tokens | {found['measure']} |", "|---|---:|---:|---|"]
    for line in found["lines"]:
        losses = ", ".join(f"{loss:.4f}" for loss in line["losses"]) or "; ".join(line["failed"].values()) or "-"
        rows.append(f"| {line['size']} | {line['parameters']:,} | {line['tokens']:,} | {losses} |")
    law = found["law"]
    if law is not None:
        rows += [
            "",
            f"L(N) = {law['E']:.4f} + {law['A']:.4g} / N^{law['alpha']:.3f}, runs scatter by {law['scatter']:.2%}",
        ]
    return "\n".join([*rows, "", f"{found['told']}." if "told" in found else "", ""])
