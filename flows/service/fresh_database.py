"""A new SQLite database for Prefect's server, copied instead of migrated.

Prefect makes a database by all migrations since its first version and by registering its block types, which takes 8 of
the 13 s of processor time in which a server first starts under a root. So the first such database is kept in the user's
cache, by Prefect's version, and new roots begin with a copy. Without a cache every root's server migrates for itself.
"""

import contextlib
import os
import sqlite3
import tempfile
from importlib import metadata
from pathlib import Path

from flows.service.database import CONNECTION_URL

DATABASE = "prefect.db"


def copy_database(home: Path) -> bool:
    """Put the kept database into a server's PREFECT_HOME without one; return whether the server has yet to make its
    own, which `keep_database` may keep."""
    target, kept = home / DATABASE, _kept()
    if CONNECTION_URL in os.environ or target.exists():
        return False
    if not kept.exists():
        return True
    try:
        home.mkdir(parents=True, exist_ok=True)
        _copy(kept, target)
    except (OSError, sqlite3.Error):
        # A damaged or unreadable copy only costs time: the server makes its own, which takes its place.
        return True
    return False


def keep_database(home: Path) -> None:
    """Keep a copy of the database that a server has just made, without what is of this server alone."""
    with contextlib.suppress(OSError, sqlite3.Error):
        _kept().parent.mkdir(parents=True, exist_ok=True)
        _copy(home / DATABASE, _kept())


def _kept() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "bessemer"
    return cache / f"prefect-{metadata.version('prefect')}.db"


def _copy(source: Path, target: Path) -> None:
    """Copy a database by SQLite's own backup, which sees what its write-ahead log holds, and rename it into place."""
    descriptor, name = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)
    os.close(descriptor)
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
            contextlib.closing(sqlite3.connect(name)) as new,
        ):
            old.backup(new)
            # Prefect keeps its keys and its telemetry session here; every server makes its own.
            new.execute("DELETE FROM configuration")
            new.commit()
            if new.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError(f"{source} is damaged")
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
