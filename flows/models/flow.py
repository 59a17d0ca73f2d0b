"""Fine-tuning and export as Prefect flows: each runs one retryable task, whose artifact is reused where it exists.

Their runs have an id, a record and a page as those of the pipeline have, and no recipe.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from flows.metrics.formatting import count_outcomes
from flows.models.export import prepare_export
from flows.models.finetune import prepare_finetune
from flows.reports.live import live_page
from flows.reports.prefect.watcher import prefect_artifacts
from flows.runs.lifecycle import as_bessemer_error, check_crashes, exit_when_run_ends
from flows.runs.record import record_head, report_result
from flows.runs.roots import open_root
from flows.runs.run import StageRun, checked_run_id
from model.errors import BessemerError
from tasks.execution.outcome import one_line
from tasks.prefect_tasks import TASKS

ROOT = Path("bessemer-data")


@flow(name="finetune", persist_result=False, validate_parameters=True)
def finetune(model: str, task: Path, run_id: str = "", root: Path = ROOT) -> dict[str, Any]:
    """Fine-tune a trained model on tasks with examples. Returns the run's record.

    Args:
        model: A run's id, a model's folder, or a folder of `transformers`.
        task: The task file.
        run_id: Name of the run's folder; derived from the time where empty.
        root: Folder of all artifacts and runs, or the address of an object store.
    """
    return _end(f"finetune {task.stem}", "finetune", root, run_id, lambda root: prepare_finetune(root, model, task))


@flow(name="export", persist_result=False, validate_parameters=True)
def export(
    model: str, licence: str = "", shard_bytes: int = 5_000_000_000, run_id: str = "", root: Path = ROOT
) -> dict[str, Any]:
    """Write a trained model as `transformers` loads it, into its artifact. Returns the run's record.

    Args:
        model: A run's id, a model's folder, or a folder of `transformers`.
        licence: Licence of the model, an SPDX identifier; without it no licence is granted.
        shard_bytes: Largest file of weights.
        run_id: Name of the run's folder; derived from the time where empty.
        root: Folder of all artifacts and runs, or the address of an object store.
    """

    def inputs(root: Path) -> tuple[Any, ...]:
        prepared = prepare_export(root, model, licence or None, shard_bytes)
        return prepared.source, prepared.config, prepared.card

    return _end(f"export {Path(model).name}", "export", root, run_id, inputs)


def _end(name: str, stage: str, root: Path, run_id: str, inputs: Callable[[Path], tuple[Any, ...]]) -> dict[str, Any]:
    """Run one stage on its inputs, and return the state in which the flow ends."""
    log = get_run_logger()
    try:
        root = open_root(root).resolve()
        check_crashes()
        words = inputs(root)
        with exit_when_run_ends(), prefect_artifacts() as shown, live_page() as page:
            run_id = checked_run_id(run_id, root)
            run = StageRun(root, run_id, (stage,), record_head(name, root, run_id, {"only": stage}))
            log.info("run %s, %s under %s", run_id, name, root)
            shown.name_run(name, run_id)
            page.begin(run)
            try:
                with run:
                    run.step(TASKS[stage], *words)
            finally:
                log.info("run page: %s", page.end(run))
                shown.summarize(run.record.data)
    except (BessemerError, OSError) as failed:
        error = as_bessemer_error(failed)
        report_result(error)
        return Failed(name=type(error).__name__, message=one_line(error), data=error)  # pyright: ignore[reportReturnType]
    report_result(run.record.data)
    return Completed(message=count_outcomes(run.record.data["stages"]), data=run.record.data)  # pyright: ignore[reportReturnType]
