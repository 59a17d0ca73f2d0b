"""The files of a root's service: records of its processes, addresses, locks, and the password of its server.

The server asks each client for `USER:PASSWORD`, which is in a file that only its owner may read. It is read when
needed, passed on in environments, and never printed, logged or copied.
"""

import fcntl
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flows.service.database import CONNECTION_URL
from flows.service.processes import Background
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError
from model.files import link_or_copy, sync_file

POOL = "bessemer"

ADDRESS_LOST = "Remove it, and start the service again with `bessemer serve start`, which writes it again."

SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"

CLIENT_AUTH = "PREFECT_API_AUTH_STRING"

NOT_PASSED_ON = ("PREFECT_PROFILE", "PREFECT_API_KEY", CONNECTION_URL, "BESSEMER_DATABASE", SERVER_AUTH)
"""Variables that name another server, or that only this server may see."""

DATABASE_RETENTION = {
    # Prefect itself keeps flow runs for ever.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    # A heartbeat is of no use after the next one.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_EVENT_RETENTION_OVERRIDES": json.dumps({"prefect.flow-run.heartbeat": 86400}),
}
"""Settings that keep the server's database from growing for ever (docs/operations.md); the user's own override them."""

CLIENT_RETRIES = {
    # The server's answer while its database is away: without retries, runs that end then are Failed.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
    # Pauses of 2, 4, ... 128 s, four minutes in all, for a database whose machine restarts.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
}
"""Retries of the worker and of runs when they call a long-running server."""


@dataclass(frozen=True)
class Known:
    """What is recorded of the service as it was started last."""

    host: str = "127.0.0.1"
    """Where the server listens."""
    port: int = 0
    database: str | None = None
    """Without its password."""
    password_file: str | None = None
    """None for the root's own."""
    tls: Sequence[str] | None = None
    """Certificate and key; None where the server uses plain HTTP."""
    addresses: Sequence[str] = ()
    """Addresses other than its own under which the server is reached."""
    workplace: str | None = None
    """Folder in which the worker runs."""
    recipe: str | None = None
    """Recipe of the deployments as they were written last."""


