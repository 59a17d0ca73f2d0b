"""A ladder of sizes: a TOML file, by path or by the name under which it ships.

seeds = 2                        # runs of each size; `--seeds` overrules
tokens_per_parameter = 20        # what each model reads; or `tokens`, the same for all

[base]                           # settings of all runs
"train.model.mup_base_width" = 64

[[sizes]]                        # four or more; the largest is held back
width = 64
layers = 2
heads = 4

The law of losses by size: L(N) = E + A / N^alpha, fitted to runs that read tokens in proportion to their size.

Hoffmann et al. 2022, section 3.3, with one term, since tokens follow from parameters here: the irreducible part E, and
what a finite model (and, with it, finite text) misses. Fitted by least squares of the logarithms' differences with
Huber's loss, from many starts, as there. The interval of a prediction is that of a new run: the scatter of runs about
the law, and what that leaves open about E, A and alpha (the delta method, Student's t).

The table of a ladder, as Markdown, JSON and a page: runs, law, prediction, and what was measured.

The picture of a ladder: runs, the law through them with its interval, and the size that was held back.
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

from flows.experiments.trials import Measured, as_setting
from flows.recipe.errors import wrong_values
from flows.reports.page.render import write_figures
from model.checksummed_json import write_sealed
from model.errors import RecipeError
from model.files import write_atomically
from tasks.common.config import StrictConfig

LADDERS = Path(__file__).parents[1] / "shipped" / "ladders"

Setting = bool | int | float | str | list[Any]


class Size(StrictConfig):
    """A network of the ladder; all else is the recipe's."""

    width: int = Field(ge=8, le=2**16)
    layers: int = Field(ge=1, le=512)
    heads: int = Field(ge=1, le=512)

    @property
    def name(self) -> str:
        """As runs and tables call it."""
        return f"{self.layers} layers of {self.width}"

    @property
    def settings(self) -> dict[str, Setting]:
        """What it sets in a recipe."""
        return {f"train.model.{key}": value for key, value in self.model_dump().items()}


class LadderConfig(StrictConfig):
    """The contents of the file."""

    seeds: int = Field(default=2, ge=1, le=100)
    """Runs of each size, under seeds that follow each other."""
    tokens_per_parameter: float = Field(default=20.0, gt=0, le=10_000)
    """Tokens that a model reads for each of its weights in blocks (Hoffmann et al. 2022: 20)."""
    tokens: int | None = Field(default=None, gt=0)
    """Tokens that every model reads, in place of so many for each weight. The law is then of size alone (Kaplan et al.
    2020, section 3.2), and its E is the loss that so much text leaves however large the network."""
    measure: str = "bits per byte"
    """What the law is of: a figure of held-out text as the ablation's table names it, or `training loss`."""
    base: dict[str, Setting] = Field(default_factory=dict)
    """Settings that overrule the recipe's in every run."""
    sizes: tuple[Size, ...] = Field(min_length=4)
    """The networks, four or more: the one with the most weights is held back, and the law is fitted to the others."""

    @model_validator(mode="after")
    def _enough_to_fit(self) -> "LadderConfig":
        if len({size.name for size in self.sizes}) < len(self.sizes):
            raise ValueError("two sizes are the same")
        if (len(self.sizes) - 1) * self.seeds < 4:
            each = f"{self.seeds} {'seed' if self.seeds == 1 else 'seeds'}"
            raise ValueError(
                f"{len(self.sizes)} sizes of {each}, the largest held back, leave {(len(self.sizes) - 1) * self.seeds}"
                f" runs to fit, too few to tell three unknowns and their scatter; take two seeds, or more sizes"
            )
        return self

    def tokens_of(self, parameters: int) -> int:
        """What a model with so many weights in blocks reads."""
        return self.tokens or round(self.tokens_per_parameter * parameters)

    def run_settings(self, size: Size, tokens: int, most_tokens: int, seed: int) -> list[str]:
        """What a run sets, as `--set` takes it; all keep the text that the one of `most_tokens` reads."""
        budgets = {"budget_tokens": most_tokens, "chunk.budget_tokens": tokens}
        values = {**self.base, **size.settings, **budgets, "train.seed": seed}
        return [as_setting(key, value) for key, value in values.items()]


