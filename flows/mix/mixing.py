"""Mixing weights from proxies as a Prefect flow: one task run for each proxy."""

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from prefect import flow, tags, task
from prefect.states import Completed, Failed
from pydantic import Field

from flows.interrupts import raise_if_interrupted
from flows.mix.config import MixConfig, read_mix
from flows.mix.regression import best_shares, fitted, r_squared, rank_correlation, within_seen
from flows.mix.simplex import check_bounds, drawn
from flows.mix.writing import write_mixture
from flows.recipe import Recipe, load_recipe
from flows.record import ONLOOKER, new_run_id
from flows.shipped import recipe_file
from flows.trial_runs import TrialWatcher, as_setting, run_road
from model.errors import BessemerError, InputError, RecipeError
from model.sealed import read_sealed, write_sealed
from tasks.artifact import Artifact
from tasks.build import Watcher
from tasks.outcome import one_line
from tasks.seed import seed64

FOLDER = "mixtures"
RUNS = "runs.json"
RUNS_LOST = "Remove it: runs begin under new ids, and what they built is reused."


@dataclass(frozen=True)
class Proxy:
    """A small training on a mixture, by source in the order of names."""

    shares: dict[str, float]
    """What training really read."""
    losses: dict[str, float]
    """Held-out loss of each source."""
    available: dict[str, int]
    """Tokens that one reading of each source takes."""


