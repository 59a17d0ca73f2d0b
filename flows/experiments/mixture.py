"""Mixing weights from small models as a Prefect flow: which shares of the sources many proxies of a recipe favour.

RegMix (Liu et al. 2024): proxies, small trainings of the recipe, run on random mixtures, one task run each; the log of
each source's held-out loss is fitted as a linear function of the shares (`mixture_fit`), and the shares with the lowest
predicted mean loss are taken. Only `chunk.weights` differs between proxies, so the stages before it are built once. The
recipe's own mixture is trained first, under several seeds, whose scatter says which differences mean anything. The fit
is judged on proxies that were kept back, and the gain has an interval over resampled proxies. Unlike RegMix, the
minimisation keeps each share above a floor and below what `max_epochs` passes over its source can give.

The recipe's table `[mix]` configures it; every key has a default:

[mix]
proxies = 32

[mix.settings]                  # what makes a proxy of the recipe: a small network, few tokens
"train.model.width" = 128
"chunk.budget_tokens" = 2_000_000

Results are `weights.json` (for `weights_from` of a recipe), the report, and the recipe with the weights in it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
import tomlkit
from prefect import flow, tags
from pydantic import Field

from flows.experiments.mixture_config import LEAST_PROXIES, MixConfig, read_mixture
from flows.experiments.mixture_fit import (
    best_shares,
    check_bounds,
    clip_to_observed,
    draw_mixtures,
    fit_losses,
    r_squared,
    rank_correlation,
)
from flows.experiments.studies import ReportFiles, RunResult, Variant, study_name, write_report
from flows.experiments.trials import edited_recipe, run_variants
from flows.metrics.run_metrics import score_rows
from flows.metrics.stage_lines import open_artifacts
from flows.metrics.statistics import IntervalValues, bootstrap, interval_of_mean
from flows.recipe.load import as_setting, load_recipe, quoted, with_text
from flows.recipe.schema import Recipe
from flows.reports.document import Document, Section, Table
from flows.runs.lifecycle import FlowEnd, end_of_flow
from flows.runs.record import read_run
from model.checksummed_json import write_sealed
from model.errors import GuardError, InputError
from model.files import write_atomically
from tasks.artifacts.results import ChunkResult
from tasks.artifacts.tables.rows import HELDOUT
from tasks.chunk.config import ChunkConfig
from tasks.common.numeric import seed64

WEIGHTS, RECIPE = "weights.json", "mixed.toml"

DIGITS = 6

MIN_R_SQUARED = 0.5
"""Explained variance of the proxies that were kept back, below which the shares found are not reliable."""


@dataclass(frozen=True)
class Proxy:
    """Result of a small training on a mixture, by source in the order of names."""

    shares: dict[str, float]
    """Shares that training actually read."""
    losses: dict[str, float]
    """Held-out loss of each source."""
    available: dict[str, int]
    """Tokens of each source, each counted once."""

    @property
    def mean_loss(self) -> float:
        """Plain mean of the sources' losses."""
        return statistics.fmean(self.losses.values())


class ProxyValues(TypedDict):
    """What a proxy read and lost, by source."""

    shares: dict[str, float]
    losses: dict[str, float]


class Mixture(TypedDict):
    """The shares that the proxies favour, and the quality of the fit; the content of `weights.json`."""

    sources: list[str]
    prior: dict[str, float]
    """The recipe's own shares."""
    weights: dict[str, float]
    """Those found."""
    most: dict[str, float]
    """Upper bounds."""
    predicted: float
    """Mean loss of the shares found."""
    predicted_prior: float
    gain: IntervalValues
    seeds: IntervalValues
    """Mean loss of the recipe's shares over seeds, and below its standard deviation."""
    scatter: float
    metric: str
    proxies: int
    kept_back: int
    r_squared: float | None
    """Of the proxies that were kept back."""
    rank_correlation: float | None
    mixtures: list[ProxyValues]


class MixtureFound(Mixture, ReportFiles):
    """The shares, the outcome in words, and the files."""

    outcome: str
    file: str
    recipe: str


@flow(name="mix", persist_result=False, validate_parameters=True)
def mix(
    recipe: str,
    root: Path = Path("bessemer-data"),
    proxies: Annotated[int, Field(ge=LEAST_PROXIES)] | None = None,
    settings: tuple[str, ...] = (),
) -> MixtureFound:
    """Find the best shares of a recipe's sources by training small models.

    An interrupted run continues; existing artifacts are reused. Returns the weights, the predicted losses, and the
    quality of the fit.

    Args:
        recipe: A recipe file, or the name of one that ships.
        root: Folder of all artifacts, runs and mixtures.
        proxies: Small trainings; the recipe's number by default.
        settings: KEY=VALUE that override the recipe's.
    """

    def work() -> FlowEnd[MixtureFound]:
        home = root.resolve()
        config, base, path, others = read_mixture(recipe, home, proxies, settings)
        study = _MixtureSearch(config, base, path, home, others)
        with tags(f"mix:{study.folder.name}"):
            found = study.find()
        return FlowEnd(found, found["outcome"])

    return end_of_flow(work)