def ladder_file(name: str) -> Path:
    """The file of a path, or of a name under which one ships; RecipeError names those that do."""
    for candidate in (Path(name), LADDERS / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    shipped = ", ".join(sorted(path.stem for path in LADDERS.glob("*.toml")))
    raise RecipeError(f"ladder `{name}`: there is no such file, and of those that ship none has this name ({shipped})")


def read_ladder(path: Path, seeds: int | None) -> LadderConfig:
    """The ladder in a file; `seeds` overrule its own. RecipeError where it is none."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    try:
        return LadderConfig.model_validate({**values, **({} if seeds is None else {"seeds": seeds})})
    except ValidationError as error:
        raise RecipeError(wrong_values(error, path)) from error


HUBER = 0.01
"""Difference by share from which a run counts linearly. Hoffmann et al. take 0.001, of hundreds of runs."""

UNKNOWNS = 3

STARTS = [(share, alpha) for share in (0.2, 0.6, 0.9) for alpha in (0.1, 0.25, 0.5)]
"""Irreducible shares of the least loss, and exponents, from which the fit begins."""


@dataclass(frozen=True)
class Prediction:
    """The loss of a model that was not trained, and where it lies in 95 of 100 such cases."""

    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """E + A / N^alpha."""

    irreducible: float
    factor: float
    exponent: float
    scatter: float
    """Standard deviation of a run about the law, by share of its loss."""
    runs: int
    _inverse: np.ndarray
    """f64[3, 3]: of the squared Jacobian of the logarithms, by (log E, log A, alpha)."""

    def at(self, parameters: float) -> float:
        """The loss of a model with so many parameters."""
        return self.irreducible + self.factor * parameters**-self.exponent

    def predict(self, parameters: float) -> Prediction:
        """The loss of one more run."""
        loss = self.at(parameters)
        slope = _slopes(np.log([self.irreducible, self.factor]), self.exponent, np.array([parameters]))[0]
        spread = self.scatter * math.sqrt(1 + float(slope @ self._inverse @ slope))
        reach = float(student.ppf(0.975, self.runs - UNKNOWNS)) * spread
        return Prediction(loss, loss * math.exp(-reach), loss * math.exp(reach))


def fit(runs: Sequence[tuple[float, float]]) -> Law:
    """The law through (parameters, loss) of runs; ValueError where there are too few runs or sizes to tell."""
    sizes, losses = np.array([size for size, _ in runs], dtype=float), np.array([loss for _, loss in runs], dtype=float)
    if len(runs) <= UNKNOWNS or len(set(sizes.tolist())) < UNKNOWNS:
        raise ValueError(
            f"{len(runs)} runs of {len(set(sizes.tolist()))} sizes cannot tell three unknowns and their scatter: take"
            f" three sizes or more, and at least four runs"
        )
    fits = [_fitted(sizes, losses, share, alpha) for share, alpha in STARTS]
    best = min(fits, key=lambda found: found.cost)
    log_parts, exponent = best.x[:2], float(best.x[2])
    residuals = _differences(best.x, sizes, losses)
    jacobian = _slopes(log_parts, exponent, sizes)
    # A small ridge keeps an unknown that the runs say nothing of from making all others infinite.
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
    """Logarithms of what the law gives over what was measured, f64[runs]."""
    log_irreducible, log_factor, alpha = unknowns
    return np.log(np.exp(log_irreducible) + np.exp(log_factor - alpha * np.log(sizes))) - np.log(losses)


def _slopes(log_parts: np.ndarray, alpha: float, sizes: np.ndarray) -> np.ndarray:
    """Derivatives of the law's logarithm by log E, log A and alpha, f64[sizes, 3]."""
    irreducible = np.full(len(sizes), math.exp(log_parts[0]))
    missed = np.exp(log_parts[1] - alpha * np.log(sizes))
    return np.stack([irreducible, missed, -missed * np.log(sizes)], axis=1) / (irreducible + missed)[:, None]


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
    write_figures("flows.experiments.scaling", "page.html", {"law": figure(found)}, folder / PAGE, found=found)
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


def figure(found: dict[str, Any]) -> dict[str, Any] | None:
    """A Plotly figure as JSON values; None before the first run."""
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
