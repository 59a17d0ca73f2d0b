"""Forecast a run: which stages it would reuse, which it would build, and the first cause of each build; print it.

The stages' own builds run in dry mode, which stops where work would begin. Past such a stage its output is unknown; the
most similar existing artifact takes its place, because a rebuild that gives the same bytes needs no further rebuilds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from flows.planning.preconditions import check_benchmarks, check_sources, check_starting_points, find_source_files
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.reports.document import Styled, Table
from flows.reports.progress import OUTCOME_STYLES
from flows.runs.guards import check_base_vocabulary
from flows.runs.pipeline import BUILDERS, run_stages
from tasks.artifacts.artifact import REUSED, Artifact, manifest_of
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.artifacts.identity import differences
from tasks.artifacts.published import artifacts_under
from tasks.artifacts.references import kept_artifact
from tasks.artifacts.reuse import NONE_OF_THESE_SOURCES

BUILD, DEPENDS = "build", "depends"

VERDICT_STYLES = {**OUTCOME_STYLES, BUILD: "green", DEPENDS: "dim"}

VERDICT_LABELS = {BUILD: "will be built", DEPENDS: "depends"}


@dataclass(frozen=True)
class Forecast:
    """The forecast of a stage. `verdict` is `reused`, `accepted`, `build`, or `depends` (on the output of an earlier
    stage).

    `identity` is None where it depends on an output that is not known yet; `differences` are all causes of a build.
    """

    stage: str
    verdict: str
    cause: str
    identity: str | None = None
    differences: tuple[str, ...] = ()


def forecast_stages(recipe: Recipe, root: Path) -> list[Forecast]:
    """Return the forecast of every stage in order; raises what a run would raise before work begins."""
    check_starting_points(recipe, STAGES)
    context = RunContext(root, run_id="", dry=True)
    forecasts: list[Forecast] = []
    rebuilt: list[str] = []
    undecided: set[str] = set()
    """Stages whose output depends on a rebuilt one; the artifact used in its place is a guess."""

    def step(stage: str, *inputs: Any) -> Artifact:
        # Listed once, because a source may have very many files.
        listings = find_source_files(recipe) if stage == "sample" else []
        try:
            dry = replace(context, guessing=bool(rebuilt))
            artifact = BUILDERS[stage](dry, *inputs, *([listings] if listings else []))
        except WouldBuild as would:
            check_sources(recipe, listings)
            guessed = {one.content: one.stage for one in inputs if isinstance(one, Artifact) and one.stage in undecided}
            forecasts.append(_build(stage, would, rebuilt, guessed))
            undecided.add(stage)
            if forecasts[-1].verdict == BUILD:
                rebuilt.append(stage)
            if would.miss.nearest is None:
                raise _NoSubstitute from would
            return Artifact.open(would.miss.nearest)
        if rebuilt and artifact.outcome == REUSED:
            undecided.add(stage)
            cause = f"reused if the output of {_names(rebuilt)} does not change, else built"
            forecasts.append(Forecast(stage, DEPENDS, cause))
        else:
            forecasts.append(Forecast(stage, artifact.outcome, artifact.cause, artifact.identity))
            if stage == "vocab":
                check_base_vocabulary(artifact, recipe.train.base_model)
        return artifact

    try:
        run_stages(recipe, step)
    except _NoSubstitute:
        unknown = f"unknown until `{rebuilt[-1]}` is built"
        has_other_sources = forecasts[-1].cause == NONE_OF_THESE_SOURCES
        for stage in STAGES[len(forecasts) :]:
            may_be_reused = not has_other_sources and artifacts_under(root, stage)
            forecasts.append(Forecast(stage, DEPENDS if may_be_reused else BUILD, unknown))
    if any(forecast.stage == "decontaminate" and forecast.verdict in (BUILD, DEPENDS) for forecast in forecasts):
        check_benchmarks(recipe)
    return forecasts


MEASURED = "measured anew"

KEPT = {
    "sample": "sizes of sources",
    "clean": "quality classifier",
    "decontaminate": "counts of common words",
    "vocab": "vocabulary",
    "chunk": "slots of the order",
}
"""What a stage decides from all documents together."""


def aggregates(recipe: Recipe) -> dict[str, str]:
    """Return those of KEPT that a run of this recipe has."""
    unused = {"clean": recipe.clean.quality is None, "chunk": recipe.chunk.packing != "stable"}
    return {stage: what for stage, what in KEPT.items() if not unused.get(stage)}


def kept_aggregates(recipe: Recipe, root: Path) -> dict[str, list[str]]:
    """Return run -> what the recipe keeps of it instead of measuring it anew; MEASURED is the key of what no run has
    yet. Empty where the recipe keeps nothing."""
    found: dict[str, list[str]] = {}
    for stage, what in aggregates(recipe).items():
        config = getattr(recipe, stage)
        if config.keep is None:
            continue
        kept = kept_artifact(config.keep, root, stage)
        found.setdefault(MEASURED if kept is None else manifest_of(kept)["run"], []).append(what)
    return found


def _build(stage: str, would: WouldBuild, rebuilt: list[str], guessed: dict[str, str]) -> Forecast:
    """Return the forecast of a stage that would be built.

    `guessed` maps the content of an input to its stage, where that input only takes the place of a future output.
    """
    if would.miss.nearest_parts is None:
        return Forecast(stage, BUILD, would.miss.cause, None if rebuilt else would.identity.key)
    wanted, nearest = would.identity.parts(), would.miss.nearest_parts
    parents = wanted["parents"]
    later = {name: guessed[content] for name, content in parents.items() if content in guessed}
    known = {name: content for name, content in parents.items() if name not in later or name not in nearest["parents"]}
    assumed = {name: nearest["parents"][name] for name in parents if name not in known}
    causes = tuple(differences(nearest, {**wanted, "parents": {**known, **assumed}}))
    if not causes and later:
        return Forecast(stage, DEPENDS, f"decided when its input {_names(rebuilt)} is built")
    if not causes:
        return Forecast(stage, BUILD, would.miss.cause, would.identity.key)
    undecided = tuple(f"the input `{name}` is decided when `{at}` is built" for name, at in later.items())
    return Forecast(stage, BUILD, causes[0], None if rebuilt else would.identity.key, (*causes, *undecided))


def _names(stages: list[str]) -> str:
    return " and ".join(f"`{stage}`" for stage in stages)


class _NoSubstitute(Exception):
    """No artifact can take the place of the output of a stage that will be built."""


def print_forecasts(forecasts: list[Forecast], console: Console, *, every: bool) -> None:
    """Print a line for each stage with its forecast and cause; `every` prints all differences instead of the first."""
    rows = []
    for forecast in forecasts:
        causes = forecast.differences if every and forecast.differences else (forecast.cause,)
        more = len(forecast.differences) - len(causes)
        text = "\n".join(causes) + (f" (and {more} more: --all)" if more > 0 else "")
        label = VERDICT_LABELS.get(forecast.verdict, forecast.verdict)
        rows.append((forecast.stage, Styled(label, VERDICT_STYLES[forecast.verdict]), text))
    columns = ("stage", "forecast", "cause")
    console.print(Table(columns, rows, texts=columns).rich())


def print_sizes(changed: Mapping[str, tuple[Any, Any]], console: Console) -> None:
    """Print the settings in which a shrunk twin differs from its recipe."""
    rows = [
        (key, *("by its files" if value is None else str(value) for value in values)) for key, values in changed.items()
    ]
    console.print(Table(("size", "recipe", "here"), rows).rich())
    console.print()
