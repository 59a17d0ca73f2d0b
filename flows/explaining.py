"""What a recipe would do, before anything runs: which stages stand, which will be built, and the first cause of each.

The road is walked with the builds themselves, told to stop where work would begin. Past such a stage its output is
unknown; the artifact most like it stands in, because a rebuild that gives the same bytes stops the wave there.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.builders import BUILDERS
from flows.prerequisites import check_starting_points
from flows.recipe import Recipe
from flows.road import STAGES, walk
from flows.verification import artifacts_under
from tasks.artifact import REUSED, Artifact
from tasks.build import RunContext, WouldBuild
from tasks.causes import NONE_OF_THESE_SOURCES
from tasks.identity import differences

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

    def step(stage: str, *inputs: Any) -> Artifact:
        try:
            artifact = BUILDERS[stage](context, *inputs)
        except WouldBuild as would:
            forecasts.append(_build(stage, would, rebuilt))
            rebuilt.append(stage)
            if would.miss.nearest is None:
                raise _Unforeseeable from would
            return Artifact.open(would.miss.nearest)
        if rebuilt and artifact.outcome == REUSED:
            told = f"reused if {_names(rebuilt)} gives what it gave before, else built"
            forecasts.append(Forecast(stage, DEPENDS, told))
        else:
            forecasts.append(Forecast(stage, artifact.outcome, artifact.cause, artifact.identity))
        return artifact

    try:
        walk(recipe, step)
    except _Unforeseeable:
        unknown = f"nothing of `{rebuilt[-1]}` stands to look ahead from"
        foreign = forecasts[-1].cause == NONE_OF_THESE_SOURCES
        for stage in STAGES[len(forecasts) :]:
            standing = not foreign and artifacts_under(root, stage)
            forecasts.append(Forecast(stage, DEPENDS if standing else BUILD, unknown))
    return forecasts


def _build(stage: str, would: WouldBuild, rebuilt: list[str]) -> Forecast:
    nearest = would.miss.nearest_parts
    causes = tuple(differences(nearest, would.identity.parts())) if nearest is not None else ()
    identity = None if rebuilt else would.identity.key
    return Forecast(stage, BUILD, would.miss.cause, identity, causes)


def _names(stages: list[str]) -> str:
    return " and ".join(f"`{stage}`" for stage in stages)
