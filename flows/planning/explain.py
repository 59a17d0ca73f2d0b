"""What a recipe would do, before anything runs: which stages stand, which will be built, and the first cause of each.

The road is walked with the builds themselves, told to stop where work would begin. Past such a stage its output is
unknown; the artifact most like it stands in, because a rebuild that gives the same bytes stops the wave there.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flows.planning.preconditions import check_benchmarks, check_sources, check_starting_points
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.verify import artifacts_under
from tasks.artifacts.artifact import REUSED, Artifact
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.artifacts.identity import differences
from tasks.artifacts.reuse import NONE_OF_THESE_SOURCES
from tasks.sample.discovery import find_files

BUILD, DEPENDS = "build", "depends"


@dataclass(frozen=True)
class Forecast:
    """What will become of a stage: `reused`, `accepted`, `build`, or `depends` on what a stage before it gives.

    `identity` is None where it hangs on an output that nobody knows yet; `differences` are all of a build's causes.
    """

    stage: str
    verdict: str
    cause: str
    identity: str | None = None
    differences: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The forecast as plain values."""
        return asdict(self)


class _Unforeseeable(Exception):
    """Nothing stands that could stand in for the output of a stage that will be built."""


def explain(recipe: Recipe, root: Path) -> list[Forecast]:
    """The forecast of every stage in order; raises what a run would raise before work begins (a missing input)."""
    check_starting_points(recipe, STAGES)
    context = RunContext(root, run_id="", dry=True)
    forecasts: list[Forecast] = []
    rebuilt: list[str] = []
    undecided: set[str] = set()
    """Stages whose output hangs on what a rebuilt one gives; what stands for it is a guess."""

    def step(stage: str, *inputs: Any) -> Artifact:
        # Listed once, since a source may have very many files.
        listings = find_files(recipe.sample) if stage == "sample" else []
        try:
            asking = replace(context, guessing=bool(rebuilt))
            artifact = BUILDERS[stage](asking, *inputs, *([listings] if listings else []))
        except WouldBuild as would:
            check_sources(recipe, listings)
            guessed = {one.content: one.stage for one in inputs if isinstance(one, Artifact) and one.stage in undecided}
            forecasts.append(_build(stage, would, rebuilt, guessed))
            undecided.add(stage)
            if forecasts[-1].verdict == BUILD:
                rebuilt.append(stage)
            if would.miss.nearest is None:
                raise _Unforeseeable from would
            return Artifact.open(would.miss.nearest)
        if rebuilt and artifact.outcome == REUSED:
            undecided.add(stage)
            told = f"reused if {_names(rebuilt)} gives what it gave before, else built"
            forecasts.append(Forecast(stage, DEPENDS, told))
        else:
            forecasts.append(Forecast(stage, artifact.outcome, artifact.cause, artifact.identity))
        return artifact

    try:
        run_stages(recipe, step)
    except _Unforeseeable:
        unknown = f"nothing of `{rebuilt[-1]}` stands to look ahead from"
        foreign = forecasts[-1].cause == NONE_OF_THESE_SOURCES
        for stage in STAGES[len(forecasts) :]:
            standing = not foreign and artifacts_under(root, stage)
            forecasts.append(Forecast(stage, DEPENDS if standing else BUILD, unknown))
    if any(forecast.stage == "decontaminate" and forecast.verdict in (BUILD, DEPENDS) for forecast in forecasts):
        check_benchmarks(recipe)
    return forecasts


def _build(stage: str, would: WouldBuild, rebuilt: list[str], guessed: dict[str, str]) -> Forecast:
    """`guessed` names, by content, the stages whose output only stands in for what they will give."""
    if would.miss.nearest_parts is None:
        return Forecast(stage, BUILD, would.miss.cause, None if rebuilt else would.identity.key)
    asked, nearest = would.identity.parts(), would.miss.nearest_parts
    parents = asked["parents"]
    later = {name: guessed[content] for name, content in parents.items() if content in guessed}
    known = {name: content for name, content in parents.items() if name not in later or name not in nearest["parents"]}
    taken = {name: nearest["parents"][name] for name in parents if name not in known}
    causes = tuple(differences(nearest, {**asked, "parents": {**known, **taken}}))
    if not causes and later:
        return Forecast(stage, DEPENDS, f"decided when {_names(rebuilt)} is built, whose content it takes")
    if not causes:
        return Forecast(stage, BUILD, would.miss.cause, would.identity.key)
    told = tuple(f"the input `{name}` is decided when `{at}` is built" for name, at in later.items())
    return Forecast(stage, BUILD, causes[0], None if rebuilt else would.identity.key, (*causes, *told))


def _names(stages: list[str]) -> str:
    return " and ".join(f"`{stage}`" for stage in stages)