@flow(name="mix", persist_result=False, validate_parameters=True)
def mix(
    recipe: str,
    root: Path = Path("bessemer-data"),
    proxies: Annotated[int, Field(ge=4)] | None = None,
    settings: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Find the shares of a recipe's sources that small models say are best.

    Stopped, it goes on; what is built is reused. Returns the weights, what was predicted, and how well.

    Args:
        recipe: A recipe file, or the name of one that ships.
        root: Folder of all artifacts, runs and mixtures.
        proxies: Small trainings; the recipe's number by default.
        settings: KEY=VALUE that overrule the recipe's.
    """
    root = root.resolve()
    try:
        path = recipe_file(recipe, root)
        config, base = read_mix(path, proxies), load_recipe(path, root, settings)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", base.name)
        with tags(f"mix:{name}"):
            found = _Mixing(config, base, path, root, root / FOLDER / name, settings).find()
    except BessemerError as error:
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    return Completed(message=found["told"], data=found)  # pyright: ignore[reportReturnType]


class _Mixing:
    def __init__(
        self, config: MixConfig, base: Recipe, path: Path, root: Path, folder: Path, settings: tuple[str, ...]
    ) -> None:
        self._config, self._base, self._path, self._root = config, base, path, root
        self._folder, self._settings = folder, settings
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / RUNS
        self._run_ids: list[str] = read_sealed(known, RUNS_LOST)["runs"] if known.is_file() else []

    def find(self) -> dict[str, Any]:
        """Train the proxies, fit, and take the best shares."""
        first = self._proxy(0, {})
        names = sorted(first.available)
        if len(names) < 2:
            raise RecipeError(f"mix: one source, {', '.join(names)}, leaves nothing to mix")
        prior_S, of_target, of_proxy = self._bounds(first, names)
        mixtures_PS = drawn(prior_S, *of_proxy, self._config.proxies - 1, seed64(self._config.seed, "mix", "mixtures"))
        proxies = [first]
        for number, shares_S in enumerate(mixtures_PS, start=1):
            proxies.append(self._proxy(number, dict(zip(names, map(float, shares_S), strict=True))))
        shares_PS, losses_PS = (
            np.array([[getattr(proxy, values)[name] for name in names] for proxy in proxies])
            for values in ("shares", "losses")
        )
        count = self._config.fitted
        judged, kept = fitted(shares_PS[:count], losses_PS[:count]), slice(count, None)
        predicted_P, measured_P = judged.mean_loss(shares_PS[kept]), losses_PS[kept].mean(axis=1)
        fit = fitted(shares_PS, losses_PS)
        low_S, high_S = within_seen(*of_target, np.vstack([shares_PS, prior_S]))
        best_S = best_shares(fit, prior_S, low_S, high_S)
        found = {
            "sources": names,
            "prior": dict(zip(names, map(float, prior_S), strict=True)),
            "weights": dict(zip(names, map(float, best_S), strict=True)),
            "most": dict(zip(names, map(float, high_S), strict=True)),
            "predicted": float(fit.mean_loss(best_S[None])[0]),
            "predicted_prior": float(fit.mean_loss(prior_S[None])[0]),
            "metric": self._config.metric,
            "proxies": len(proxies),
            "kept_back": len(measured_P),
            "r_squared": r_squared(predicted_P, measured_P),
            "rank_correlation": rank_correlation(predicted_P, measured_P),
            "mixtures": [{"shares": proxy.shares, "losses": proxy.losses} for proxy in proxies],
        }
        return write_mixture(found, self._path, self._settings, self._folder)

    def _bounds(
        self, first: Proxy, names: list[str]
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """The recipe's own shares, and the least and the most of each source in the recipe's run and in a proxy's."""
        chunk, proxy = self._base.chunk, self._proxy_recipe(0, {}).chunk
        floor_S = np.full(len(names), self._config.floor)
        tokens_S = np.array([first.available[name] for name in names], dtype=np.float64)
        caps = [np.minimum(1.0, one.max_epochs * tokens_S / one.budget_tokens) for one in (chunk, proxy)]
        for high_S in caps:
            check_bounds(floor_S, high_S, names)
        weights_S = np.array([chunk.weights.get(name, 0.0) for name in names]) if chunk.weights else tokens_S
        return weights_S / weights_S.sum(), (floor_S, caps[0]), (floor_S, caps[1])

    def _proxy_recipe(self, number: int, weights: dict[str, float]) -> Recipe:
        more = [as_setting(key, value) for key, value in self._config.settings.items()]
        more += [as_setting(f"chunk.weights.{name}", weight) for name, weight in weights.items()]
        recipe = load_recipe(self._path, self._root, [*self._settings, *more])
        return recipe.model_copy(update={"name": f"{self._base.name}, proxy {number}"[:80]})

    def _proxy(self, number: int, weights: dict[str, float]) -> Proxy:
        raise_if_interrupted()
        if number == len(self._run_ids):
            self._run_ids.append(new_run_id())
            write_sealed(self._folder / RUNS, {"runs": self._run_ids}, indent=None)
        name, onlooker = f"proxy {number}", ONLOOKER.get()
        watcher = TrialWatcher(name, onlooker, threading.Event())
        recipe = self._proxy_recipe(number, weights)
        came = train_proxy(number, recipe, self._root, self._run_ids[number], self._config.metric, watcher)
        mean = sum(came.losses.values()) / len(came.losses)
        shares = ", ".join(f"{source} {share:.1%}" for source, share in came.shares.items())
        onlooker.note(name, f"{mean:.4f} with {shares}")
        return came


@task(name="proxy", task_run_name="proxy {number}", persist_result=False)
def train_proxy(number: int, recipe: Recipe, root: Path, run_id: str, metric: str, watcher: Watcher) -> Proxy:
    """Train one proxy and measure it. A proxy that fails ends the search: a fit needs all of them."""
    del number  # It names the task run.
    record = run_road(recipe, root, run_id, watcher)
    artifacts = {entry["stage"]: Artifact.open(Path(entry["path"])) for entry in record["stages"] if "path" in entry}
    table = artifacts["chunk"].report.facts["mixture"]
    losses = {
        row["task"].removeprefix("heldout/"): row["value"]
        for row in artifacts["evaluate"].table("scores").to_pylist()
        if row["task"].startswith("heldout/") and row["metric"] == metric and row["value"] is not None
    }
    unmeasured = [source for source in table if source not in losses]
    if unmeasured:
        raise InputError(
            f"mix: the evaluation gives no {metric} of held-out text of {', '.join(unmeasured)}, so that nobody can say"
            f" what a mixture does for it. Hold more of it out (decontaminate), or choose another mix.metric"
        )
    names = sorted(table)
    return Proxy(
        {name: table[name]["realised_share"] for name in names},
        {name: losses[name] for name in names},
        {name: table[name]["tokens"] for name in names},
    )
