"""The face of train that Prefect sees."""

from typing import Any

from prefect import get_run_logger, task
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.runtime import flow_run, task_run

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.outcome import RETRIES, ended
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.train.telling import MessageTeller


@task(name="train", task_run_name="train", **RETRIES)
def train(context: RunContext, sequences: Artifact, vocab: Artifact, config: TrainStageConfig) -> State:
    """Rows in their order become a model."""
    log = get_run_logger()
    teller = MessageTeller()
    run = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name or ""}

    def on_log(message: dict[str, Any]) -> None:
        for sentence in teller.sentences(message):
            log.info(sentence)
        if message.get("kind") == "event":
            emit_event(f"bessemer.{message['event']}", resource=run, payload=message)

    return State(**ended(task_run.run_count, build_train, context, sequences, vocab, config, on_log))
