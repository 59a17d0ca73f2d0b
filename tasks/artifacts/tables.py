"""Tables as files of an artifact: names, compression and batches, which decide its bytes."""

from pathlib import Path

import pyarrow as pa

from tasks.artifacts.workspace import Unit

PREFIX = {"documents": "part", "sequences": "part"}

MEMORY_MAPPED = frozenset({"sequences", "order"})

ROWS_PER_BATCH = 4096


def table_file_name(table: str, unit: str = "") -> str:
    """`part-00003.arrow` for the table `documents` and the unit `00003`; `leaks.arrow` for a table of one file."""
    prefix = PREFIX.get(table, table)
    return f"{prefix}-{unit}.arrow" if unit else f"{prefix}.arrow"


def write_table(unit: Unit, table: str, rows: pa.Table, name: str | None = None) -> None:
    """Write `rows` into the unit as one Arrow IPC file: zstd for text, uncompressed for what is memory-mapped."""
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


def read_table(path: Path) -> pa.Table:
    """One Arrow IPC file as a table, memory-mapped."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
