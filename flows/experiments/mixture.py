"""Mixing weights from small models as a Prefect flow: which shares of the sources many proxies of a recipe favour.

RegMix (Liu et al. 2024): proxies, small trainings of the recipe, run on random mixtures, one task run each; the log of
each source's held-out loss is fitted as a linear function of the shares (`mixture_fit`), and the shares with the lowest
predicted mean loss are taken. Only `chunk.weights` differs between proxies, so the stages before it are built once. The
fit is judged on proxies that were kept back. Unlike RegMix, the minimisation keeps each share above a floor and below
what `max_epochs` passes over its source can give.

The recipe's table `[mix]` configures it; every key has a default:

[mix]
proxies = 32

[mix.settings]                  # what makes a proxy of the recipe: a small network, few tokens
"train.model.width" = 128
"chunk.budget_tokens" = 2_000_000

Results are `weights.json` (for `weights_from` of a recipe), a table, and the recipe with the weights written into it.
"""

import re
import threading
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tomlkit
from prefect import flow, tags, task
from prefect.states import Completed, Failed
from pydantic import Field, ValidationError, field_validator

from flows.experiments.mixture_fit import (
    best_shares,
    check_bounds,
    clip_to_observed,
    draw_mixtures,
    fit_losses,
    r_squared,
    rank_correlation,
)
from flows.experiments.trials import TrialWatcher, as_setting, parse_editable, run_pipeline
from flows.recipe.errors import format_config_errors
from flows.recipe.load import apply_setting, load_recipe, locate_recipe
from flows.recipe.schema import Recipe
from flows.runs.guards import raise_if_interrupted
from flows.runs.record import CURRENT_LISTENER, new_run_id
from model.checksummed_json import read_sealed, write_sealed
from model.config import EXPERT
from model.errors import BessemerError, InputError, RecipeError
from model.files import write_atomically
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener
from tasks.common.config import StrictConfig
from tasks.common.numeric import seed64
from tasks.execution.outcome import one_line

FOLDER = "mixtures"

RUNS = "runs.json"

RUNS_LOST = "Remove it: runs start with new ids, and existing artifacts are reused."


@dataclass(frozen=True)
class Proxy:
    """Result of a small training on a mixture, by source in the order of names."""

    shares: dict[str, float]
    """Shares that training actually read."""
    losses: dict[str, float]
    """Held-out loss of each source."""
    available: dict[str, int]
    """Tokens of each source, each counted once."""


