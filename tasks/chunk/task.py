"""The face of chunk that Prefect sees."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.retry import RETRY_DELAYS, is_retryable


@task(
    name="chunk",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=is_retryable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def chunk(context: RunContext, documents: Artifact, vocab: Artifact, config: ChunkConfig):
    """Documents become rows of tokens and the order in which they are read."""
    artifact = build_chunk(context, documents, vocab, config)
    return Completed(name="Reused", data=artifact) if artifact.reused else artifact
