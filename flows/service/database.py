"""The database behind the server: SQLite under the root, or a PostgreSQL that somebody else runs.

Its address may hold a password, so that it stays in the environment of the processes that need it; what is written
down and told has none.
"""

import asyncio
import os
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
