"""The rows of a run with rollbacks that led to its weights."""

import pyarrow as pa

from model.checkpoint.metrics import final_rows, final_steps
from model.data.schema import METRICS, STEPS


def steps(*rows: tuple[int, int, bool]) -> pa.Table:
    named = [
        {"step": step, "attempt": attempt, "pos_start": step, "pos_end": step + 1, "row_pieces": 1, "applied": applied}
        for step, attempt, applied in rows
    ]
    return pa.Table.from_pylist(named, schema=STEPS)


def test_each_step_counts_by_its_last_attempt() -> None:
    reported = steps((0, 0, True), (1, 0, True), (2, 0, False), (1, 1, True), (2, 1, False), (2, 2, True), (3, 2, True))
    kept = final_steps(reported)
    assert kept.schema == STEPS
    assert [(row["step"], row["attempt"]) for row in kept.to_pylist()] == [(0, 0), (1, 1), (2, 2), (3, 2)]


def test_a_step_that_was_left_out_at_last_has_no_metrics() -> None:
    """The second attempt skips the data of step 1: what the first computed there is in no weight."""
    reported = steps((0, 0, True), (1, 0, True), (1, 1, False), (2, 1, True))
    found = {"tokens": 1, "grad_norm": 1.0, "lr": 1.0, "max_norm": 1.0, "scale": 1.0, "largest_activations": [1.0]}
    rows = [(0, 0, 5.0), (1, 0, 9.0), (2, 1, 4.0)]
    metrics = pa.Table.from_pylist(
        [
            {**dict.fromkeys(METRICS.names), **found, "step": step, "attempt": attempt, "loss": loss}
            for step, attempt, loss in rows
        ],
        schema=METRICS,
    )
    assert final_rows(metrics, reported).column("loss").to_pylist() == [5.0, 4.0]
