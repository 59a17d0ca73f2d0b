"""The eight stages of the pipeline as Prefect tasks, and the two that follow it.

A task runs its stage's build and ends in a state named after the outcome (`tasks.execution.outcome`); all logic is in
`tasks/STAGE/stage.py`, which does not know Prefect.
"""

import functools
from collections.abc import Callable
from typing import Any

from prefect import Task, get_run_logger, task
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.runtime import flow_run, task_run

from model.distributed.messages import Message
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.stage import build_chunk
from tasks.clean.stage import build_clean
from tasks.decontaminate.stage import build_decontaminate
from tasks.dedup.stage import build_dedup
from tasks.evaluate.stage import build_evaluate
from tasks.execution.outcome import RETRIES, final_state
from tasks.models.export import build_export
from tasks.models.finetune import FinetuneStageConfig, build_finetune
from tasks.models.load import ModelSource
from tasks.sample.stage import build_sample
from tasks.train.config import TrainStageConfig
from tasks.train.launcher import MessageFormatter
from tasks.train.stage import build_train
from tasks.vocab.stage import build_vocab


def _task(build: Callable[..., Artifact], words: str) -> Task[..., State]:
    """Return the task that runs `build_STAGE` with its arguments."""

    name = build.__name__.removeprefix("build_")

    @task(name=name, task_run_name=name, description=words, **RETRIES)
    @functools.wraps(build)
    def run(*inputs: Any) -> State:
        return State(**final_state(task_run.run_count, build, *inputs))

    return run


@task(name="train", task_run_name="train", **RETRIES)
def train(context: RunContext, sequences: Artifact, vocab: Artifact, config: TrainStageConfig) -> State:
    """Train a model on the sequences in their order."""
    log = get_run_logger()
    formatter = MessageFormatter()
    run = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name or ""}

    def on_log(message: Message) -> None:
        for sentence in formatter.format(message):
            log.info(sentence)
        if message["kind"] == "event":
            emit_event(f"bessemer.{message['event']}", resource=run, payload=dict(message))

    return State(**final_state(task_run.run_count, build_train, context, sequences, vocab, config, on_log))


@task(name="finetune", task_run_name="finetune", **RETRIES)
def finetune(context: RunContext, source: ModelSource, config: FinetuneStageConfig) -> State:
    """Fine-tune a trained model on tasks with examples."""

    def on_log(sentence: str) -> None:
        context.note("finetune", sentence)

    return State(**final_state(task_run.run_count, build_finetune, context, source, config, on_log))


_TASKS: tuple[Task[..., State], ...] = (
    _task(build_sample, "Read files into documents, as much of each source as the mixture can use."),
    _task(build_clean, "Repair text, remove markup and personal data, and drop low-quality documents."),
    _task(build_dedup, "Remove exact and near duplicates and keep the better copy."),
    _task(build_decontaminate, "Remove text that the benchmarks contain and set aside a held-out split."),
    _task(build_vocab, "Train a vocabulary on documents, or take over a published one."),
    _task(build_chunk, "Pack documents into sequences of tokens and fix the order in which they are read."),
    train,
    _task(build_evaluate, "Measure the model: held-out bits per byte, benchmark scores, and generated text."),
    finetune,
    _task(build_export, "Write a trained model as `transformers` loads it."),
)

TASKS = {task.name: task for task in _TASKS}
"""Every task by the name of its stage, in the order of the pipeline, then those that follow it."""