@dataclass(frozen=True)
class ServiceFiles:
    """The files of one root's service, all under `ROOT/service/`."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "service"

    @property
    def server(self) -> Background:
        return Background("server", self.folder / "server.json", self.folder / "server.log")

    @property
    def worker(self) -> Background:
        return Background("worker", self.folder / "worker.json", self.folder / "worker.log")

    @property
    def keeper(self) -> Background:
        return Background("keeper", self.folder / "keeper.json", self.folder / "keeper.log")

    @property
    def deploy_log(self) -> Path:
        return self.folder / "deploy.log"

    @property
    def own_password(self) -> Path:
        """File of the server's password where no other was named."""
        return self.folder / "password"

    @property
    def known(self) -> Known:
        """What is recorded of the service; defaults where it was never started."""
        try:
            return Known(**read_sealed(self.folder / "address.json", ADDRESS_LOST))
        except FileNotFoundError:
            return Known()

    def remember(self, known: Known) -> None:
        """Record what is known of the service from now on."""
        # The root's own file is found by default, also after the root was moved.
        is_own = known.password_file == str(self.own_password)
        write_sealed(self.folder / "address.json", asdict(replace(known, password_file=None) if is_own else known))

    def password_file(self) -> Path | None:
        """Return the file of the server's password; None where it has none."""
        if found := self.known.password_file:
            return Path(found)
        return self.own_password if self.own_password.exists() else None

    def ui_url(self) -> str:
        """Return the address of the UI from this machine.

        With TLS it is the first of the addresses that were named: the certificate is valid for no other.
        """
        known = self.known
        if known.tls is not None:
            return known.addresses[0]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(known.host, known.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{known.port}"

    def public_url(self) -> str:
        """Return the address of the UI for everyone: the first that was named, such as that of a proxy."""
        return (self.known.addresses or [self.ui_url()])[0]

    @property
    def api_url(self) -> str:
        return f"{self.ui_url()}/api"

    def environment(self) -> dict[str, str]:
        """Return the environment of the server, the worker and the commands that set them up, with telemetry off."""
        mine = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
        return (
            DATABASE_RETENTION
            | CLIENT_RETRIES
            | mine
            | {
                "PREFECT_HOME": str(self.folder / "prefect"),
                "PREFECT_API_URL": self.api_url,
                "PREFECT_UI_API_URL": "/api",
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
                "PREFECT_CLI_PROMPT": "false",
                # Prefect checks for new schedules once a minute, and would skip one that is due earlier.
                "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "10",
                # On a busy machine SQLite was locked for longer than Prefect's 10 s, and lost events that restart runs.
                "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
                "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60",
                # After a restart of the server no automation waits long for events from before.
                "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "flows.service.ordering",
                # The automation that ends silent runs waits for three of them.
                "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
                "DO_NOT_TRACK": "1",
                "BESSEMER_ROOT": str(self.root),
            }
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the service: of two commands that start or stop it at once, the second waits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def reporting(self, to: str = "reporting") -> Iterator[None]:
        """Hold the lock of a run that the service did not start but that reports to its server, or (`private`) to a
        private server with the same database. A killed process releases it."""
        with (self.folder / to).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def nobody_reports(self, *, private: bool = True) -> bool:
        """Return whether no run holds `reporting`, neither to the service nor, if asked, to a private server."""
        with ExitStack() as locks:
            try:
                for to in ("reporting", "private") if private else ("reporting",):
                    lock = locks.enter_context((self.folder / to).open("a"))
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def check_nobody_reports(self) -> None:
        """Raise InputError where a run that the service did not start would lose its server."""
        if not self.nobody_reports(private=False):
            raise InputError(
                f"serve stop --root {self.root}: a `bessemer run` or `bessemer demo` under this root reports to the"
                " server and would fail without it. Wait for its end or stop it (Ctrl-C keeps what is finished);"
                " --now stops the server anyway."
            )


def shipped(name: str) -> Path:
    """Return a file of `deployments/`, which the wheel has in the folder of this module."""
    packaged = Path(__file__).parent / name
    return packaged if packaged.is_file() else Path(__file__).parents[2] / "deployments" / name


def running_server(root: Path) -> str | None:
    """Return the API address of the running server that `bessemer serve start` started for a root, or None."""
    files = ServiceFiles(root)
    return files.api_url if files.server.pid() is not None else None


def new_password() -> str:
    """Return a random `USER:PASSWORD`."""
    return f"bessemer:{secrets.token_urlsafe(24)}"


def write_password(path: Path) -> Path:
    """Write a new password to `path`, mode 600, unless the file exists, and return `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file gets its name only when complete, since another process may read it at the same time.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(f"{new_password()}\n")
        sync_file(temporary)
        link_or_copy(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)
    return path


def read_password(path: Path) -> str:
    """Return the one line `USER:PASSWORD` of a file; InputError where others may read it or it is invalid."""
    try:
        mode = path.stat().st_mode
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"serve start --password-file {path}: cannot be read ({error})") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"serve start --password-file {path}: others may read it; `chmod 600 {path}`")
    user, colon, word = text.partition(":")
    # Prefect compares only ASCII; with any other password it would answer everyone with a server error.
    if not (user and colon and word and text.isascii()) or "\n" in text:
        raise InputError(
            f"serve start --password-file {path}: it must hold one line, USER:PASSWORD, of ASCII characters"
        )
    return text


def use_password(path: Path | None) -> None:
    """Set the password of the file in the environment, for this process and its children as clients of the server."""
    if path is not None:
        os.environ[CLIENT_AUTH] = read_password(path)


def server_credentials(path: Path | None) -> dict[str, str]:
    """Return the environment with which the server asks for the password of the file; empty without one."""
    return {SERVER_AUTH: read_password(path)} if path is not None else {}
