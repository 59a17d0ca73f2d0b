"""What a training run writes about itself, row by row: METRICS, STEPS, PERF and EVENTS.

The rows since the first step are part of every checkpoint, so a resumed run ends with the same tables as an
undisturbed one (clock tables aside).
"""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from model.durable import sync_file
from model.schema import EVENTS, METRICS, PERF, STEPS

SCHEMAS = {"metrics": METRICS, "steps": STEPS, "perf": PERF, "events": EVENTS}
DETERMINISTIC = ("metrics", "steps")


def journal_file(table: str) -> str:
    """The file name of a journal table."""
    return f"{table}.arrow"


class Journal:
    """Rows of the four tables, in memory until a checkpoint or the end writes them."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {table: [] for table in SCHEMAS}
        self.attempt = 0
        """Ways back that the guard has taken so far; stands in every row."""

    def add(self, table: str, **row: Any) -> None:
        """Append one row of the attempt that is under way."""
        self.rows[table].append({"attempt": self.attempt, **row})

    def event(self, step: int, kind: str, error_class: str = "", positions: range | None = None, **detail: Any) -> None:
        """Append to EVENTS; `positions` are those of ORDER that the event concerns."""
        self.add(
            "events",
            seq=len(self.rows["events"]),
            time=time.time(),
            step=step,
            kind=kind,
            detail=json.dumps(detail, sort_keys=True),
            positions=list(positions or ()),
            **{"class": error_class},
        )

    def write(self, folder: Path) -> list[str]:
        """Write all tables into `folder`, durable; returns the file names."""
        names: list[str] = []
        for table, schema in SCHEMAS.items():
            path = folder / journal_file(table)
            rows = pa.Table.from_pylist(self.rows[table], schema=schema)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                writer.write_table(rows)
            sync_file(path)
            names.append(path.name)
        return names

    @staticmethod
    def read(folder: Path) -> "Journal":
        """The journal that `write` left in `folder`."""
        journal = Journal()
        for table in SCHEMAS:
            with pa.OSFile(str(folder / journal_file(table)), "rb") as source:
                journal.rows[table] = pa.ipc.open_file(source).read_all().to_pylist()
        return journal
