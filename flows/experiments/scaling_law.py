"""The law of a ladder of sizes, fitted to their losses, and the report.

The law is L(N) = E + A / N^alpha, for runs that read tokens in proportion to their size: Hoffmann et al. 2022, section
3.3, with one term, since tokens follow from parameters here. E is the irreducible loss, the other term what a finite
model and, with it, finite text lose. It is fitted as there, by least squares of log differences with Huber's loss, from
many starts. The interval of a prediction is that of a new run: the scatter of runs about the law and the uncertainty of
E, A and alpha (delta method, Student's t).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np
from scipy.optimize import least_squares

from flows.experiments.studies import ReportFiles, RunResult, write_report
from flows.metrics.statistics import Interval, t_975
from flows.reports.charts.figure import LEGEND, Figure, Trace, axis, figure, points
from flows.reports.document import Chart, Document, Part, Section, Table, Tile

HUBER = 0.01
"""Log difference from which a run counts linearly. Hoffmann et al. take 0.001, for hundreds of runs."""

UNKNOWNS = 3

STARTS = [(share, alpha) for share in (0.2, 0.6, 0.9) for alpha in (0.1, 0.25, 0.5)]
"""Irreducible shares of the least loss, and exponents, from which the fit starts."""


@dataclass(frozen=True)
class Law:
    """The law E + A / N^alpha."""

    irreducible: float
    factor: float
    exponent: float
    scatter: float
    """Standard deviation of runs about the law, relative to their loss."""
    runs: int
    _inverse: np.ndarray
    """f64[3, 3]: inverse of J^T J, J the Jacobian of the log loss by (log E, log A, alpha)."""

    def at(self, parameters: float) -> float:
        """Return the loss of a model with this number of parameters."""
        return self.irreducible + self.factor * parameters**-self.exponent

    def predict(self, parameters: float) -> Interval:
        """Return the predicted loss of one more run, with its interval."""
        loss = self.at(parameters)
        slope = _slopes(np.log([self.irreducible, self.factor]), self.exponent, np.array([parameters]))[0]
        spread = self.scatter * math.sqrt(1 + float(slope @ self._inverse @ slope))
        reach = t_975(self.runs - UNKNOWNS) * spread
        return Interval(loss * math.exp(-reach), loss, loss * math.exp(reach))


def fit(runs: Sequence[tuple[float, float]]) -> Law:
    """Fit the law to (parameters, loss) of runs; ValueError where there are too few runs or sizes."""
    sizes, losses = np.array([size for size, _ in runs], dtype=float), np.array([loss for _, loss in runs], dtype=float)
    if len(runs) <= UNKNOWNS or len(set(sizes.tolist())) < UNKNOWNS:
        raise ValueError(
            f"{len(runs)} runs of {len(set(sizes.tolist()))} sizes cannot determine three unknowns and their scatter:"
            f" take three sizes or more, and at least four runs"
        )
    fits = [_fitted(sizes, losses, share, alpha) for share, alpha in STARTS]
    best = min(fits, key=lambda found: found.cost)
    log_parts, exponent = best.x[:2], float(best.x[2])
    residuals = _differences(best.x, sizes, losses)
    jacobian = _slopes(log_parts, exponent, sizes)
    # A small ridge keeps an unknown that the runs do not determine from making all others infinite.
    inverse = np.linalg.inv(jacobian.T @ jacobian + 1e-9 * np.eye(UNKNOWNS))
    scatter = math.sqrt(float(residuals @ residuals) / (len(runs) - UNKNOWNS))
    irreducible, factor = (float(part) for part in np.exp(log_parts))
    return Law(irreducible, factor, exponent, scatter, len(runs), inverse)


def _fitted(sizes: np.ndarray, losses: np.ndarray, share: float, alpha: float):
    irreducible = share * losses.min()
    factor = float(np.median((losses - irreducible) * sizes**alpha))
    begin = np.array([math.log(irreducible), math.log(factor), alpha])
    bounds = ([-20.0, -20.0, 0.01], [math.log(losses.min()), 40.0, 3.0])
    begin = np.clip(begin, np.array(bounds[0]) + 1e-6, np.array(bounds[1]) - 1e-6)
    return least_squares(_differences, begin, bounds=bounds, loss="huber", f_scale=HUBER, args=(sizes, losses))


def _differences(unknowns: np.ndarray, sizes: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return f64[runs]: log of the law's loss over the measured one."""
    log_irreducible, log_factor, alpha = unknowns
    return np.log(np.exp(log_irreducible) + np.exp(log_factor - alpha * np.log(sizes))) - np.log(losses)


