"""How a stage's end is told to Prefect: a state with a name of its own, and the cause as its message.

Which failures are worth another try: the class of the error decides, never its text.
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
    """Prefect's `retry_condition_fn`: True for infrastructure failures (class Infra), False for all that a retry
    would only repeat (a wrong recipe, bad input, a guard, damaged data, a bug), and for a full disk, which does not get
    empty within a minute by itself."""
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
"""What every stage's task shares: retries by the class of the error, and no cache, since artifacts decide reuse."""


def ended(attempt: int, build: Callable[..., Artifact], *inputs: Any) -> dict[str, Any]:
    """The fields of the Prefect state in which the `attempt`-th try of a stage's build ends.

    An artifact gives a state of type COMPLETED named after its outcome, a pause one named Paused, an error of our tree
    one of type FAILED named after its class; others are raised, for they are faults of the program and deserve their
    traceback.
    """
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
    """Why the artifact came to be as it did, in one line."""
    if artifact.outcome == REUSED:
        return f"nothing that decides {artifact.identity[:12]} changed"
    return with_short_digests(artifact.cause)


def with_short_digests(sentence: str) -> str:
    """The sentence with 12 digits of each digest, which tell them apart as well as all 32."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20}\b", r"\1", sentence)


def one_line(error: BaseException) -> str:
    """An error's message without its line breaks, for lists that show a line each."""
    return " ".join(str(error).split())


def _after_retries(attempt: int, sentence: str) -> str:
    retries = attempt - 1
    return f"after {retries} {'retry' if retries == 1 else 'retries'}: {sentence}" if retries > 0 else sentence
