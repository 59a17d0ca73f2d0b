"""The face of clean that Prefect sees."""

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.clean.config import CleanConfig
from tasks.clean.stage import build_clean
from tasks.outcome import RETRIES, ended


@task(name="clean", task_run_name="clean", **RETRIES)
def clean(context: RunContext, documents: Artifact, config: CleanConfig) -> State:
    """Text is repaired and freed of markup and personal data; what is not worth learning is dropped."""
    return State(**ended(task_run.run_count, build_clean, context, documents, config))