class _MixtureSearch:
    """Trains the proxies of a mixture study under its folder, and fits their losses."""

    def __init__(self, config: MixConfig, base: Recipe, path: Path, root: Path, settings: tuple[str, ...]) -> None:
        self._config, self._base, self._path, self._root = config, base, path, root
        self._settings = settings
        self.folder = root / "mixtures" / study_name(base.name)

    def find(self) -> MixtureFound:
        """Train the proxies, fit their losses, and return the best shares with the paths of the results."""
        seeds = range(self._base.train.seed, self._base.train.seed + self._config.seeds)
        repeated = self._train({("the recipe's mixture", seed): {} for seed in seeds})
        first, over_seeds = repeated[0], interval_of_mean([proxy.mean_loss for proxy in repeated])
        assert over_seeds is not None, "there are two seeds or more"
        names = sorted(first.available)
        prior_S, of_target, of_proxy = self._bounds(first, names)
        mixtures_PS = draw_mixtures(
            prior_S, *of_proxy, self._config.proxies - 1, seed64(self._config.seed, "mix", "mixtures")
        )
        weights = [dict(zip(names, map(float, shares_S), strict=True)) for shares_S in mixtures_PS]
        drawn = {(f"proxy {number}", seeds[0]): mixture for number, mixture in enumerate(weights, 1)}
        proxies = [first, *self._train(drawn)]
        shares_PS, losses_PS = (
            np.array([[getattr(proxy, values)[name] for name in names] for proxy in proxies])
            for values in ("shares", "losses")
        )
        count = self._config.fitted
        judged, kept = fit_losses(shares_PS[:count], losses_PS[:count]), slice(count, None)
        predicted_P, measured_P = judged.mean_loss(shares_PS[kept]), losses_PS[kept].mean(axis=1)
        fit = fit_losses(shares_PS, losses_PS)
        low_S, high_S = clip_to_observed(*of_target, np.vstack([shares_PS, prior_S]))
        best_S = best_shares(fit, prior_S, low_S, high_S)

        def gain(rows: np.ndarray) -> float:
            predicted = fit_losses(shares_PS[rows], losses_PS[rows]).mean_loss(np.stack([prior_S, best_S]))
            return float(predicted[0] - predicted[1])

        seed = seed64(self._config.seed, "mix", "bootstrap")
        found: Mixture = {
            "sources": names,
            "prior": dict(zip(names, map(float, prior_S), strict=True)),
            "weights": dict(zip(names, map(float, best_S), strict=True)),
            "most": dict(zip(names, map(float, high_S), strict=True)),
            "predicted": float(fit.mean_loss(best_S[None])[0]),
            "predicted_prior": float(fit.mean_loss(prior_S[None])[0]),
            "gain": bootstrap(len(proxies), gain, seed).to_json(),
            "seeds": over_seeds.to_json(),
            "scatter": statistics.stdev(proxy.mean_loss for proxy in repeated),
            "metric": self._config.metric,
            "proxies": len(proxies),
            "kept_back": len(measured_P),
            "r_squared": r_squared(predicted_P, measured_P),
            "rank_correlation": rank_correlation(predicted_P, measured_P),
            "mixtures": [{"shares": proxy.shares, "losses": proxy.losses} for proxy in proxies],
        }
        settings = with_text(self._path, self._root, self._settings)
        return write_mixture(found, self._path, settings, self.folder)

    def _bounds(
        self, first: Proxy, names: list[str]
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return the recipe's own shares, and the bounds of each source in the recipe's run and in a proxy's."""
        chunk, proxy = self._base.chunk, self._proxy_recipe("", 0, {}).chunk
        floor_S = np.full(len(names), self._config.floor)
        tokens_S = np.array([first.available[name] for name in names], dtype=np.float64)
        caps = [largest_shares(tokens_S, one) for one in (chunk, proxy)]
        for high_S in caps:
            check_bounds(floor_S, high_S, names)
        by_size_S = tokens_S ** (1 / (chunk.temperature or 1.0))
        weights_S = np.array([chunk.weights.get(name, 0.0) for name in names]) if chunk.weights else by_size_S
        return weights_S / weights_S.sum(), (floor_S, caps[0]), (floor_S, caps[1])

    def _proxy_recipe(self, name: str, seed: int, weights: dict[str, float]) -> Recipe:
        more = [as_setting(key, value) for key, value in self._config.settings.items()]
        more += [as_setting(f"chunk.weights.{quoted(source)}", weight) for source, weight in weights.items()]
        recipe = load_recipe(self._path, self._root, [*self._settings, *more, as_setting("train.seed", seed)])
        return recipe.model_copy(update={"name": f"{self._base.name}, {name}"[:80]})

    def _train(self, mixtures: dict[tuple[str, int], dict[str, float]]) -> list[Proxy]:
        """Train a proxy on each mixture. One that fails ends the study, since the fit needs all of them."""
        found: list[Proxy] = []

        def on_result(name: str, seed: int, result: RunResult) -> None:
            if result.cause:
                raise GuardError(
                    f"mix: {name}, seed {seed}, failed ({result.cause}), and the fit needs all proxies. Fix the cause"
                    f" and run again; finished runs are reused."
                )
            found.append(read_proxy(self._root, result.run_id, self._config.metric))

        variants = {
            (name, seed): Variant(self._proxy_recipe(name, seed, weights)) for (name, seed), weights in mixtures.items()
        }
        run_variants(variants, self._root, self.folder, on_result)
        return found


def largest_shares(available_S: np.ndarray, chunk: ChunkConfig) -> np.ndarray:
    """Return the share of the budget that each source can fill: its available tokens, each read `max_epochs` times."""
    return np.minimum(1.0, chunk.max_epochs * available_S / chunk.budget_tokens)


def read_proxy(root: Path, run_id: str, metric: str) -> Proxy:
    """Return what a finished run shows of its mixture; InputError where a source has no held-out figure."""
    artifacts = open_artifacts(read_run(root / "runs" / run_id))
    table = ChunkResult.of(artifacts["chunk"].report).mixture
    losses = {
        row["task"].removeprefix(HELDOUT): row["value"]
        for row in score_rows(artifacts["evaluate"])
        if row["task"].startswith(HELDOUT) and row["metric"] == metric and row["value"] is not None
    }
    unmeasured = [source for source in table if source not in losses]
    if unmeasured:
        raise InputError(
            f"mix: the evaluation gives no {metric} of held-out text of {', '.join(unmeasured)}, so the"
            f" effect of a mixture on it is unknown. Hold more of it out (decontaminate), or choose another mix.metric"
        )
    names = sorted(table)
    return Proxy(
        {name: table[name]["realised_share"] for name in names},
        {name: losses[name] for name in names},
        {name: table[name]["tokens"] for name in names},
    )


def write_mixture(found: Mixture, path: Path, settings: Sequence[str], folder: Path) -> MixtureFound:
    """Write weights, report and recipe, and return the result with their paths."""
    # Weights of a recipe must add up to one, also after rounding.
    rounded = {name: round(weight, DIGITS) for name, weight in found["weights"].items()}
    largest = max(rounded, key=rounded.__getitem__)
    rounded[largest] = round(rounded[largest] + 1 - sum(rounded.values()), DIGITS)
    found = {**found, "weights": rounded}
    write_sealed(folder / WEIGHTS, found)
    weights = [as_setting(f"sources.{quoted(name)}.weight", weight) for name, weight in rounded.items()]
    document = edited_recipe(path, [*settings, *weights], "mix", "search", "temperature", "weights_from")
    write_atomically(folder / RECIPE, tomlkit.dumps(document).encode())
    shares = ", ".join(f"{name} {weight:.1%}" for name, weight in rounded.items())
    predicted = f"predicted {found['predicted']:.4f}, with the recipe's shares {found['predicted_prior']:.4f}"
    paths = write_report(found, mixture_document(folder.name, found), folder)
    outcome = f"{shares}; {predicted}{doubt(found)}"
    return {**found, **paths, "outcome": outcome, "file": str(folder / WEIGHTS), "recipe": str(folder / RECIPE)}


def doubt(found: Mixture) -> str:
    """Return a warning where the fit predicts the kept-back mixtures poorly, or the gain may be chance; else empty."""
    poor = (found["r_squared"] or 0.0) < MIN_R_SQUARED
    if not poor and found["gain"]["low"] > 0:
        return ""
    why = "The fit predicts the mixtures that were kept back poorly" if poor else "The gain may be chance"
    return (
        f". {why}, so these shares are not reliable: keep the recipe's, train more proxies (--proxies), or longer ones"
        f" (in the table mix.settings)"
    )


def mixture_document(name: str, found: Mixture) -> Document:
    """Return the report: the recipe's shares, those found, the gain, and the quality of the fit."""
    quality = ", ".join(
        f"{words} {'unknown' if value is None else format(value, '.3f')}"
        for words, value in (("R²", found["r_squared"]), ("rank correlation", found["rank_correlation"]))
    )
    gain, seeds = found["gain"], found["seeds"]
    sentences = (
        f"{found['proxies']} proxies; on {found['kept_back']} that were kept back: {quality}.",
        f"Mean {found['metric'].replace('_', ' ')} of the sources, as predicted: {found['predicted_prior']:.4f} with"
        f" the recipe's shares, {found['predicted']:.4f} with these: {gain['value']:.4f} less ({gain['low']:.4f} to"
        f" {gain['high']:.4f} over resampled proxies){doubt(found)}.",
        f"With the recipe's shares, seeds gave {seeds['value']:.4f} ({seeds['low']:.4f} to {seeds['high']:.4f}); a seed"
        f" alone moves it by {found['scatter']:.4f} (standard deviation).",
    )
    rows = [
        (source, *(f"{shares[source]:.2%}" for shares in (found["prior"], found["weights"], found["most"])))
        for source in found["sources"]
    ]
    table = Table(("source", "recipe", "found", "upper bound"), rows)
    return Document(f"mixture {name}", [Section("Shares", [*sentences, table])], f"{found['proxies']} proxies")
