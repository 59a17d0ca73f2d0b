"""The rows of each step: read when it begins, or for a CUDA device in a thread during the step before."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from model.data.dataset import SequenceReader
from model.objectives.base import Objective, map_batch
from model.optim.schedules import TrainingSchedule


@dataclass(frozen=True)
class StepRows:
    """What a step reads."""

    batch: Any
    """Of the objective's kind."""
    text_tokens: int
    """As the budget counts them."""


class StepReader:
    """Reads the rows of a step, and ahead of it those of the next one if `ahead`, into pinned memory, from which a
    device copies while it computes."""

    def __init__(
        self, objective: Objective, data: SequenceReader, curriculum: TrainingSchedule, context: int, *, ahead: bool
    ) -> None:
        self._objective, self._data, self._loader = objective, data, objective.loader(data)
        self._curriculum, self._context = curriculum, context
        # On a processor the thread would take the time of a training thread.
        self._thread = ThreadPoolExecutor(1, "rows") if ahead else None
        self._next: tuple[int, Future[StepRows]] | None = None

    def read(self, step: int) -> StepRows:
        """Return the rows of a step; InputError for a token beyond the vocabulary."""
        if self._thread is None:
            return self._read(step)
        # After a rollback another step comes than the one that was read ahead.
        ready = self._next[1] if self._next is not None and self._next[0] == step else None
        rows = self._pinned(step) if ready is None else ready.result()
        following = step + 1
        if following < self._curriculum.steps:
            self._next = following, self._thread.submit(self._pinned, following)
        return rows

    def _pinned(self, step: int) -> StepRows:
        rows = self._read(step)
        if not torch.cuda.is_available():
            return rows
        return replace(rows, batch=map_batch(torch.Tensor.pin_memory, rows.batch))

    def _read(self, step: int) -> StepRows:
        begin, end = self._curriculum.positions(step)
        batch, tokens = self._loader.batch(begin, end), self._objective.text_tokens(self._data, begin, end)
        if (pieces := self._curriculum.step_schedule(step).row_pieces) > 1:
            batch = batch.shortened(self._context // pieces)
        return StepRows(batch, tokens)

    def __enter__(self) -> "StepReader":
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
