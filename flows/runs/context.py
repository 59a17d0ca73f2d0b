"""What a command sets for the runs that it starts: who listens, an hour's price, what is replayed, where results go."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from tasks.artifacts.build import ProgressListener

CURRENT_LISTENER: ContextVar[ProgressListener] = ContextVar("CURRENT_LISTENER", default=ProgressListener())  # noqa: B039  # a ProgressListener has no state
"""The listener to the runs of this context; the command sets its progress bars here."""

Value = TypeVar("Value")


@contextmanager
def given(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a variable of the context within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


Listener = TypeVar("Listener", bound=ProgressListener)


@contextmanager
def heard_by(listener: Listener) -> Iterator[Listener]:
    """Have the runs that are started inside this block report to `listener`; yield it."""
    with given(CURRENT_LISTENER, listener):
        yield listener


HOUR_PRICE: ContextVar[float | None] = ContextVar("HOUR_PRICE", default=None)
"""Price of an hour of this machine, for the cost on the page; the command sets it here."""

REPLAY_OF: ContextVar[Path | None] = ContextVar("REPLAY_OF", default=None)
"""The trained model whose checkpoints the run may continue; `bessemer data forget` sets it here."""

REPORTED_RESULTS: ContextVar[list[object] | None] = ContextVar("REPORTED_RESULTS", default=None)
"""Where a flow leaves its result, for a command whose server does not hear of the end."""


def report_result(end: object) -> None:
    """Append the result of a flow, its data or its error, to `REPORTED_RESULTS` where a command set it."""
    ends = REPORTED_RESULTS.get()
    if ends is not None:
        ends.append(end)
