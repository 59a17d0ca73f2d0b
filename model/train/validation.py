"""Score held-out rows while a network is trained: a small, fixed sample of each source.

Validation changes nothing: the network runs without dropout or gradient, masks and spans of these rows are functions of
the seed and the row alone, and the next step computes exactly what it would compute without validation.
"""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.config.train import TrainConfig, TrainerRun
from model.data.dataset import SequenceReader, open_table
from model.data.schema import ORDER
from model.distributed.messages import SourceScore
from model.engines.base import Engine
from model.errors import InputError
from model.objectives.base import Objective
from model.objectives.causal import CausalObjective

TEXT_BYTES = "text_bytes"
"""Column of held-out rows: UTF-8 bytes of the text that a causal GPT predicts in each."""


DEFAULT_VALIDATIONS = 20
"""Validations of a training where `validation_steps` is unset."""

MOST_ROWS_SHARE = 0.06
"""Most held-out rows that they score, as a share of the rows read: a row without gradients takes a third of the
arithmetic of one with, so they cost 2% of the training, and 3% with the one after the last step."""


def validation_interval(train: TrainConfig, positions: int, steps: int, heldout_rows: int) -> int | None:
    """Return the steps from one validation to the next, by the setting or its default; None where there is none."""
    if train.validation_steps is not None:
        return train.validation_steps or None
    count = min(DEFAULT_VALIDATIONS, int(MOST_ROWS_SHARE * positions / heldout_rows)) if heldout_rows else 0
    return math.ceil(steps / count) if count else None


class Validation:
    """The first `validation_rows` held-out rows of each source."""

    def __init__(self, run: TrainerRun, objective: Objective) -> None:
        if run.heldout is None:
            raise InputError(
                "train.validation_steps needs held-out rows, and there are none: no text was held out (raise"
                " decontaminate.heldout_share), or the rows were made by an earlier version (run again from chunk)."
                " Or leave validation_steps out."
            )
        table = open_table(run.heldout)
        sources = table.column("source").cast(pa.string()).to_numpy(zero_copy_only=False)
        self._rows_by_source = {
            source: np.flatnonzero(sources == source)[: run.train.validation_rows] for source in sorted(set(sources))
        }
        chosen = np.concatenate([np.zeros(0, dtype=np.int64), *self._rows_by_source.values()])
        order = pa.table({"row": chosen, "epoch": np.zeros(len(chosen), dtype=np.int16)}, schema=ORDER)
        self._loader = objective.loader(SequenceReader([run.heldout], order, run.model.vocab_size))
        self.rows = len(chosen)
        self._batch_rows = run.train.batch_rows
        # After a prefix, and by other objectives, a part of the text is predicted.
        has_bytes = TEXT_BYTES in table.column_names and type(objective) is CausalObjective
        self._bytes = pc.fill_null(table.column(TEXT_BYTES), 0).to_numpy() if has_bytes else None

    def measure(self, engine: Engine) -> list[SourceScore]:
        """Return a row of VALIDATION for each source, sorted by name. All ranks call it together."""
        found: list[SourceScore] = []
        begin = 0
        for source, rows in self._rows_by_source.items():
            end = begin + len(rows)
            nats, predictions = 0.0, 0
            for first in range(begin, end, self._batch_rows):
                batch_nats, counted = engine.held_out(self._loader.batch(first, min(end, first + self._batch_rows)))
                nats, predictions = nats + batch_nats, predictions + counted
            size = int(self._bytes[rows].sum()) if self._bytes is not None else 0
            found.append(
                {
                    "source": source,
                    "rows": len(rows),
                    "predictions": predictions,
                    "nats_per_token": _finite(nats / predictions) if predictions else None,
                    "bits_per_byte": _finite(nats / math.log(2) / size) if size else None,
                }
            )
            begin = end
        return found


def _finite(value: float) -> float | None:
    """Return the value, or None where it is infinite or not a number."""
    return value if math.isfinite(value) else None
