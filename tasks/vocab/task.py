"""The face of vocab that Prefect sees."""

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.outcome import RETRIES, ended
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab


@task(name="vocab", task_run_name="vocab", **RETRIES)
def vocab(context: RunContext, documents: Artifact, config: VocabConfig) -> State:
    """Documents become a vocabulary."""
    return State(**ended(task_run.run_count, build_vocab, context, documents, config))
