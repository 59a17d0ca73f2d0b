"""The face of vocab that Prefect sees."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.retry import RETRY_DELAYS, is_retryable
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab


@task(
    name="vocab",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=is_retryable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def vocab(context: RunContext, documents: Artifact, config: VocabConfig):
    """Documents become a vocabulary."""
    artifact = build_vocab(context, documents, config)
    return Completed(name="Reused", data=artifact) if artifact.reused else artifact
