"""An ablation as a Prefect flow: a recipe under each of a list of changes and several seeds, one task run each."""

from pathlib import Path
from typing import Annotated

from prefect import flow, tags
from pydantic import Field

from flows.experiments.ablation_report import AblationFound, Runs, write_ablation
from flows.experiments.changes import read_ablation
from flows.experiments.studies import RunResult
from flows.experiments.trials import run_variants
from flows.runs.lifecycle import FlowEnd, end_of_flow


@flow(name="ablate", persist_result=False, validate_parameters=True)
def ablate(
    recipe: str,
    changes: str,
    root: Path = Path("bessemer-data"),
    seeds: Annotated[int, Field(ge=1)] | None = None,
    limit: Annotated[float, Field(gt=0, le=1)] = 1.0,
    settings: tuple[str, ...] = (),
) -> AblationFound:
    """Run a recipe under each of a list of changes and several seeds, and compare them with the recipe itself.

    An interrupted ablation continues; existing artifacts are reused. Returns the table as JSON values and the paths of
    its files.

    Args:
        recipe: A recipe file, or the name of one that ships.
        changes: A file of changes, or the name of one that ships: data, experts, network, t5, vocabulary.
        root: Folder of all artifacts, runs and ablations.
        seeds: Runs of each change; the file's number by default.
        limit: Share of every source to keep (0 to 1).
        settings: KEY=VALUE that override the recipe's in every run.
    """

    def work() -> FlowEnd[AblationFound]:
        study = read_ablation(recipe, changes, root, seeds, limit, settings)
        config, folder = study.config, study.folder
        # All changes seed by seed, so that a table of fewer seeds exists early.
        runs: Runs = {change: {} for change in config.names}

        def on_result(change: str, seed: int, result: RunResult) -> None:
            runs[change][seed] = result
            write_ablation(folder, runs, config.changes, config.vary, config.describe_second_run())

        with tags(f"ablation:{folder.name}"):
            run_variants(study.variants, root.resolve(), folder, on_result)
        found = write_ablation(folder, runs, config.changes, config.vary, config.describe_second_run())
        return FlowEnd(found, found["outcome"])

    return end_of_flow(work)
