"""The metrics log: equal rows give equal bytes, whenever they were written; the mean of the last losses."""

import math
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.checkpoint.metrics import MetricsLog, recent_loss, serialized, table_file
from model.data.schema import METRICS
from model.errors import InputError

ROWS = st.lists(
    st.tuples(
        st.floats(width=32, allow_nan=False),
        st.lists(st.floats(width=32, allow_nan=False), max_size=3),
        st.none() | st.floats(allow_nan=False),
        st.booleans(),
    ),
    max_size=40,
)
"""Loss, activation ranges, a loss that only some objectives have, and whether tables are asked for behind the row."""


def metrics_row(step: int, loss: float, heat: list[float], masked: float | None) -> dict[str, object]:
    numbers = {
        field.name: 0.5 for field in METRICS if field.name not in ("step", "attempt") and field.type != pa.int64()
    }
    lists = {field.name: heat for field in METRICS if pa.types.is_list(field.type)}
    return {**numbers, **lists, "step": step, "tokens": 7 * step, "loss": loss, "masked_loss": masked}


def test_only_measures_that_some_objectives_lack_may_be_missing() -> None:
    missing = {field.name for field in METRICS if field.nullable}
    assert missing == {f"{kind}_{measure}" for kind in ("masked", "next") for measure in ("loss", "accuracy")}


@given(ROWS)
def test_bytes_do_not_depend_on_when_tables_were_asked_for(rows: list[tuple[float, list[float], float, bool]]) -> None:
    journal, added = MetricsLog(), []
    for step, (loss, heat, masked, asked) in enumerate(rows):
        added.append(metrics_row(step, loss, heat, masked))
        journal.add("metrics", **added[-1])
        if asked:
            journal.tables()
    at_once = pa.Table.from_pylist([{"attempt": 0, **row} for row in added], schema=METRICS)
    assert serialized(journal.tables()["metrics"]).equals(serialized(at_once))
    assert journal.count("metrics") == len(rows)


def test_tables_that_were_handed_out_stay_as_they_were() -> None:
    journal = MetricsLog()
    journal.event(0, "start")
    before = journal.tables()["events"]
    journal.event(1, "spike")
    assert before.column("kind").to_pylist() == ["start"]
    assert journal.tables()["events"].column("kind").to_pylist() == ["start", "spike"]


def test_what_is_read_goes_on_where_it_ended(tmp_path: Path) -> None:
    journal, once = MetricsLog(), MetricsLog()
    for part in (journal, once):
        part.add("metrics", **metrics_row(0, 2.5, [1.0], None))
        part.event(0, "start")
    journal.write(tmp_path)
    journal = MetricsLog.read(tmp_path)
    assert [journal.count(table) for table in ("metrics", "steps", "events")] == [1, 0, 1]
    for part in (journal, once):
        part.attempt = 1
        part.add("metrics", **metrics_row(1, 2.25, [2.0, 3.0], 0.25))
        part.event(1, "spike")
    assert [row["seq"] for row in journal.tables()["events"].to_pylist()] == [0, 1]
    assert serialized(journal.tables()["metrics"]).equals(serialized(once.tables()["metrics"]))
    assert journal.tables()["events"].column("attempt").to_pylist() == [0, 1]


def test_five_thousand_rows_that_came_one_by_one_lie_in_few_batches() -> None:
    journal = MetricsLog()
    for step in range(5000):
        journal.add("perf", step=step, wall_s=0.5, tokens_s=2.0, mfu=None, rss=1)
        journal.tables()
    table = journal.tables()["perf"]
    assert table.column("step").to_pylist() == list(range(5000))
    # Sizes are different powers of two: as many batches as 5000 has ones in base two.
    assert table.column("step").num_chunks == (5000).bit_count()


def test_a_table_of_another_version_is_refused(tmp_path: Path) -> None:
    MetricsLog().write(tmp_path)
    other = pa.table({"step": pa.array([1])})
    (tmp_path / table_file("steps")).write_bytes(serialized(other))
    with pytest.raises(InputError, match="has the columns step, and this version"):
        MetricsLog.read(tmp_path)


def journal_of(losses: list[float]) -> MetricsLog:
    journal = MetricsLog()
    for step, loss in enumerate(losses):
        _add(journal, step, loss)
    return journal


def _add(journal: MetricsLog, step: int, loss: float, *, applied: bool = True) -> None:
    journal.add("steps", step=step, pos_start=step, pos_end=step + 1, row_pieces=1, applied=applied)
    journal.add("metrics", step=step, tokens=step, loss=loss, grad_norm=1.0, lr=1.0, max_norm=1.0, scale=1.0)


def test_the_recent_loss_is_the_mean_of_the_last_tenth_before_a_step() -> None:
    journal = journal_of([float(step) for step in range(40)])
    assert recent_loss(journal, 40) == (36 + 37 + 38 + 39) / 4
    assert recent_loss(journal, 20) == (18 + 19) / 2
    assert recent_loss(journal, 3) == 2.0
    assert recent_loss(MetricsLog(), 3) is None


def test_losses_of_rejected_steps_do_not_count() -> None:
    journal = journal_of([float(step) for step in range(38)])
    _add(journal, 38, math.inf, applied=False)
    _add(journal, 39, 39.0)
    assert recent_loss(journal, 40) == (36 + 37 + 39) / 3
    assert recent_loss(journal, 39) == (35 + 36 + 37) / 3
    rejected = MetricsLog()
    _add(rejected, 0, 5.0, applied=False)
    assert recent_loss(rejected, 1) is None


def test_losses_that_the_guard_went_back_from_do_not_count() -> None:
    journal = journal_of([float(step) for step in range(20)])
    journal.attempt = 1
    _add(journal, 19, 1.0)
    assert recent_loss(journal, 20) == (18 + 1) / 2
