"""The database behind the server: SQLite under the root, or a PostgreSQL that somebody else runs.

Its address may hold a password, so that it stays in the environment of the processes that need it; what is written
down and told has none.
"""

import os
import socket
from urllib.parse import SplitResult, urlsplit

from model.errors import Infra, InputError

SQLITE = "sqlite"
SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
POSTGRESQL_PORT = 5432
CONNECTION_URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
SECONDS_TO_ANSWER = 5.0


def database_settings(address: str) -> dict[str, str]:
    """What Prefect's server is told in its environment: nothing for `sqlite`, whose file lies under the root.

    Raises InputError for what is no address of a PostgreSQL database, Infra where nobody answers there.
    """
    if address == SQLITE:
        return {}
    parts = _parts(address)
    host, port = parts.hostname or "127.0.0.1", parts.port or POSTGRESQL_PORT
    try:
        socket.create_connection((host, port), SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise Infra(
            f"up --database {without_password(address)}: nobody answers at {host}:{port} ({error}). Start PostgreSQL"
            f" first; `deployments/local/postgresql.sh start FOLDER` makes one for this machine."
        ) from error
    return {CONNECTION_URL: parts._replace(scheme="postgresql+asyncpg").geturl()}


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
