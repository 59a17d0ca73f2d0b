"""Scaling laws: the configuration of a ladder of sizes, the law fitted to it, and the report.

A ladder is a TOML file, given by path or by the name of a shipped one:

seeds = 2                        # runs of each size; `--seeds` overrides it
tokens_per_parameter = 20        # what each model reads; or `tokens`, the same for all

[base]                           # settings of all runs
"train.model.mup_base_width" = 64

[[sizes]]                        # four or more; the largest is held back
width = 64
layers = 2
heads = 4

The law is L(N) = E + A / N^alpha, for runs that read tokens in proportion to their size: Hoffmann et al. 2022, section
3.3, with one term, since tokens follow from parameters here. E is the irreducible loss, the other term what a finite
model and, with it, finite text lose. It is fitted as there, by least squares of log differences with Huber's loss, from
many starts. The interval of a prediction is that of a new run: the scatter of runs about the law and the uncertainty of
E, A and alpha (delta method, Student's t).

The report has the runs, the law, the prediction and the measurement as JSON, Markdown and a page with a chart.
"""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError, model_validator
from scipy.optimize import least_squares
from scipy.stats import t as student

from flows.experiments.trials import RunResult, as_setting
from flows.recipe.errors import format_config_errors
from flows.reports.page.render import write_figures
from model.checksummed_json import write_sealed
from model.errors import RecipeError
from model.files import write_atomically
from tasks.common.config import StrictConfig

LADDERS = Path(__file__).parents[1] / "shipped" / "ladders"

Setting = bool | int | float | str | list[Any]


class Size(StrictConfig):
    """The size of a network; everything else is the recipe's."""

    width: int = Field(ge=8, le=2**16)
    layers: int = Field(ge=1, le=512)
    heads: int = Field(ge=1, le=512)

    @property
    def name(self) -> str:
        """Name of the size in runs and tables."""
        return f"{self.layers} layers of {self.width}"

    @property
    def settings(self) -> dict[str, Setting]:
        """The settings of this size in a recipe."""
        return {f"train.model.{key}": value for key, value in self.model_dump().items()}


class LadderConfig(StrictConfig):
    """The contents of the file."""

    seeds: int = Field(default=2, ge=1, le=100)
    """Runs of each size, under consecutive seeds."""
    tokens_per_parameter: float = Field(default=20.0, gt=0, le=10_000)
    """Tokens that a model reads for each of its parameters in blocks (Hoffmann et al. 2022: 20)."""
    tokens: int | None = Field(default=None, gt=0)
    """Tokens that every model reads, instead of a number per parameter. The law is then of size alone (Kaplan et al.
    2020, section 3.2), and its E is the loss that this amount of text leaves for a network of any size."""
    measure: str = "bits per byte"
    """The loss of the law: a held-out metric as the ablation's table names it, or `training loss`."""
    base: dict[str, Setting] = Field(default_factory=dict)
    """Settings that override the recipe's in every run."""
    sizes: tuple[Size, ...] = Field(min_length=4)
    """The networks, four or more: the largest is held back, and the law is fitted to the others."""

    @model_validator(mode="after")
    def _enough_to_fit(self) -> "LadderConfig":
        if len({size.name for size in self.sizes}) < len(self.sizes):
            raise ValueError("two sizes are the same")
        if (len(self.sizes) - 1) * self.seeds < 4:
            each = f"{self.seeds} {'seed' if self.seeds == 1 else 'seeds'}"
            raise ValueError(
                f"{len(self.sizes)} sizes of {each}, the largest held back, leave {(len(self.sizes) - 1) * self.seeds}"
                f" runs to fit, too few for three unknowns and their scatter; take two seeds, or more sizes"
            )
        return self

    def tokens_of(self, parameters: int) -> int:
        """Return the tokens that a model with this number of parameters in blocks reads."""
        return self.tokens or round(self.tokens_per_parameter * parameters)

    def run_settings(self, size: Size, tokens: int, most_tokens: int, seed: int) -> list[str]:
        """Return the settings of a run, as `--set` takes them; all keep the text for a run of `most_tokens`."""
        budgets = {"budget_tokens": most_tokens, "chunk.budget_tokens": tokens}
        values = {**self.base, **size.settings, **budgets, "train.seed": seed}
        return [as_setting(key, value) for key, value in values.items()]


