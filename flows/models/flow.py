"""Fine-tuning and export as Prefect flows: each runs one retryable task, whose artifact is reused where it exists.

Their runs have an id, a record and a page as those of the pipeline have, and no recipe.
"""

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow

from flows.metrics.formatting import count_outcomes
from flows.models.export import prepare_export
from flows.models.finetune import prepare_finetune
from flows.reports.prefect.watcher import shown_run
from flows.runs.lifecycle import FlowEnd, check_crashes, end_of_flow, exit_when_run_ends
from flows.runs.record import RunData, record_head
from flows.runs.roots import open_root
from flows.runs.run import StageRun, checked_run_id
from model.config.fields import WeightDtype
from model.model_files import SHARD_BYTES
from tasks.models.export import ExportConfig
from tasks.prefect_tasks import TASKS

ROOT = Path("bessemer-data")

PREPARED: ContextVar[tuple[Any, ...] | None] = ContextVar("PREPARED", default=None)
"""The inputs that the caller of a flow prepared already; the command sets it here."""


@flow(name="finetune", persist_result=False, validate_parameters=True)
def finetune(model: str, task: Path, run_id: str = "", root: Path = ROOT) -> RunData:
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
    model: str,
    licence: str = "",
    shard_bytes: int = SHARD_BYTES,
    dtype: WeightDtype = "float32",
    run_id: str = "",
    root: Path = ROOT,
) -> RunData:
    """Write a trained model as `transformers` loads it, into its artifact. Returns the run's record.

    Args:
        model: A run's id, a model's folder, or a folder of `transformers`.
        licence: Licence of the model, an SPDX identifier; without it no licence is granted.
        shard_bytes: Largest file of weights.
        dtype: Type of the exported weights.
        run_id: Name of the run's folder; derived from the time where empty.
        root: Folder of all artifacts and runs, or the address of an object store.
    """
    name = f"export {Path(model).name}"
    config = ExportConfig(shard_bytes=shard_bytes, dtype=dtype)
    return _end(name, "export", root, run_id, lambda root: prepare_export(root, model, licence or None, config))


def _end(name: str, stage: str, root: Path, run_id: str, inputs: Callable[[Path], tuple[Any, ...]]) -> RunData:
    """Run one stage on its inputs, and return the state in which the flow ends."""

    def work() -> FlowEnd[RunData]:
        folder = open_root(root).resolve()
        check_crashes()
        words = PREPARED.get() or inputs(folder)

        def start() -> StageRun:
            made = checked_run_id(run_id, folder)
            return StageRun(folder, made, (stage,), record_head(name, folder, made, {"only": stage}))

        with exit_when_run_ends(), shown_run(name, start) as run:
            run.step(TASKS[stage], *words)
        return FlowEnd(run.record.data, count_outcomes(run.record.data["stages"]))

    return end_of_flow(work)
