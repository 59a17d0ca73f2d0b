"""The face of dedup that Prefect sees."""

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import build_dedup
from tasks.outcome import RETRIES, ended


@task(name="dedup", task_run_name="dedup", **RETRIES)
def dedup(context: RunContext, documents: Artifact, config: DedupConfig) -> State:
    """Exact and near duplicates out, the better copy stays."""
    return State(**ended(task_run.run_count, build_dedup, context, documents, config))
