"""The face of chunk that Prefect sees."""

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.outcome import RETRIES, ended


@task(name="chunk", task_run_name="chunk", **RETRIES)
def chunk(context: RunContext, documents: Artifact, vocab: Artifact, config: ChunkConfig) -> State:
    """Documents become rows of tokens and the order in which they are read."""
    return State(**ended(task_run.run_count, build_chunk, context, documents, vocab, config))
