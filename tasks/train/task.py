"""The face of train that Prefect sees."""

from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.retry import RETRY_DELAYS, is_retryable
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.train.telling import MessageTeller


@task(
    name="train",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=is_retryable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def train(context: RunContext, sequences: Artifact, vocab: Artifact, config: TrainStageConfig):
    """Rows in their order become a model."""
    log = get_run_logger()
    teller = MessageTeller()

    def on_log(message: dict[str, Any]) -> None:
        for sentence in teller.sentences(message):
            log.info(sentence)

    artifact = build_train(context, sequences, vocab, config, on_log)
    return Completed(name="Reused", data=artifact) if artifact.reused else artifact
