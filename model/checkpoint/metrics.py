"""What a training run writes about itself, row by row: METRICS, STEPS, VALIDATION, PERF and EVENTS.

The rows since the first step are part of every checkpoint, so a resumed run ends with the same tables as an
undisturbed one (clock tables aside).

The rows of a run's tables that lead to its weights: what the guard went back from was computed for nothing.

How far a training has come: the mean of its last losses, since a single step's loss is its rows' as much as the
network's.
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

DETERMINISTIC = ("metrics", "steps", "validation")

ADDED = ("validation",)
"""Tables that journals of earlier versions lack: there they are empty."""


def journal_file(table: str) -> str:
    """The file name of a journal table."""
    return f"{table}.arrow"


class Journal:
    """Rows of the five tables, in memory until a checkpoint or the end writes them.

    New rows are Python's; whenever tables are asked for, they become Arrow's for good: 0.4 ms for 50 steps. To convert
    all rows at each checkpoint took 0.2 s after 50,000 steps.
    """

    def __init__(self) -> None:
        self.attempt = 0
        """Ways back that the guard has taken so far; stands in every row."""
        self._new: dict[str, list[dict[str, Any]]] = {table: [] for table in SCHEMAS}
        self._batches: dict[str, list[pa.RecordBatch]] = {table: [] for table in SCHEMAS}

    def add(self, table: str, **row: Any) -> None:
        """Append one row of the attempt that is under way."""
        self._new[table].append({"attempt": self.attempt, **row})

    def event(self, step: int, kind: str, error_class: str = "", positions: range | None = None, **detail: Any) -> None:
        """Append to EVENTS; `positions` are those of ORDER that the event concerns."""
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
        """Rows of a table so far."""
        return sum(batch.num_rows for batch in self._batches[table]) + len(self._new[table])

    def last(self, table: str) -> dict[str, Any] | None:
        """The newest row of a table."""
        if self._new[table]:
            return self._new[table][-1]
        batches = self._batches[table]
        return batches[-1].slice(batches[-1].num_rows - 1).to_pylist()[0] if batches else None

    def tables(self) -> dict[str, pa.Table]:
        """All rows so far, by table; rows that are added later leave them as they are.

        Takes time by the rows that are new since the last call.
        """
        for table, schema in SCHEMAS.items():
            if self._new[table]:
                _append(self._batches[table], pa.RecordBatch.from_pylist(self._new[table], schema=schema))
                self._new[table] = []
        return {table: pa.Table.from_batches(self._batches[table], schema=SCHEMAS[table]) for table in SCHEMAS}

    def write(self, folder: Path) -> None:
        """Write all tables into `folder`, durable."""
        for table, rows in self.tables().items():
            write_synced(folder / journal_file(table), [serialized(rows)])

    @staticmethod
    def read(folder: Path) -> "Journal":
        """The journal that was written into `folder`; InputError where its tables have other columns than ours."""
        journal = Journal()
        for table, schema in SCHEMAS.items():
            if table in ADDED and not (folder / journal_file(table)).exists():
                continue
            with pa.OSFile(str(folder / journal_file(table)), "rb") as source:
                rows = pa.ipc.open_file(source).read_all()
            if rows.schema != schema:
                raise InputError(
                    f"{folder / journal_file(table)} has the columns {', '.join(rows.column_names)}, and this version"
                    f" of the trainer writes {', '.join(schema.names)}. Go on with the version that wrote it, or remove"
                    f" {folder.parent} to start anew."
                )
            journal._batches[table] = [batch for batch in rows.to_batches() if batch.num_rows]
        return journal


def serialized(rows: pa.Table) -> pa.Buffer:
    """An Arrow file of one batch, whatever batches the rows came in: the same bytes for the same rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue()


def _append(batches: list[pa.RecordBatch], new: pa.RecordBatch) -> None:
    """Join a batch with those before it that are no larger: there are never more of them than log2 of the rows, and a
    row is copied as often at most."""
    batches.append(new)
    while len(batches) > 1 and batches[-2].num_rows <= batches[-1].num_rows:
        last = batches.pop()
        batches[-1] = pa.concat_batches([batches[-1], last])


def kept_steps(steps: pa.Table) -> pa.Table:
    """Rows of STEPS in order of steps, each by its last attempt."""
    last = steps.group_by("step").aggregate([("attempt", "max")]).rename_columns(["step", "attempt"])
    kept = steps.join(last, ["step", "attempt"], join_type="inner").select(steps.column_names)
    return kept.sort_by("step").cast(steps.schema)


def kept_rows(table: pa.Table, steps: pa.Table) -> pa.Table:
    """Rows of METRICS or PERF, in order of steps, whose step and attempt are a kept row of STEPS: none for data that
    were skipped."""
    names = table.column_names
    if "attempt" not in names:
        return table
    # A join takes no columns of lists.
    numbered = table.select(["step", "attempt"]).append_column("place", pa.array(range(table.num_rows), pa.int64()))
    kept = numbered.join(kept_steps(steps).select(["step", "attempt"]), ["step", "attempt"], join_type="inner")
    return table.take(kept.sort_by("step").column("place"))


RECENT_SHARE = 0.1
"""Share of the steps made, the last ones, that count."""


def recent_loss(journal: Journal, step: int) -> float | None:
    """Mean training loss of the last tenth of the first `step` steps; None where none of them was applied."""
    tables = journal.tables()
    metrics = kept_rows(tables["metrics"], tables["steps"])
    steps = metrics.column("step")
    first = step - max(1, round(RECENT_SHARE * step))
    recent = metrics.filter(pc.and_(pc.greater_equal(steps, first), pc.less(steps, step)))
    return pc.mean(recent.column("loss")).as_py()