def ladder_file(name: str) -> Path:
    """Return the file of a path or of the name of a shipped one; RecipeError where there is none."""
    for candidate in (Path(name), LADDERS / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    shipped = ", ".join(sorted(path.stem for path in LADDERS.glob("*.toml")))
    raise RecipeError(f"ladder `{name}`: there is no such file, and no shipped one has this name ({shipped})")


def read_ladder(path: Path, seeds: int | None) -> LadderConfig:
    """Return the ladder in a file; `seeds` overrides its own. RecipeError where the file is invalid."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    try:
        return LadderConfig.model_validate({**values, **({} if seeds is None else {"seeds": seeds})})
    except ValidationError as error:
        raise RecipeError(format_config_errors(error, path)) from error


HUBER = 0.01
"""Log difference from which a run counts linearly. Hoffmann et al. take 0.001, for hundreds of runs."""

UNKNOWNS = 3

STARTS = [(share, alpha) for share in (0.2, 0.6, 0.9) for alpha in (0.1, 0.25, 0.5)]
"""Irreducible shares of the least loss, and exponents, from which the fit starts."""


@dataclass(frozen=True)
class Prediction:
    """The predicted loss of a model that was not trained, and its 95% interval."""

    loss: float
    low: float
    high: float


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

    def predict(self, parameters: float) -> Prediction:
        """Return the predicted loss of one more run, with its interval."""
        loss = self.at(parameters)
        slope = _slopes(np.log([self.irreducible, self.factor]), self.exponent, np.array([parameters]))[0]
        spread = self.scatter * math.sqrt(1 + float(slope @ self._inverse @ slope))
        reach = float(student.ppf(0.975, self.runs - UNKNOWNS)) * spread
        return Prediction(loss, loss * math.exp(-reach), loss * math.exp(reach))


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


TABLE, MARKDOWN, PAGE = "table.json", "table.md", "page.html"


@dataclass
class ScalePoint:
    """A size, and the results of its runs so far, by seed."""

    size: Size
    parameters: int
    """Parameters in blocks."""
    tokens: int
    """Tokens that each run reads."""
    runs: dict[int, RunResult] = field(default_factory=dict)

    def losses(self, measure: str) -> list[float]:
        """Return the losses of the runs that have one."""
        return [run.values[measure] for run in self.runs.values() if measure in run.values]


def write_report(name: str, config: LadderConfig, points: list[ScalePoint], folder: Path) -> dict[str, Any]:
    """Write table, Markdown and page of the runs so far; return the table with `told`, its outcome in a sentence, and
    the paths."""
    found = scaling_table(config, points)
    found |= {"name": name, "told": describe_outcome(found)}
    paths = {"markdown": str(folder / MARKDOWN), "page": str(folder / PAGE), "table": str(folder / TABLE)}
    write_sealed(folder / TABLE, found)
    write_atomically(folder / MARKDOWN, as_markdown(found).encode())
    write_figures("flows.experiments", "scaling.html", {"law": figure(found)}, folder / PAGE, found=found)
    return found | paths


def scaling_table(config: LadderConfig, points: list[ScalePoint]) -> dict[str, Any]:
    """Return the report as JSON values; `law` and `prediction` are None until enough runs are done."""
    *fitted, held_back = points
    lines = [_line(point, config.measure) for point in points]
    pairs = [(float(point.parameters), loss) for point in fitted for loss in point.losses(config.measure)]
    law = fit(pairs) if all(point.losses(config.measure) for point in fitted) else None
    measured = held_back.losses(config.measure)
    prediction = None if law is None else _prediction(law, held_back, measured)
    return {
        "measure": config.measure,
        "tokens_per_parameter": None if config.tokens else config.tokens_per_parameter,
        "lines": lines,
        "law": None if law is None else _law(law),
        "prediction": prediction,
    }


def _line(point: ScalePoint, measure: str) -> dict[str, Any]:
    return {
        "size": point.size.name,
        "parameters": point.parameters,
        "tokens": point.tokens,
        "losses": point.losses(measure),
        "runs": {seed: run.run_id for seed, run in point.runs.items()},
        "failed": {seed: run.cause for seed, run in point.runs.items() if run.cause},
    }


def _law(law: Law) -> dict[str, float]:
    return {"E": law.irreducible, "A": law.factor, "alpha": law.exponent, "scatter": law.scatter, "runs": law.runs}


def _prediction(law: Law, point: ScalePoint, measured: list[float]) -> dict[str, Any]:
    said = law.predict(point.parameters)
    mean = sum(measured) / len(measured) if measured else None
    return {
        "size": point.size.name,
        "parameters": point.parameters,
        "loss": said.loss,
        "low": said.low,
        "high": said.high,
        "measured": mean,
        "off": None if mean is None else mean / said.loss - 1,
        "inside": None if mean is None else said.low <= mean <= said.high,
    }


def describe_outcome(found: dict[str, Any]) -> str:
    """Return the outcome as a sentence."""
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
    """Return the table of sizes, the law, and the outcome as Markdown."""
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


def figure(found: dict[str, Any]) -> dict[str, Any] | None:
    """Return a chart of runs, law and prediction as a Plotly figure; None before the first run."""
    points = [(line["parameters"], loss) for line in found["lines"] for loss in line["losses"]]
    if not points:
        return None
    law, said = found["law"], found["prediction"]
    held_back = found["lines"][-1]["parameters"]
    data: list[dict[str, Any]] = []
    if law is not None:
        sizes = np.geomspace(min(size for size, _ in points), held_back * 1.3, 80)
        curve = law["E"] + law["A"] * sizes ** -law["alpha"]
        data.append(_trace("the law", "muted1", sizes.tolist(), curve.tolist(), mode="lines"))
    fitted = [point for point in points if point[0] != held_back]
    data.append(_trace("fitted", "series1", [size for size, _ in fitted], [loss for _, loss in fitted], mode="markers"))
    if said is not None:
        reach = {"type": "data", "symmetric": False, "array": [said["high"] - said["loss"]]}
        reach["arrayminus"] = [said["loss"] - said["low"]]
        data.append(_trace("predicted", "accent", [held_back], [said["loss"]], mode="markers", error_y=reach))
    if later := [loss for size, loss in points if size == held_back]:
        data.append(
            _trace("measured", "series2", [held_back] * len(later), later, mode="markers", marker={"symbol": "x"})
        )
    layout = {
        "height": 360,
        "legend": {"orientation": "h", "y": 1.12},
        "xaxis": {"type": "log", "title": {"text": "weights in blocks"}},
        "yaxis": {"title": {"text": found["measure"]}},
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def _trace(name: str, role: str, x: list[float], y: list[float], **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "name": name, "meta": {"role": role}, "x": x, "y": y, **more}
