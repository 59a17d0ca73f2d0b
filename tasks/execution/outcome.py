"""The outcome of a stage as a Prefect state: a name of its own, the cause as its message, and whether to retry.

The class of an error decides whether it is retried, never its text.
"""

import re
from collections.abc import Callable
from typing import Any

from model.errors import BessemerError, Paused
from model.files import DISK_FULL
from tasks.artifacts.artifact import REUSED, Artifact

RETRY_DELAYS = [2.0, 8.0, 32.0]
"""Seconds before the first, second and third retry."""


def is_retryable(task: Any, task_run: Any, state: Any) -> bool:
    """Return whether to retry, as Prefect's `retry_condition_fn`.

    True for infrastructure failures (class Infra). False for errors that a retry would repeat (a wrong recipe, bad
    input, a guard, damaged data, a bug), and for a full disk, which does not become free within a minute.
    """
    del task, task_run
    error = state.result(raise_on_failure=False)
    if not isinstance(error, BessemerError):
        return False
    full = isinstance(error.__cause__, OSError) and error.__cause__.errno in DISK_FULL
    return error.retryable and not full


RETRIES: dict[str, Any] = {
    "retries": len(RETRY_DELAYS),
    "retry_delay_seconds": RETRY_DELAYS,
    "retry_condition_fn": is_retryable,
    "persist_result": False,
}
"""Options of every stage's task: retries by the class of the error, and no result cache, since artifacts decide
reuse."""


def final_state(attempt: int, build: Callable[..., Artifact], *inputs: Any) -> dict[str, Any]:
    """Run a stage's build and return the fields of the Prefect state of this `attempt`.

    An artifact gives a COMPLETED state named after its outcome, a pause one named Paused, a BessemerError a FAILED
    state named after its class. Other errors are raised: they are bugs and need their traceback."""
    try:
        artifact = build(*inputs)
    except Paused as pause:
        return {"type": "COMPLETED", "name": "Paused", "message": _after_retries(attempt, str(pause)), "data": pause}
    except BessemerError as error:
        return {
            "type": "FAILED",
            "name": type(error).__name__,
            "message": _after_retries(attempt, one_line(error)),
            "data": error,
        }
    return {
        "type": "COMPLETED",
        "name": artifact.outcome.capitalize(),
        "message": _after_retries(attempt, cause_of(artifact)),
        "data": artifact,
    }


def cause_of(artifact: Artifact) -> str:
    """Return in one line why an artifact was built or reused."""
    if artifact.outcome == REUSED:
        return f"nothing that decides {artifact.identity[:12]} changed"
    return with_short_digests(artifact.cause)


def with_short_digests(sentence: str) -> str:
    """Return the sentence with each digest cut to 12 digits, which are enough to distinguish them."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20}\b", r"\1", sentence)


def one_line(error: BaseException) -> str:
    """Return an error's message without line breaks."""
    return " ".join(str(error).split())


def _after_retries(attempt: int, sentence: str) -> str:
    retries = attempt - 1
    return f"after {retries} {'retry' if retries == 1 else 'retries'}: {sentence}" if retries > 0 else sentence
