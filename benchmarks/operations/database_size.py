"""How much a deployed run adds to the server's database, by table: SQLite and PostgreSQL.

    python benchmarks/operations/database_size.py ROOT SIZES.json

Writes the sizes of the tables of the service of ROOT to a file where there is none; else prints their growth
since, and divides by the runs that came. Wait half a minute behind a run, since events are written in lots.
"""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

from flows.service.database import SQLITE
from flows.service.files import ServiceFiles

TABLES_SHOWN = 8


def sqlite_sizes(path: Path) -> dict[str, int]:
    """Return the bytes of each table with its indexes, from the pages that they take."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        owners = dict(connection.execute("SELECT name, tbl_name FROM sqlite_master"))
        sizes: dict[str, int] = {}
        for name, size in connection.execute("SELECT name, SUM(pgsize) FROM dbstat GROUP BY name"):
            table = owners.get(name, name)
            sizes[table] = sizes.get(table, 0) + size
    return sizes


def postgresql_sizes(address: str) -> dict[str, int]:
    """Return the bytes of each table with its indexes and long values."""
    found = _ask(address, "SELECT json_object_agg(relname, pg_total_relation_size(relid)) FROM pg_stat_user_tables")
    return json.loads(found)


def _ask(address: str, query: str) -> str:
    words = ["psql", address, "--tuples-only", "--no-align", "--command", query]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def sqlite_rows(path: Path, table: str) -> int:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        return connection.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0]


def main(root: Path, kept: Path) -> None:
    files = ServiceFiles(root.resolve())
    database = files.known.database or SQLITE
    if database == SQLITE:
        path = files.folder / "prefect" / "prefect.db"
        sizes = sqlite_sizes(path)
        rows = {table: sqlite_rows(path, table) for table in sizes if not table.startswith("sqlite_")}
    else:
        sizes = postgresql_sizes(database)
        rows = {table: int(_ask(database, f'SELECT COUNT(*) FROM "{table}"')) for table in sizes}
    if not kept.exists():
        kept.write_text(json.dumps({"sizes": sizes, "rows": rows}))
        return
    before = json.loads(kept.read_text())
    runs = rows["flow_run"] - before["rows"]["flow_run"]
    grown = {table: size - before["sizes"].get(table, 0) for table, size in sizes.items()}
    came = {table: rows.get(table, 0) - before["rows"].get(table, 0) for table in grown}
    print(f"{database}: {sum(sizes.values()) / 1e6:.2f} MB, of which {runs} runs made {sum(grown.values()) / 1e6:.2f}")
    print(f"{'table':30} {'rows a run':>10} {'kB a run':>10}")
    for table, size in sorted(grown.items(), key=lambda pair: -pair[1])[:TABLES_SHOWN]:
        print(f"{table:30} {came[table] / runs:10.1f} {size / 1e3 / runs:10.1f}")
    print(f"{'all':30} {'':10} {sum(grown.values()) / 1e3 / runs:10.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
