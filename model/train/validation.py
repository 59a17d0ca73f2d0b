"""Held-out rows looked at while a network is trained: a small sample, always the same, of each source.

Nothing is drawn and nothing changes: the network is asked without dropout or gradient, masks and spans of these rows
are functions of the seed and the row alone, and the next step computes what it would have without.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.config.train import TrainerRun
from model.data.dataset import SequenceReader, open_table
from model.data.schema import ORDER
from model.engines.base import Engine
from model.errors import InputError
from model.objectives.base import Objective
from model.objectives.causal import CausalObjective

TEXT_BYTES = "text_bytes"
"""Column of held-out rows: UTF-8 bytes of what a GPT predicts of each; other networks predict a part."""


class Validation:
    """The first `validation_rows` held-out rows of each source."""

    def __init__(self, run: TrainerRun, objective: Objective) -> None:
        if run.heldout is None:
            raise InputError(
                "train.validation_steps asks for a look at held-out rows, and there are none: no text was held out"
                " (raise decontaminate.heldout_share), or the rows were made by an earlier version (run again from"
                " chunk). Or leave validation_steps out."
            )
        table = open_table(run.heldout)
        sources = table.column("source").cast(pa.string()).to_numpy(zero_copy_only=False)
        self._places = {
            source: np.flatnonzero(sources == source)[: run.train.validation_rows] for source in sorted(set(sources))
        }
        chosen = np.concatenate([np.zeros(0, dtype=np.int64), *self._places.values()])
        order = pa.table({"row": chosen, "epoch": np.zeros(len(chosen), dtype=np.int16)}, schema=ORDER)
        self._loader = objective.loader(SequenceReader([run.heldout], order, run.model.vocab_size))
        self._batch_rows = run.train.batch_rows
        told = TEXT_BYTES in table.column_names and isinstance(objective, CausalObjective)
        self._bytes = pc.fill_null(table.column(TEXT_BYTES), 0).to_numpy() if told else None

    def measure(self, engine: Engine) -> list[dict[str, Any]]:
        """Columns of VALIDATION for each source, in order of their names; all ranks call it together."""
        found: list[dict[str, Any]] = []
        begin = 0
        for source, rows in self._places.items():
            end = begin + len(rows)
            nats, predictions = 0.0, 0
            for first in range(begin, end, self._batch_rows):
                told, counted = engine.held_out(self._loader.batch(first, min(end, first + self._batch_rows)))
                nats, predictions = nats + told, predictions + counted
            size = int(self._bytes[rows].sum()) if self._bytes is not None else 0
            found.append(
                {
                    "source": source,
                    "rows": len(rows),
                    "predictions": predictions,
                    "nats_per_token": _number(nats / predictions) if predictions else None,
                    "bits_per_byte": _number(nats / math.log(2) / size) if size else None,
                }
            )
            begin = end
        return found


def _number(value: float) -> float | None:
    """None for what is no number."""
    return value if math.isfinite(value) else None
