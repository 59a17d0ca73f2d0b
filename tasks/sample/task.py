"""The face of sample that Prefect sees."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.build import RunContext
from tasks.retry import RETRY_DELAYS, is_retryable
from tasks.sample.config import SampleConfig
from tasks.sample.stage import build_sample


@task(
    name="sample",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=is_retryable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def sample(context: RunContext, config: SampleConfig):
    """Files become documents, as much of each source as the mixture can use."""
    artifact = build_sample(context, config)
    return Completed(name="Reused", data=artifact) if artifact.reused else artifact
