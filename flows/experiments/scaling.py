"""A scaling study as a Prefect flow: a law fitted to the losses of a ladder of small models predicts a larger one.

Each (size, seed) is one task run. The largest size is trained after the prediction for it is written.
"""

from pathlib import Path
from typing import Annotated

from prefect import flow, tags
from pydantic import Field

from flows.experiments.ladder import read_ladder
from flows.experiments.scaling_law import LadderFound, ScalePoint, write_ladder
from flows.experiments.studies import RunResult, Variant
from flows.experiments.trials import run_variants
from flows.recipe.load import load_recipe
from flows.runs.lifecycle import FlowEnd, end_of_flow
from model.errors import GuardError


@flow(name="scale", persist_result=False, validate_parameters=True)
def scale(
    recipe: str,
    ladder: str,
    root: Path = Path("bessemer-data"),
    seeds: Annotated[int, Field(ge=1)] | None = None,
    limit: Annotated[float, Field(gt=0, le=1)] = 1.0,
    settings: tuple[str, ...] = (),
) -> LadderFound:
    """Train a ladder of models, fit a law to their losses, and compare its prediction with the largest model.

    An interrupted study continues; existing artifacts are reused. Returns the table as JSON values and the paths of its
    files.

    Args:
        recipe: A recipe file, or the name of one that ships.
        ladder: A file of sizes, or the name of one that ships.
        root: Folder of all artifacts, runs and ladders.
        seeds: Runs of each size; the file's number by default.
        limit: Share of every source to keep (0 to 1).
        settings: KEY=VALUE that override the recipe's in every run.
    """

    def work() -> FlowEnd[LadderFound]:
        home = root.resolve()
        study = read_ladder(recipe, ladder, root, seeds, limit, settings)
        config, folder, points = study.config, study.folder, study.points
        sizes = {size.name: size for size in config.sizes}
        per_parameter = None if config.tokens else config.tokens_per_parameter
        by_name, most = {point.size: point for point in points}, max(point.tokens for point in points)

        def variant(point: ScalePoint, seed: int) -> Variant:
            text = config.run_settings(sizes[point.size], point.tokens, most, seed)
            made = load_recipe(study.recipe, home, [*settings, *text], limit)
            return Variant(made.model_copy(update={"name": f"{made.name}, {point.size}, seed {seed}"[:80]}))

        def on_result(size: str, seed: int, result: RunResult) -> None:
            by_name[size].runs[seed] = result
            write_ladder(folder, config.measure, per_parameter, points)
            if len(by_name[size].runs) == config.seeds:
                check_measured(by_name[size], config.measure)

        # The smallest size first, so that the prediction is written before the largest is trained.
        seeds_of = range(1, config.seeds + 1)
        variants = {(point.size, seed): variant(point, seed) for point in points for seed in seeds_of}
        with tags(f"ladder:{folder.name}"):
            run_variants(variants, home, folder, on_result)
        found = write_ladder(folder, config.measure, per_parameter, points)
        return FlowEnd(found, found["outcome"])

    return end_of_flow(work)


def check_measured(point: ScalePoint, measure: str) -> None:
    """Raise GuardError where all runs of a size are done and none has a loss, since the law could not be fitted."""
    if point.losses(measure):
        return
    causes = sorted({run.cause for run in point.runs.values() if run.cause})
    known = sorted({name for run in point.runs.values() for name in run.values})
    why = "; ".join(causes) or f"they measure {', '.join(known)}, and the ladder's `measure` asks for `{measure}`"
    raise GuardError(
        f"scale: no run of {point.size} has a result ({why}). The law needs one of each size, so larger sizes"
        f" were not started. Fix the cause and run again; finished runs are reused."
    )
