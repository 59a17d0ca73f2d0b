"""The face of evaluate that Prefect sees."""

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.stage import build_evaluate
from tasks.outcome import RETRIES, ended


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
