"""What comes of a stretch of a trial."""

from dataclasses import dataclass

from flows.search.book import State, Stop
from model.errors import BessemerError, Numerics
from tasks.outcome import one_line


@dataclass(frozen=True)
class Came:
    """Where a trial came to, and what it was worth."""

    number: int
    state: State
    stop: Stop
    value: float | None = None
    stderr: float | None = None
    cause: str = ""

    @property
    def told(self) -> str:
        """In a few words."""
        if self.state == "complete":
            return f"{self.value:.4f}"
        if self.state == "paused" and self.stop.loss is not None:
            return f"loss {self.stop.loss:.4f} after step {self.stop.step} of {self.stop.steps}"
        return self.cause or self.state


def came_to_nothing(number: int, rung: int, error: BessemerError, seconds: float = 0.0) -> Came:
    """A trial that ended in an error: its numbers got out of hand, or it failed."""
    state: State = "diverged" if isinstance(error, Numerics) else "failed"
    cause = f"{type(error).__name__}: {one_line(error)}"
    return Came(number, state, Stop(rung, 0, 0, None, seconds, ()), cause=cause)
