"""Where the service of a root keeps what it needs to find itself again.

What the server asks of everyone who speaks to it: `USER:PASSWORD`, in a file of the owner's alone.

It is read when it is needed, handed on in environments, and never printed, logged or written down.
"""

import fcntl
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.service.database import CONNECTION_URL
from flows.service.processes import Background
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError
from model.files import link_or_copy, sync_file

POOL = "bessemer"

ADDRESS_LOST = "Remove it, and start the service again with `bessemer up`: it is written anew."

SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"

NOT_PASSED_ON = ("PREFECT_PROFILE", "PREFECT_API_KEY", CONNECTION_URL, "BESSEMER_DATABASE", SERVER_AUTH)
"""Of another server, or for this server's own eyes."""

DATABASE_RETENTION = {
    # Prefect itself keeps flow runs for ever.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    # A heartbeat has said all it has to say when the next one comes.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_EVENT_RETENTION_OVERRIDES": json.dumps({"prefect.flow-run.heartbeat": 86400}),
}
"""What keeps the server's database from growing for ever (docs/operations.md); a user's own settings overrule it."""

CLIENT_RETRIES = {
    # What the server answers while its database is away: unless asked again, runs that end then are Failed.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
    # Pauses of 2, 4, ... 128 s, four minutes on the whole, for a database whose machine is started anew.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
}
"""How worker and runs ask a standing server."""


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
        """What the server asks for where no other file was named."""
        return self.folder / "password"

    def remember_address(
        self,
        host: str,
        port: int,
        database: str | None = None,
        password_file: Path | None = None,
        tls: tuple[Path, Path] | None = None,
        addresses: Sequence[str] = (),
    ) -> None:
        """Keep where the server listens, in which database it writes (without its password), which file holds what it
        asks of its clients, its certificate and key, and the addresses under which others reach it."""
        known: dict[str, Any] = {"host": host, "port": port, "database": database}
        # The root's own is found wherever the root is moved to.
        known["password_file"] = str(password_file) if password_file not in (None, self.own_password) else None
        known["tls"] = [str(path) for path in tls] if tls is not None else None
        known["addresses"] = [address.rstrip("/") for address in addresses]
        self._remember(known)

    def remember_workplace(self, folder: Path) -> None:
        """Keep the folder in which the deployments were written, and therefore run."""
        self._remember({"workplace": str(folder)})

    def workplace(self) -> Path:
        """The folder in which the worker runs."""
        found = self._remembered().get("workplace")
        return Path(found) if found else Path.cwd()

    def tls(self) -> tuple[Path, Path] | None:
        """Certificate and key of the server that was started last; None where it speaks plain HTTP."""
        found = self._remembered().get("tls")
        return (Path(found[0]), Path(found[1])) if found else None

    def addresses(self) -> list[str]:
        """The addresses beside its own under which the server is reached."""
        return self._remembered().get("addresses") or []

    def address(self) -> tuple[str, int] | None:
        """Host and port of the server that was started last."""
        found = self._remembered()
        return (found["host"], found["port"]) if found else None

    def database(self) -> str | None:
        """The database of the server that was started last, without its password."""
        return self._remembered().get("database")

    def password_file(self) -> Path | None:
        """The file that holds what the server asks of its clients; None where it asks for nothing."""
        found = self._remembered().get("password_file")
        if found:
            return Path(found)
        return self.own_password if self.own_password.exists() else None

    def _remember(self, known: dict[str, Any]) -> None:
        write_sealed(self.folder / "address.json", self._remembered() | known)

    def _remembered(self) -> dict[str, Any]:
        try:
            return read_sealed(self.folder / "address.json", ADDRESS_LOST)
        except FileNotFoundError:
            return {}

    def ui_url(self) -> str:
        """The address of the UI from this machine; a server that listens everywhere is reached here too.

        With TLS it is the first of the addresses that were named: the certificate holds for no other.
        """
        if self.tls() is not None:
            return self.addresses()[0]
        host, port = self.address() or ("127.0.0.1", 0)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def public_url(self) -> str:
        """The address of the UI for everybody: the first that was named, such as that of a proxy."""
        return self.addresses()[0] if self.addresses() else self.ui_url()

    @property
    def api_url(self) -> str:
        return f"{self.ui_url()}/api"

    def environment(self) -> dict[str, str]:
        """What the server, the worker and the commands that set them up run with, Prefect's telemetry off."""
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
                # Prefect looks for new schedules once a minute, and would pass over one that is due before.
                "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "10",
                # On a busy machine SQLite was locked for longer than Prefect's 10 s, and lost events that restart runs.
                "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
                "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60",
                # What happened before the server was started again holds nothing back for long.
                "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "flows.service.ordering",
                # The automation that ends silent runs waits for three of them.
                "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
                "DO_NOT_TRACK": "1",
                "BESSEMER_ROOT": str(self.root),
            }
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Of two commands that start or stop the service at once, the second waits for the first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def reporting(self, to: str = "reporting") -> Iterator[None]:
        """Hold this around a run that the service did not start but whose states go to its server, or (`private`) to a
        server of the run's own with the same database."""
        with (self.folder / to).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def nobody_reports(self) -> bool:
        """Whether no run that the service did not start is alive. A killed run holds nothing."""
        with ExitStack() as locks:
            try:
                for to in ("reporting", "private"):
                    lock = locks.enter_context((self.folder / to).open("a"))
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def check_nobody_reports(self) -> None:
        """InputError where a run that the service did not start would lose its server. A killed run holds nothing."""
        with (self.folder / "reporting").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"down --root {self.root}: a `bessemer run` or `bessemer quickstart` under this root reports to the"
                    " server and would fail without it. Wait for its end or stop it (Ctrl-C keeps what is finished);"
                    " --now ends the server all the same."
                ) from error


def deployments_file() -> Path:
    """What runs where."""
    return shipped("prefect.yaml")


def shipped(name: str) -> Path:
    """A file of `deployments/`, which is in the wheel beside this module."""
    packaged = Path(__file__).parent / name
    return packaged if packaged.is_file() else Path(__file__).parents[2] / "deployments" / name


def running_server(root: Path) -> str | None:
    """The API address of the server that `bessemer up` started for a root, where it runs."""
    files = ServiceFiles(root)
    return files.api_url if files.server.pid() is not None else None


CLIENT_AUTH = "PREFECT_API_AUTH_STRING"


def new_password() -> str:
    """A random `USER:PASSWORD`."""
    return f"bessemer:{secrets.token_urlsafe(24)}"


def write_password(path: Path) -> Path:
    """Make a password and write it to `path`, mode 600, unless the file is there; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file is complete before it has its name, for others who ask for it at the same time.
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
    """The one line `USER:PASSWORD` of a file; InputError where others may read it, or it holds anything else."""
    try:
        mode = path.stat().st_mode
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"up --password-file {path}: cannot be read ({error})") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"up --password-file {path}: others may read it; `chmod 600 {path}`")
    user, colon, word = text.partition(":")
    # Prefect compares only ASCII; it answers a server's error to everyone where its own password is anything else.
    if not (user and colon and word and text.isascii()) or "\n" in text:
        raise InputError(f"up --password-file {path}: it must hold one line, USER:PASSWORD, of ASCII characters")
    return text


def use_password(path: Path | None) -> None:
    """Set the password of the file for this process, and those that it starts, as clients of the server."""
    if path is not None:
        os.environ[CLIENT_AUTH] = read_password(path)


def server_credentials(path: Path | None) -> dict[str, str]:
    """Environment with which the server asks for the password of the file; empty without one."""
    return {SERVER_AUTH: read_password(path)} if path is not None else {}
