"""The database behind the server: SQLite under the root, or a PostgreSQL that somebody else runs.

Its address may hold a password, so that it stays in the environment of the processes that need it; what is written
down and told has none.

A new SQLite database for Prefect's server, copied instead of migrated.

Prefect makes a database by all migrations since its first version and by registering its block types, which takes 8 of
the 13 s of processor time in which a server first starts under a root. So the first such database is kept in the user's
cache, by Prefect's version, and new roots begin with a copy. Without a cache every root's server migrates for itself.
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

SQLITE = "sqlite"

SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")

POSTGRESQL_PORT = 5432

CONNECTION_URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"

SECONDS_TO_ANSWER = 5


def database_settings(address: str) -> dict[str, str]:
    """What Prefect's server is told in its environment: nothing for `sqlite`, whose file lies under the root.

    Raises InputError for what is no address of a PostgreSQL database, or one that the database refuses, Infra where
    nobody answers there.
    """
    if address == SQLITE:
        return {}
    parts = _parts(address)
    _log_in(parts)
    return {CONNECTION_URL: parts._replace(scheme="postgresql+asyncpg").geturl()}


def _log_in(parts: SplitResult) -> None:
    """Connect as the server will, which writes a refusal into its log alone."""
    import asyncpg

    shown = f"up --database {without_password(parts.geturl())}"

    async def once() -> None:
        # Of the address's options, SQLAlchemy hands this one to the driver.
        ssl = dict(parse_qsl(parts.query)).get("ssl")
        plain = parts._replace(scheme="postgresql", query="").geturl()
        connection = await asyncpg.connect(plain, timeout=SECONDS_TO_ANSWER, ssl=ssl)
        await connection.close(timeout=SECONDS_TO_ANSWER)

    # What PostgreSQL says of a refusal names the user, the database, the machine, never the password.
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
    """The address as it may be written down."""
    if address == SQLITE:
        return SQLITE
    parts = _parts(address)
    host = parts.hostname or ""
    user = f"{parts.username}@" if parts.username else ""
    place = f"{host}:{parts.port}" if parts.port else host
    return f"postgresql://{user}{place}{parts.path}"


def check_same(told: str | None, known: str | None) -> str:
    """The database to use, of the one that is asked for and the one that the root's server used last.

    Raises InputError where the root's runs stand in another database than SQLite and none is named.
    """
    if told is not None:
        return told
    if known in (None, SQLITE):
        return SQLITE
    raise InputError(
        f"up: the runs of this root stand in the database {known}. Name it again, with its password where it has one"
        f" (--database or BESSEMER_DATABASE), or begin a new one with --database {SQLITE}."
    )


def inherited() -> dict[str, str]:
    """The server's database as this process was started with it."""
    return {CONNECTION_URL: os.environ[CONNECTION_URL]} if CONNECTION_URL in os.environ else {}


def _parts(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"up --database: the address cannot be read ({error}); {_CURE}") from error
    # The address itself is not told: where it is wrong, the password may stand anywhere in it.
    if parts.scheme not in SCHEMES:
        raise InputError(f"up --database: {parts.scheme or 'an address without scheme'} is not known; {_CURE}")
    if len(parts.path) < 2:
        raise InputError(f"up --database: the address names no database; {_CURE}")
    return parts


_CURE = f"write postgresql://USER:PASSWORD@HOST:PORT/NAME, or {SQLITE} for a file under the root"

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