@flow(name="mix", persist_result=False, validate_parameters=True)
def mix(
    recipe: str,
    root: Path = Path("bessemer-data"),
    proxies: Annotated[int, Field(ge=4)] | None = None,
    settings: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Find the best shares of a recipe's sources by training small models.

    An interrupted run continues; existing artifacts are reused. Returns the weights, the predicted losses, and the
    quality of the fit.

    Args:
        recipe: A recipe file, or the name of one that ships.
        root: Folder of all artifacts, runs and mixtures.
        proxies: Small trainings; the recipe's number by default.
        settings: KEY=VALUE that override the recipe's.
    """
    root = root.resolve()
    try:
        path = locate_recipe(recipe, root)
        config, base = read_mix(path, proxies), load_recipe(path, root, settings)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", base.name)
        with tags(f"mix:{name}"):
            found = _MixtureSearch(config, base, path, root, root / FOLDER / name, settings).find()
    except BessemerError as error:
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    return Completed(message=found["told"], data=found)  # pyright: ignore[reportReturnType]


class MixConfig(StrictConfig):
    """How many proxies, of what kind, and within which bounds."""

    proxies: int = Field(default=32, ge=4, le=2048)
    """Small trainings, each on its own mixture; the first on the recipe's."""
    kept_back: Annotated[float, EXPERT] = Field(default=0.25, gt=0, lt=1)
    """Share of the proxies that are kept out of the fit to judge it."""
    floor: Annotated[float, EXPERT] = Field(default=0.005, ge=0, lt=1)
    """Least share of a source: a large model may need text that proxies can do without."""
    seed: Annotated[int, EXPERT] = Field(default=1, ge=0, lt=2**63)
    """Seed of the mixtures."""
    metric: Annotated[str, EXPERT] = "bits_per_byte"
    """Metric of SCORES on each source's held-out text whose mean is minimised."""
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Settings of proxies that differ from the recipe. Of the data stages only `chunk` may differ: the vocabulary must
    be the recipe's, since weights do not transfer to another."""

    @field_validator("settings")
    @classmethod
    def _refuse_other_data(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for key in settings:
            if key.partition(".")[0] in DATA or key in ("seed", "budget_tokens", "chunk.weights"):
                instead = "chunk.budget_tokens" if key == "budget_tokens" else "keys of train, chunk or evaluate"
                raise ValueError(f"{key} would give proxies other text than the recipe's; set {instead} instead")
        return settings

    @property
    def fitted(self) -> int:
        """Number of proxies that the fit is made from."""
        return self.proxies - max(2, round(self.kept_back * self.proxies))


class _MixtureSearch:
    """Trains the proxies of a mixture study under its folder, and fits their losses."""

    def __init__(
        self, config: MixConfig, base: Recipe, path: Path, root: Path, folder: Path, settings: tuple[str, ...]
    ) -> None:
        self._config, self._base, self._path, self._root = config, base, path, root
        self._folder, self._settings = folder, settings
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / RUNS
        self._run_ids: list[str] = read_sealed(known, RUNS_LOST)["runs"] if known.is_file() else []

    def find(self) -> dict[str, Any]:
        """Train the proxies, fit their losses, and return the best shares with the paths of the results."""
        first = self._proxy(0, {})
        names = sorted(first.available)
        if len(names) < 2:
            raise RecipeError(f"mix: the recipe has one source, {', '.join(names)}, and a mixture needs two or more")
        prior_S, of_target, of_proxy = self._bounds(first, names)
        mixtures_PS = draw_mixtures(
            prior_S, *of_proxy, self._config.proxies - 1, seed64(self._config.seed, "mix", "mixtures")
        )
        proxies = [first]
        for number, shares_S in enumerate(mixtures_PS, start=1):
            proxies.append(self._proxy(number, dict(zip(names, map(float, shares_S), strict=True))))
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
        """Return the recipe's own shares, and the bounds of each source in the recipe's run and in a proxy's."""
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
        name, listener = f"proxy {number}", CURRENT_LISTENER.get()
        watcher = TrialWatcher(name, listener, threading.Event())
        recipe = self._proxy_recipe(number, weights)
        result = train_proxy(number, recipe, self._root, self._run_ids[number], self._config.metric, watcher)
        mean = sum(result.losses.values()) / len(result.losses)
        shares = ", ".join(f"{source} {share:.1%}" for source, share in result.shares.items())
        listener.note(name, f"{mean:.4f} with {shares}")
        return result


@task(name="proxy", task_run_name="proxy {number}", persist_result=False)
def train_proxy(number: int, recipe: Recipe, root: Path, run_id: str, metric: str, watcher: ProgressListener) -> Proxy:
    """Train one proxy and return its result. A proxy that fails ends the study, since the fit needs all of them."""
    del number  # It names the task run.
    record = run_pipeline(recipe, root, run_id, watcher)
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
            f"mix: the evaluation gives no {metric} of held-out text of {', '.join(unmeasured)}, so the"
            f" effect of a mixture on it is unknown. Hold more of it out (decontaminate), or choose another mix.metric"
        )
    names = sorted(table)
    return Proxy(
        {name: table[name]["realised_share"] for name in names},
        {name: losses[name] for name in names},
        {name: table[name]["tokens"] for name in names},
    )


TABLE = "mix"

EXAMPLE = """[mix]
proxies = 32

[mix.settings]
"train.model.width" = 128
"chunk.budget_tokens" = 2_000_000
"""

DATA = ("sources", "sample", "clean", "dedup", "decontaminate", "vocab")


def read_mix(path: Path, proxies: int | None) -> MixConfig:
    """Return the table [mix] of a recipe; RecipeError where there is none, or an invalid one."""
    table = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE)
    if table is None:
        raise RecipeError(
            f"{path}: no table [{TABLE}], which says how many proxies are trained, and in [{TABLE}.settings] how small"
            f" they are; without it each would be a whole training. Add one (docs/studies.md), e.g.:\n\n{EXAMPLE}"
        )
    if not isinstance(table, dict):
        raise RecipeError(f"{path}: {TABLE} is {table!r}, and must be a table of settings")
    try:
        return MixConfig.model_validate({**table, **({} if proxies is None else {"proxies": proxies})})
    except ValidationError as error:
        raise RecipeError(format_config_errors(error, path, TABLE)) from error


