"""Which checkpoints can be gone back to: those behind which enough steps went well."""

from typing import Any

KEPT = 3
"""Healthy checkpoints that are never deleted."""


class Health:
    """Checkpoints by the number of steps before them: candidates, and those found healthy."""

    def __init__(self, steps_after: int, state: dict[str, Any] | None = None) -> None:
        self._steps_after = steps_after
        self._candidates: list[int] = [*state["candidates"]] if state else []
        self.healthy: list[int] = [*state["healthy"]] if state else []
        """In rising order, the newest ones."""

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {"candidates": [*self._candidates], "healthy": [*self.healthy]}

    @property
    def to_keep(self) -> list[int]:
        """What must not be deleted: healthy ones, and those that may become so."""
        return [*self.healthy, *self._candidates]

    def saved(self, steps: int) -> None:
        """A checkpoint was written after so many steps. It is a candidate unless one lies just before it: a run that
        saves at each step keeps three of them, and not sixty-four."""
        newest = max([*self._candidates, *self.healthy], default=None)
        if newest is None or steps - newest >= self._steps_after // 2:
            self._candidates.append(steps)

    def step_done(self, steps: int, *, clean: bool, suspected: bool = False) -> None:
        """Another step was made, so many in all. One that was left out, or was computed at a loss scale below 1, is a
        reason to doubt all candidates before it. While something is `suspected` no candidate becomes healthy, and so
        none of the healthy ones, which are older than the suspicion, is given up for it."""
        if not clean:
            self._candidates = []
        if suspected:
            return
        grown = [at for at in self._candidates if steps - at >= self._steps_after]
        self._candidates = [at for at in self._candidates if at not in grown]
        self.healthy = [*self.healthy, *grown][-KEPT:]
