"""Score held-out rows while a network is trained, a small, fixed sample of each source, and have a GPT continue one.

Validation changes nothing: the network runs without dropout or gradient, masks and spans of these rows are functions of
the seed and the row alone, a text is drawn by a generator of its own, and the next step computes exactly what it would
compute without validation.
"""

import math
from collections import Counter
from time import monotonic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.config.train import TrainConfig, TrainerRun
from model.data.dataset import SequenceReader, open_table, text_lengths
from model.data.schema import ORDER
from model.distributed.messages import SourceScore
from model.engines.base import Engine
from model.engines.native import NativeEngine
from model.engines.runtime import evaluating
from model.errors import InputError
from model.inference.generate import Sampling, stream_tokens
from model.nn.gpt import GPT
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


PROMPT_TOKENS, MOST_TOKENS = 12, 60

SHARE = 0.008
"""Share of the time since the training began that writing may take."""

SAMPLING = Sampling(temperature=0.7, top_p=0.9, seed=1)


class LiveSample:
    """A text for those who watch, sent to the launcher and no part of the result: continues the beginning of a held-out
    row of the source that has most of them, each time with the network as it is, always with one seed."""

    def __init__(self, run: TrainerRun) -> None:
        assert run.heldout is not None, "Validation refuses a run without held-out rows, and a file without any"
        table = open_table(run.heldout)
        sources = table.column("source").cast(pa.string()).to_pylist()
        row = sources.index(Counter(sources).most_common(1)[0][0])
        tokens = table.column("tokens")[row].as_py()
        # Of a row with little text the rest is padding.
        length = int(text_lengths(np.array([tokens]), run.pad)[0])
        self._prompt: list[int] = tokens[: min(length, PROMPT_TOKENS)]
        self._end = run.eos
        self._possible = run.model.architecture == "gpt" and not run.train.recompute and len(self._prompt) > 1
        self._began, self._spent = monotonic(), 0.0

    def write(self, engine: Engine) -> tuple[list[int], list[int]] | None:
        """Return the token ids of the prompt and of its continuation, which ends early where the time is used up; None
        without any, and for engines that have no whole network here."""
        if not self._possible or type(engine) is not NativeEngine or not isinstance(engine.network, GPT):
            return None
        began = monotonic()
        left = SHARE * (began - self._began) - self._spent
        written: list[int] = []
        with evaluating(engine.network):
            for token in stream_tokens(
                engine.network, self._prompt, SAMPLING, max_new_tokens=MOST_TOKENS, stop=self._end
            ):
                written.append(token)
                if monotonic() - began >= left:
                    break
        self._spent += monotonic() - began
        return (self._prompt, written) if written else None
