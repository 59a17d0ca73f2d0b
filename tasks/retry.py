"""Which failures are worth another try: the class of the error decides, never its text."""

from typing import Any

from model.durable import DISK_FULL
from model.errors import BessemerError

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
