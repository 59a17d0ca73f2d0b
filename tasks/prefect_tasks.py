"""The eight stages of the pipeline as Prefect tasks, and the two that follow it.

A task runs its stage's build and ends in a state named after the outcome (`tasks.execution.outcome`); all logic is in
`tasks/STAGE/stage.py`, which does not know Prefect.
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
from tasks.execution.outcome import RETRIES, final_state
from tasks.models.export import ExportConfig, build_export
from tasks.models.finetune import FinetuneStageConfig, build_finetune
from tasks.models.load import ModelSource
from tasks.sample.config import SampleConfig
from tasks.sample.stage import build_sample
from tasks.train.config import TrainStageConfig
from tasks.train.launcher import MessageFormatter
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab


@task(name="sample", task_run_name="sample", **RETRIES)
def sample(context: RunContext, config: SampleConfig) -> State:
    """Read files into documents, as much of each source as the mixture can use."""
    return State(**final_state(task_run.run_count, build_sample, context, config))


@task(name="clean", task_run_name="clean", **RETRIES)
def clean(context: RunContext, documents: Artifact, config: CleanConfig) -> State:
    """Repair text, remove markup and personal data, and drop low-quality documents."""
    return State(**final_state(task_run.run_count, build_clean, context, documents, config))


@task(name="dedup", task_run_name="dedup", **RETRIES)
def dedup(context: RunContext, documents: Artifact, config: DedupConfig) -> State:
    """Remove exact and near duplicates and keep the better copy."""
    return State(**final_state(task_run.run_count, build_dedup, context, documents, config))


@task(name="decontaminate", task_run_name="decontaminate", **RETRIES)
def decontaminate(context: RunContext, documents: Artifact, config: DecontaminateConfig) -> State:
    """Remove text that the benchmarks contain and set aside a held-out split."""
    return State(**final_state(task_run.run_count, build_decontaminate, context, documents, config))


@task(name="vocab", task_run_name="vocab", **RETRIES)
def vocab(context: RunContext, documents: Artifact, config: VocabConfig) -> State:
    """Train a vocabulary on documents, or take over a published one."""
    return State(**final_state(task_run.run_count, build_vocab, context, documents, config))


@task(name="chunk", task_run_name="chunk", **RETRIES)
def chunk(context: RunContext, documents: Artifact, vocab: Artifact, config: ChunkConfig) -> State:
    """Pack documents into sequences of tokens and fix the order in which they are read."""
    return State(**final_state(task_run.run_count, build_chunk, context, documents, vocab, config))


@task(name="train", task_run_name="train", **RETRIES)
def train(context: RunContext, sequences: Artifact, vocab: Artifact, config: TrainStageConfig) -> State:
    """Train a model on the sequences in their order."""
    log = get_run_logger()
    formatter = MessageFormatter()
    run = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name or ""}

    def on_log(message: dict[str, Any]) -> None:
        for sentence in formatter.format(message):
            log.info(sentence)
        if message.get("kind") == "event":
            emit_event(f"bessemer.{message['event']}", resource=run, payload=message)

    return State(**final_state(task_run.run_count, build_train, context, sequences, vocab, config, on_log))


@task(name="evaluate", task_run_name="evaluate", **RETRIES)
def evaluate(
    context: RunContext,
    model: Artifact,
    vocab: Artifact,
    sequences: Artifact,
    decontaminated: Artifact,
    config: EvaluateConfig,
) -> State:
    """Measure the model: held-out bits per byte, benchmark scores, and generated text."""
    return State(
        **final_state(task_run.run_count, build_evaluate, context, model, vocab, sequences, decontaminated, config)
    )


@task(name="finetune", task_run_name="finetune", **RETRIES)
def finetune(context: RunContext, source: ModelSource, config: FinetuneStageConfig) -> State:
    """Fine-tune a trained model on tasks with examples."""

    def on_log(sentence: str) -> None:
        context.note("finetune", sentence)

    return State(**final_state(task_run.run_count, build_finetune, context, source, config, on_log))


@task(name="export", task_run_name="export", **RETRIES)
def export(context: RunContext, source: ModelSource, config: ExportConfig, card: str | None) -> State:
    """Write a trained model as `transformers` loads it."""
    return State(**final_state(task_run.run_count, build_export, context, source, config, card))


TASKS = {
    task.name: task for task in (sample, clean, dedup, decontaminate, vocab, chunk, train, evaluate, finetune, export)
}
"""Every task by the name of its stage, in the order of the pipeline, then those that follow it."""
