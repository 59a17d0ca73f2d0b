"""The face of clean that Prefect sees."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.clean.config import CleanConfig
from tasks.clean.stage import build_clean
from tasks.retry import RETRY_DELAYS, is_retryable


@task(
    name="clean",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=is_retryable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def clean(context: RunContext, documents: Artifact, config: CleanConfig):
    """Text is repaired and freed of markup and personal data; what is not worth learning is dropped."""
    artifact = build_clean(context, documents, config)
    return Completed(name="Reused", data=artifact) if artifact.reused else artifact