def _slopes(log_parts: np.ndarray, alpha: float, sizes: np.ndarray) -> np.ndarray:
    """Return f64[sizes, 3]: derivatives of the law's log loss by log E, log A and alpha."""
    irreducible = np.full(len(sizes), math.exp(log_parts[0]))
    missed = np.exp(log_parts[1] - alpha * np.log(sizes))
    return np.stack([irreducible, missed, -missed * np.log(sizes)], axis=1) / (irreducible + missed)[:, None]


class SizeLine(TypedDict):
    """The runs of one size."""

    size: str
    parameters: int
    tokens: int
    losses: list[float]
    runs: dict[int, str]
    failed: dict[int, str]


class LawNumbers(TypedDict):
    """A fitted law in numbers."""

    E: float
    A: float
    alpha: float
    scatter: float
    runs: int


class Prediction(TypedDict):
    """The predicted loss of the largest size, and what was measured."""

    size: str
    parameters: int
    loss: float
    low: float
    high: float
    measured: float | None
    relative_error: float | None
    """Relative distance of the measurement from the prediction."""
    within_interval: bool | None


class Ladder(TypedDict):
    """The table of a ladder; law and prediction are None until enough runs are done."""

    name: str
    outcome: str
    """The outcome in a sentence."""
    measure: str
    tokens_per_parameter: float | None
    lines: list[SizeLine]
    law: LawNumbers | None
    prediction: Prediction | None


class LadderFound(Ladder, ReportFiles):
    """The table and its files."""


@dataclass
class ScalePoint:
    """A size, and the results of its runs so far, by seed."""

    size: str
    parameters: int
    """Parameters in blocks."""
    tokens: int
    """Tokens that each run reads."""
    runs: dict[int, RunResult] = field(default_factory=dict)

    def losses(self, measure: str) -> list[float]:
        """Return the losses of the runs that have one."""
        return [run.values[measure] for run in self.runs.values() if measure in run.values]


def write_ladder(
    folder: Path, measure: str, tokens_per_parameter: float | None, points: list[ScalePoint]
) -> LadderFound:
    """Write the report of the runs so far; return its table with the paths."""
    found = scaling_table(folder.name, measure, tokens_per_parameter, points)
    return {**found, **write_report(found, ladder_document(found), folder)}


def scaling_table(name: str, measure: str, tokens_per_parameter: float | None, points: list[ScalePoint]) -> Ladder:
    """Return the table of the runs so far."""
    *fitted, held_back = points
    lines = [_line(point, measure) for point in points]
    pairs = [(float(point.parameters), loss) for point in fitted for loss in point.losses(measure)]
    # Runs may have failed: a size that is measured may leave too few of them to fit.
    law = fit(pairs) if all(point.losses(measure) for point in fitted) and len(pairs) > UNKNOWNS else None
    measured = held_back.losses(measure)
    prediction = None if law is None else _prediction(law, held_back, measured)
    return {
        "name": name,
        "outcome": describe_outcome(measure, lines, prediction),
        "measure": measure,
        "tokens_per_parameter": tokens_per_parameter,
        "lines": lines,
        "law": None if law is None else _law(law),
        "prediction": prediction,
    }


def _line(point: ScalePoint, measure: str) -> SizeLine:
    return {
        "size": point.size,
        "parameters": point.parameters,
        "tokens": point.tokens,
        "losses": point.losses(measure),
        "runs": {seed: run.run_id for seed, run in point.runs.items()},
        "failed": {seed: run.cause for seed, run in point.runs.items() if run.cause},
    }


def _law(law: Law) -> LawNumbers:
    return {"E": law.irreducible, "A": law.factor, "alpha": law.exponent, "scatter": law.scatter, "runs": law.runs}


def _prediction(law: Law, point: ScalePoint, measured: list[float]) -> Prediction:
    predicted = law.predict(point.parameters)
    mean = sum(measured) / len(measured) if measured else None
    return {
        "size": point.size,
        "parameters": point.parameters,
        "loss": predicted.value,
        "low": predicted.low,
        "high": predicted.high,
        "measured": mean,
        "relative_error": None if mean is None else mean / predicted.value - 1,
        "within_interval": None if mean is None else predicted.low <= mean <= predicted.high,
    }


