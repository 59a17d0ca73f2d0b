"""The Prefect face of the decontaminate stage."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.stage import build_decontaminate
from tasks.retry import RETRY_DELAYS, is_retryable


@task(
    name="decontaminate",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=is_retryable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def decontaminate(context: RunContext, documents: Artifact, config: DecontaminateConfig):
    """What also stands in the benchmarks is cut out; a held-out split is set aside."""
    artifact = build_decontaminate(context, documents, config)
    return Completed(name="Reused", data=artifact) if artifact.reused else artifact
