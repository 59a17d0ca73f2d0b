"""The face of sample that Prefect sees.

The face of clean that Prefect sees.

The face of dedup that Prefect sees.

The face of decontaminate that Prefect sees.

The face of vocab that Prefect sees.

The face of chunk that Prefect sees.

The face of train that Prefect sees.

The face of evaluate that Prefect sees.
"""

from typing import Any

from prefect import get_run_logger, task
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.runtime import flow_run, task_run

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.clean.config import CleanConfig
from tasks.clean.stage import build_clean
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.stage import build_decontaminate
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import build_dedup
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.stage import build_evaluate
from tasks.execution.outcome import RETRIES, ended
from tasks.sample.config import SampleConfig
from tasks.sample.stage import build_sample
from tasks.train.config import TrainStageConfig
from tasks.train.launcher import MessageFormatter
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab


@task(name="sample", task_run_name="sample", **RETRIES)
def sample(context: RunContext, config: SampleConfig) -> State:
    """Files become documents, as much of each source as the mixture can use."""
    return State(**ended(task_run.run_count, build_sample, context, config))


@task(name="clean", task_run_name="clean", **RETRIES)
def clean(context: RunContext, documents: Artifact, config: CleanConfig) -> State:
    """Text is repaired and freed of markup and personal data; what is not worth learning is dropped."""
    return State(**ended(task_run.run_count, build_clean, context, documents, config))


@task(name="dedup", task_run_name="dedup", **RETRIES)
def dedup(context: RunContext, documents: Artifact, config: DedupConfig) -> State:
    """Exact and near duplicates out, the better copy stays."""
    return State(**ended(task_run.run_count, build_dedup, context, documents, config))


@task(name="decontaminate", task_run_name="decontaminate", **RETRIES)
def decontaminate(context: RunContext, documents: Artifact, config: DecontaminateConfig) -> State:
    """What also stands in the benchmarks is cut out; a held-out split is set aside."""
    return State(**ended(task_run.run_count, build_decontaminate, context, documents, config))


@task(name="vocab", task_run_name="vocab", **RETRIES)
def vocab(context: RunContext, documents: Artifact, config: VocabConfig) -> State:
    """Documents become a vocabulary."""
    return State(**ended(task_run.run_count, build_vocab, context, documents, config))


@task(name="chunk", task_run_name="chunk", **RETRIES)
def chunk(context: RunContext, documents: Artifact, vocab: Artifact, config: ChunkConfig) -> State:
    """Documents become rows of tokens and the order in which they are read."""
    return State(**ended(task_run.run_count, build_chunk, context, documents, vocab, config))


@task(name="train", task_run_name="train", **RETRIES)
def train(context: RunContext, sequences: Artifact, vocab: Artifact, config: TrainStageConfig) -> State:
    """Rows in their order become a model."""
    log = get_run_logger()
    teller = MessageFormatter()
    run = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name or ""}

    def on_log(message: dict[str, Any]) -> None:
        for sentence in teller.format(message):
            log.info(sentence)
        if message.get("kind") == "event":
            emit_event(f"bessemer.{message['event']}", resource=run, payload=message)

    return State(**ended(task_run.run_count, build_train, context, sequences, vocab, config, on_log))


@task(name="evaluate", task_run_name="evaluate", **RETRIES)
def evaluate(
    context: RunContext,
    model: Artifact,
    vocab: Artifact,
    sequences: Artifact,
    decontaminated: Artifact,
    config: EvaluateConfig,
) -> State:
    """The model's held-out bits per byte, its benchmark scores, and text that it writes."""
    return State(**ended(task_run.run_count, build_evaluate, context, model, vocab, sequences, decontaminated, config))


TASKS = {task.name: task for task in (sample, clean, dedup, decontaminate, vocab, chunk, train, evaluate)}