def describe_outcome(measure: str, lines: Sequence[SizeLine], predicted: Prediction | None) -> str:
    """Return the outcome as a sentence."""
    if predicted is None:
        done = sum(bool(line["losses"]) for line in lines)
        return (
            f"{done} of {len(lines)} sizes are measured; the law takes all but the largest, and more than {UNKNOWNS}"
            f" runs of these"
        )
    words = (
        f"{predicted['size']} ({predicted['parameters']:,} weights) should reach {predicted['loss']:.4f} {measure}"
        f" ({predicted['low']:.4f} to {predicted['high']:.4f})"
    )
    if predicted["measured"] is None:
        return f"{words}; not measured yet"
    where = "inside" if predicted["within_interval"] else "outside of"
    return f"{words}; it reached {predicted['measured']:.4f}, {predicted['relative_error']:+.2%}, {where} the interval"


def ladder_document(found: Ladder) -> Document:
    """Return the report: the runs of each size, the law, and the prediction beside the measurement."""
    law, predicted, measure = found["law"], found["prediction"], found["measure"]
    rows = [
        (line["size"], line["parameters"], line["tokens"], ", ".join(f"{loss:.4f}" for loss in line["losses"]) or None)
        for line in found["lines"]
    ]
    failed = [
        (f"{line['size']}, seed {seed}, failed", cause)
        for line in found["lines"]
        for seed, cause in line["failed"].items()
    ]
    tiles: list[Tile] = []
    parts: list[Part] = [Chart("law", law_figure(found))]
    if predicted is not None and law is not None:
        interval = f"{predicted['low']:.4f} to {predicted['high']:.4f}"
        tiles.append(Tile(f"{predicted['loss']:.4f}", "predicted", interval))
        if predicted["measured"] is not None:
            where = "inside" if predicted["within_interval"] else "outside of"
            note = f"{predicted['relative_error']:+.2%}, {where} the interval"
            tiles.append(Tile(f"{predicted['measured']:.4f}", "measured", note))
        tiles.append(Tile(f"{law['alpha']:.3f}", "exponent", f"E = {law['E']:.4f}"))
        formula = f"L(N) = {law['E']:.4f} + {law['A']:.4g} / N^{law['alpha']:.3f}"
        parts.append(f"{formula}, runs scatter by {law['scatter']:.2%}")
    why = "The law is fitted to all sizes but the largest. The bar is where one more run lies in 95 of 100 cases."
    runs = Table(("size", "weights in blocks", "tokens", measure), rows)
    sections = [Section(f"{measure} by size", parts, why), Section("Runs", [runs])]
    badge, lead = f"{len(rows)} sizes", f"{found['outcome']}."
    return Document(f"ladder {found['name']}", sections, badge, lead, tiles, failed)


def law_figure(found: Ladder) -> Figure | None:
    """Return a chart of runs, law and prediction; None before the first run."""
    measured = [(line["parameters"], loss) for line in found["lines"] for loss in line["losses"]]
    if not measured:
        return None
    law, predicted = found["law"], found["prediction"]
    held_back = found["lines"][-1]["parameters"]
    data: list[Trace] = []
    if law is not None:
        sizes = np.geomspace(min(size for size, _ in measured), held_back * 1.3, 80)
        curve = law["E"] + law["A"] * sizes ** -law["alpha"]
        data.append(points("muted1", sizes.tolist(), curve.tolist(), "%{y:.4f}", mode="lines", name="the law"))
    fitted = [point for point in measured if point[0] != held_back]
    x, y = [size for size, _ in fitted], [loss for _, loss in fitted]
    data.append(points("series1", x, y, "%{y:.4f}", name="fitted"))
    if predicted is not None:
        interval = {"type": "data", "symmetric": False, "array": [predicted["high"] - predicted["loss"]]}
        interval["arrayminus"] = [predicted["loss"] - predicted["low"]]
        data.append(points("accent", [held_back], [predicted["loss"]], "%{y:.4f}", name="predicted", error_y=interval))
    if later := [loss for size, loss in measured if size == held_back]:
        marks = {"name": "measured", "marker": {"symbol": "x"}}
        data.append(points("series2", [held_back] * len(later), later, "%{y:.4f}", **marks))
    across = axis("weights in blocks", type="log")
    return figure(data, 360, legend=LEGEND, xaxis=across, yaxis=axis(found["measure"]), hovermode="closest")
