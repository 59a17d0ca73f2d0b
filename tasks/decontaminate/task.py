"""The face of decontaminate that Prefect sees."""

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.stage import build_decontaminate
from tasks.outcome import RETRIES, ended


@task(name="decontaminate", task_run_name="decontaminate", **RETRIES)
def decontaminate(context: RunContext, documents: Artifact, config: DecontaminateConfig) -> State:
    """What also stands in the benchmarks is cut out; a held-out split is set aside."""
    return State(**ended(task_run.run_count, build_decontaminate, context, documents, config))
