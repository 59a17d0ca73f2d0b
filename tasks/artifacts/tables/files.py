"""Tables as files of an artifact: their names, compression and batch size, which decide the bytes."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tasks.artifacts.workspace import Unit, Workspace

PREFIX = {"documents": "part", "sequences": "part"}

MEMORY_MAPPED = frozenset({"sequences", "order"})

ROWS_PER_BATCH = 4096


def table_file_name(table: str, unit: str = "") -> str:
    """Return `part-00003.arrow` for the table `documents` and the unit `00003`; `leaks.arrow` for a single file."""
    prefix = PREFIX.get(table, table)
    return f"{prefix}-{unit}.arrow" if unit else f"{prefix}.arrow"


def write_table(unit: Unit, table: str, rows: pa.Table, name: str | None = None) -> None:
    """Write `rows` into the unit as one Arrow IPC file: uncompressed if it is to be memory-mapped, else with zstd."""
    name = name or table_file_name(table)
    compression = None if table in MEMORY_MAPPED else "zstd"
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    unified = rows.unify_dictionaries().combine_chunks()
    with (
        pa.OSFile(str(unit.path(name)), "wb") as sink,
        pa.ipc.new_file(sink, unified.schema, options=options) as writer,
    ):
        writer.write_table(unified, max_chunksize=ROWS_PER_BATCH)
    unit.add_file(name, table=table, rows=rows.num_rows)


def write_run_table(workspace: Workspace, name: str, rows: pa.Table) -> None:
    """Write a table of the whole run as a unit of its own, unless an earlier, killed build has written it."""
    if workspace.finished(name) is None:
        with workspace.unit(name) as unit:
            write_table(unit, name, rows)


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return one Arrow IPC file as a table, memory-mapped; with `columns` only these are unpacked."""
    with pa.memory_map(str(path)) as source:
        if columns is None:
            return pa.ipc.open_file(source).read_all()
        schema = pa.ipc.open_file(source).schema
        chosen = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in columns])
        return pa.ipc.open_file(source, options=chosen).read_all()
