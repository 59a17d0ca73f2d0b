"""The face of sample that Prefect sees."""

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run

from tasks.build import RunContext
from tasks.outcome import RETRIES, ended
from tasks.sample.config import SampleConfig
from tasks.sample.stage import build_sample


@task(name="sample", task_run_name="sample", **RETRIES)
def sample(context: RunContext, config: SampleConfig) -> State:
    """Files become documents, as much of each source as the mixture can use."""
    return State(**ended(task_run.run_count, build_sample, context, config))
