"""The Prefect face of the dedup stage."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import build_dedup
from tasks.retry import RETRY_DELAYS, is_retryable


@task(
    name="dedup",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=is_retryable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def dedup(context: RunContext, documents: Artifact, config: DedupConfig):
    """Exact and near duplicates out, the better copy stays."""
    artifact = build_dedup(context, documents, config)
    return Completed(name="Reused", data=artifact) if artifact.reused else artifact