WEIGHTS, MARKDOWN, RECIPE = "weights.json", "table.md", "mixed.toml"

DIGITS = 6

MIN_R_SQUARED = 0.5
"""Explained variance of the proxies that were kept back, below which the shares found are not reliable."""


def write_mixture(found: dict[str, Any], path: Path, settings: Sequence[str], folder: Path) -> dict[str, Any]:
    """Write weights, table and recipe, and return the result with their paths."""
    # Weights of a recipe must add up to one, also after rounding.
    rounded = {name: round(weight, DIGITS) for name, weight in found["weights"].items()}
    largest = max(rounded, key=rounded.__getitem__)
    rounded[largest] = round(rounded[largest] + 1 - sum(rounded.values()), DIGITS)
    found = {**found, "weights": rounded}
    write_sealed(folder / WEIGHTS, found)
    write_atomically(folder / MARKDOWN, as_markdown(found).encode())
    text = path.read_text(encoding="utf-8").replace("{recipe}", str(path.resolve().parent))
    document = parse_editable(text)
    for table in ("mix", "search", "temperature", "weights_from"):
        document.pop(table, None)
    for setting in settings:
        apply_setting(document, setting)
    for name, weight in rounded.items():
        apply_setting(document, as_setting(f"sources.{name}.weight", weight))
    write_atomically(folder / RECIPE, tomlkit.dumps(document).encode())
    shares = ", ".join(f"{name} {weight:.1%}" for name, weight in rounded.items())
    predicted = f"predicted {found['predicted']:.4f}, with the recipe's shares {found['predicted_prior']:.4f}"
    return {
        **found,
        "told": f"{shares}; {predicted}{doubt(found)}",
        "file": str(folder / WEIGHTS),
        "markdown": str(folder / MARKDOWN),
        "recipe": str(folder / RECIPE),
    }


def doubt(found: dict[str, Any]) -> str:
    """Return a warning where the fit predicts the kept-back mixtures poorly; else an empty text."""
    if (found["r_squared"] or 0.0) >= MIN_R_SQUARED:
        return ""
    return (
        ". The fit predicts the mixtures that were kept back poorly, so these shares are not reliable: keep the"
        " recipe's, train more proxies (--proxies), or longer ones (in the table mix.settings)"
    )


def as_markdown(found: dict[str, Any]) -> str:
    """Return the recipe's shares, those found, and the quality of the fit as Markdown."""
    quality = ", ".join(
        f"{name} {'unknown' if found[key] is None else format(found[key], '.3f')}"
        for name, key in (("R²", "r_squared"), ("rank correlation", "rank_correlation"))
    )
    rows = [
        f"| {name} | {found['prior'][name]:.2%} | {found['weights'][name]:.2%} | {found['most'][name]:.2%} |"
        for name in found["sources"]
    ]
    parts = [
        f"{found['proxies']} proxies; on {found['kept_back']} that were kept back: {quality}.",
        f"Mean {found['metric'].replace('_', ' ')} of the sources, as predicted: {found['predicted_prior']:.4f} with"
        f" the recipe's shares, {found['predicted']:.4f} with these{doubt(found)}.",
        "",
        "| source | recipe | found | upper bound |",
        "|---|---|---|---|",
        *rows,
    ]
    return "\n".join([*parts, ""])
