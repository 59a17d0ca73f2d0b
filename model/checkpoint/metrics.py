"""The tables that a training writes, row by row: METRICS, STEPS, VALIDATION, PERF and EVENTS.

All rows since the first step are part of every checkpoint, so a resumed run ends with the same tables as an
uninterrupted one, except for clock times. `final_steps` and `final_rows` select the rows that led to the weights,
without those of attempts that the guard rolled back.
"""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from model.data.schema import EVENTS, METRICS, PERF, STEPS, VALIDATION
from model.errors import InputError
from model.files import write_synced

SCHEMAS = {"metrics": METRICS, "steps": STEPS, "validation": VALIDATION, "perf": PERF, "events": EVENTS}

ADDED = ("validation",)
"""Tables that earlier versions did not write; read as empty where the file is missing."""

RECENT_SHARE = 0.1
"""Share of the steps made, counted from the last, over which `recent_loss` is a mean."""


class MetricsLog:
    """Rows of the five tables, in memory until a checkpoint or the result is written.

    New rows are Python objects; `tables` converts them to Arrow once, in 0.4 ms for 50 steps. Converting all rows at
    each checkpoint took 0.2 s after 50,000 steps.
    """

    def __init__(self) -> None:
        self.attempt = 0
        """Number of rollbacks and interventions so far; a column of every row."""
        self._new: dict[str, list[dict[str, Any]]] = {table: [] for table in SCHEMAS}
        self._batches: dict[str, list[pa.RecordBatch]] = {table: [] for table in SCHEMAS}

    def add(self, table: str, **row: Any) -> None:
        """Append one row of the current attempt."""
        self._new[table].append({"attempt": self.attempt, **row})

    def event(self, step: int, kind: str, error_class: str = "", positions: range | None = None, **detail: Any) -> None:
        """Append to EVENTS; `positions` are the positions of ORDER that the event concerns."""
        self.add(
            "events",
            seq=self.count("events"),
            time=time.time(),
            step=step,
            kind=kind,
            detail=json.dumps(detail, sort_keys=True),
            positions=list(positions or ()),
            **{"class": error_class},
        )

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return sum(batch.num_rows for batch in self._batches[table]) + len(self._new[table])

    def tables(self) -> dict[str, pa.Table]:
        """Return all rows so far, by table; later rows do not change what was returned.

        Takes time proportional to the rows that are new since the last call.
        """
        for table, schema in SCHEMAS.items():
            if self._new[table]:
                _append(self._batches[table], pa.RecordBatch.from_pylist(self._new[table], schema=schema))
                self._new[table] = []
        return {table: pa.Table.from_batches(self._batches[table], schema=SCHEMAS[table]) for table in SCHEMAS}

    def write(self, folder: Path) -> None:
        """Write all tables into `folder`, durable."""
        for table, rows in self.tables().items():
            write_synced(folder / table_file(table), [serialized(rows)])

    @staticmethod
    def read(folder: Path) -> "MetricsLog":
        """Read the log that was written into `folder`; InputError where a table has other columns than expected."""
        log = MetricsLog()
        for table, schema in SCHEMAS.items():
            if table in ADDED and not (folder / table_file(table)).exists():
                continue
            with pa.OSFile(str(folder / table_file(table)), "rb") as source:
                rows = pa.ipc.open_file(source).read_all()
            if rows.schema != schema:
                raise InputError(
                    f"{folder / table_file(table)} has the columns {', '.join(rows.column_names)}, and this version"
                    f" of the trainer writes {', '.join(schema.names)}. Resume with the version that wrote it, or"
                    f" remove {folder.parent} to start again."
                )
            log._batches[table] = [batch for batch in rows.to_batches() if batch.num_rows]
        return log


def table_file(table: str) -> str:
    """Return the file name of a table."""
    return f"{table}.arrow"


def serialized(rows: pa.Table) -> pa.Buffer:
    """Return an Arrow file of one batch, so that equal rows give equal bytes however they were batched."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue()


def _append(batches: list[pa.RecordBatch], new: pa.RecordBatch) -> None:
    """Append a batch and merge it with those before it that are no larger.

    There are at most log2(rows) batches, and a row is copied at most that often.
    """
    batches.append(new)
    while len(batches) > 1 and batches[-2].num_rows <= batches[-1].num_rows:
        last = batches.pop()
        batches[-1] = pa.concat_batches([batches[-1], last])


def final_rows(table: pa.Table, steps: pa.Table) -> pa.Table:
    """Return the rows of METRICS or PERF of each step's last attempt, sorted by step; skipped steps have none."""
    names = table.column_names
    if "attempt" not in names:
        return table
    # Arrow joins no columns of lists, so row numbers are joined in their place.
    numbered = table.select(["step", "attempt"]).append_column("row", pa.array(range(table.num_rows), pa.int64()))
    joined = numbered.join(final_steps(steps).select(["step", "attempt"]), ["step", "attempt"], join_type="inner")
    return table.take(joined.sort_by("step").column("row"))


def final_steps(steps: pa.Table) -> pa.Table:
    """Return the row of each step's last attempt in STEPS, sorted by step."""
    last = steps.group_by("step").aggregate([("attempt", "max")]).rename_columns(["step", "attempt"])
    joined = steps.join(last, ["step", "attempt"], join_type="inner").select(steps.column_names)
    return joined.sort_by("step").cast(steps.schema)


def recent_loss(log: MetricsLog, step: int) -> float | None:
    """Return the mean training loss of the applied ones of the last tenth of the first `step` steps; None where none
    was applied.

    A mean, since a single step's loss depends on its rows as much as on the network. The loss of a rejected step may be
    infinite, and is none of what the weights learnt from.
    """
    tables = log.tables()
    steps = final_steps(tables["steps"])
    first = step - max(1, round(RECENT_SHARE * step))
    number = steps.column("step")
    recent = pc.and_(pc.greater_equal(number, first), pc.less(number, step))
    applied = steps.filter(pc.and_(recent, steps.column("applied"))).column("step")
    metrics = final_rows(tables["metrics"], tables["steps"])
    return pc.mean(metrics.filter(pc.is_in(metrics.column("step"), applied)).column("loss")).as_py()
