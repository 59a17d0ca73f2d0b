"""The database behind the server: SQLite under the root, or an existing PostgreSQL database.

Its address may hold a password, so it stays in the environment of the processes that need it; files and messages show
it without the password.

Prefect creates a SQLite database by all migrations since its first version and by registering its block types, which
takes 8 of the 13 s of processor time in which a server first starts under a root. The first such database is therefore
kept in the user's cache, by Prefect's version, and new roots start with a copy. Without a cache every server migrates
for itself.
"""

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

from model.errors import Infra, InputError
from model.files import user_cache

SQLITE = "sqlite"

SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")

POSTGRESQL_PORT = 5432

CONNECTION_URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"

SECONDS_TO_ANSWER = 5

DATABASE = "prefect.db"

_HINT = f"write postgresql://USER:PASSWORD@HOST:PORT/NAME, or {SQLITE} for a file under the root"


def database_settings(address: str) -> dict[str, str]:
    """Return the environment of Prefect's server for a database; empty for `sqlite`, whose file is under the root.

    Raises InputError for an invalid address, or one that the database refuses; Infra where no database answers.
    """
    if address == SQLITE:
        return {}
    parts = _parts(address)
    _log_in(parts)
    return {CONNECTION_URL: parts._replace(scheme="postgresql+asyncpg").geturl()}


def _log_in(parts: SplitResult) -> None:
    """Connect as the server will, since a refusal would show only in the server's log."""
    import asyncpg

    shown = f"serve start --database {without_password(parts.geturl())}"

    async def once() -> None:
        # The only option of the address that SQLAlchemy passes to the driver.
        ssl = dict(parse_qsl(parts.query)).get("ssl")
        plain = parts._replace(scheme="postgresql", query="").geturl()
        connection = await asyncpg.connect(plain, timeout=SECONDS_TO_ANSWER, ssl=ssl)
        await connection.close(timeout=SECONDS_TO_ANSWER)

    # PostgreSQL's message names the user, the database and the machine, never the password.
    try:
        asyncio.run(once())
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise InputError(
            f"{shown}: PostgreSQL refuses the user or the password ({error}). Correct the address: characters such as"
            " @ : / % in a password are written as %40 %3A %2F %25"
        ) from error
    except asyncpg.InvalidCatalogNameError as error:
        raise InputError(f"{shown}: {error}; create it first (`createdb NAME`), or correct the address") from error
    except OSError as error:
        at = f"{parts.hostname or '127.0.0.1'}:{parts.port or POSTGRESQL_PORT}"
        raise Infra(
            f"{shown}: no PostgreSQL answers at {at} ({type(error).__name__}: {error}). Start PostgreSQL first;"
            " `deployments/local/postgresql.sh start FOLDER` makes one for this machine."
        ) from error
    except (asyncpg.PostgresError, asyncpg.InternalClientError, asyncpg.InterfaceError, ValueError) as error:
        raise Infra(f"{shown}: PostgreSQL does not let the server in ({type(error).__name__}: {error})") from error


def without_password(address: str) -> str:
    """Return the address without its password, for files and messages."""
    if address == SQLITE:
        return SQLITE
    parts = _parts(address)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    user = f"{parts.username}@" if parts.username else ""
    place = f"{host}:{parts.port}" if parts.port else host
    return f"postgresql://{user}{place}{parts.path}"


def check_same(requested: str | None, known: str | None) -> str:
    """Return the database to use: the requested one, or SQLite where the root's server used it last.

    Raises InputError where the runs of the root are in another database and none is requested.
    """
    if requested is not None:
        return requested
    if known in (None, SQLITE):
        return SQLITE
    raise InputError(
        f"serve start: the runs of this root are in the database {known}. Name it again, with its password if any"
        f" (--database or BESSEMER_DATABASE), or begin a new one with --database {SQLITE}."
    )


def _parts(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"serve start --database: the address cannot be read ({error}); {_HINT}") from error
    # The message must not show the address: in a wrong one the password may be anywhere.
    if parts.scheme not in SCHEMES:
        raise InputError(f"serve start --database: {parts.scheme or 'an address without scheme'} is not known; {_HINT}")
    if len(parts.path) < 2:
        raise InputError(f"serve start --database: the address names no database; {_HINT}")
    return parts


def copy_database(home: Path) -> bool:
    """Copy the cached database into a server's PREFECT_HOME that has none; return whether the server must create one,
    which `keep_database` may then cache."""
    target, kept = home / DATABASE, _cached_database()
    if CONNECTION_URL in os.environ or target.exists():
        return False
    if not kept.exists():
        return True
    try:
        home.mkdir(parents=True, exist_ok=True)
        _copy(kept, target)
    except (OSError, sqlite3.Error):
        # A damaged or unreadable copy only costs time: the server creates its own, which replaces it.
        return True
    return False


def keep_database(home: Path) -> None:
    """Cache a copy of the database that a server has just created, without its own keys."""
    with contextlib.suppress(OSError, sqlite3.Error):
        _cached_database().parent.mkdir(parents=True, exist_ok=True)
        _copy(home / DATABASE, _cached_database())


def _cached_database() -> Path:
    return user_cache() / f"prefect-{metadata.version('prefect')}.db"


def _copy(source: Path, target: Path) -> None:
    """Copy a database by SQLite's backup, which includes its write-ahead log, and rename it into place."""
    descriptor, name = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)
    os.close(descriptor)
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
            contextlib.closing(sqlite3.connect(name)) as new,
        ):
            old.backup(new)
            # A copy with a write-ahead log could not be read from a cache that nobody may write.
            new.execute("PRAGMA journal_mode=DELETE")
            # Prefect keeps its keys and its telemetry session here; every server creates its own.
            new.execute("DELETE FROM configuration")
            new.commit()
            if new.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError(f"{source} is damaged")
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
