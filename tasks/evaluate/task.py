"""The face of evaluate that Prefect sees."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.stage import build_evaluate
from tasks.retry import RETRY_DELAYS, is_retryable


@task(
    name="evaluate",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=is_retryable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def evaluate(
    context: RunContext,
    model: Artifact,
    vocab: Artifact,
    sequences: Artifact,
    decontaminated: Artifact,
    config: EvaluateConfig,
):
    """The model's held-out bits per byte, its benchmark scores, and text that it writes."""
    artifact = build_evaluate(context, model, vocab, sequences, decontaminated, config)
    return Completed(name="Reused", data=artifact) if artifact.reused else artifact
