"""A private Prefect server for one run, where none is set up; it dies with the run, however the run dies.

Prefect's built-in ephemeral server survives a kill -9 of the flow's process (measured with 3.8.8: one orphaned
`uvicorn` a kill). Ours asks the kernel to end it with its parent; `python -m flows.service.local_server FD PARENT_PID`
is the child process, which serves the listening socket FD that its parent holds.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flows.service.api import crash_lost_runs, wait_until_healthy
from flows.service.database import copy_database, keep_database
from flows.service.files import (
    CLIENT_AUTH,
    CLIENT_RETRIES,
    SERVER_AUTH,
    ServiceFiles,
    new_password,
    running_server,
    use_password,
)
from model.errors import AccessError, Infra, InputError
from model.processes import collecting_seldom, die_with_parent
from tasks.common.text import without_credentials

# Prefect's own settings for a server inside a client: no UI, no schedulers that only a long-running server needs.
EPHEMERAL = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}

# This server may fail early: a run on a full disk waited 193 s for a database that could not be written.
SHORT_TIMEOUTS = {"PREFECT_SERVER_DATABASE_TIMEOUT": "10", "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "10"}

FEW_RETRIES = {"PREFECT_CLIENT_MAX_RETRIES": "3"}

STEADY_SECONDS = 60.0
"""A server that runs as long as this has started well."""

MAX_EARLY_ENDS = 3
"""Servers in a row that may end sooner before no more are started."""


@contextmanager
def prefect_server(root: Path) -> Iterator[str]:
    """Yield the API address of the server to use: the one in the environment, else the one that `bessemer serve start`
    started for `root`, else that of the Prefect profile, else a private one that ends with this block.

    Must be entered before Prefect is imported, since it sets `PREFECT_API_URL`. A private server has the same database
    under the root as `bessemer serve start`, or one in a temporary folder where that cannot be written. Raises Infra
    when the private server does not answer within five minutes, and where Prefect cannot reach another one.
    """
    if os.environ.get("PREFECT_API_URL"):
        if os.environ["PREFECT_API_URL"] == running_server(root) and CLIENT_AUTH not in os.environ:
            use_password(ServiceFiles(root).password_file())
        with _reached(os.environ["PREFECT_API_URL"], "PREFECT_API_URL in the environment", "unset PREFECT_API_URL"):
            yield os.environ["PREFECT_API_URL"]
        return
    files = ServiceFiles(root)
    with ExitStack() as block:
        of_root = _server_of_root(files)
        existing = of_root or _profile_url()
        if existing:
            retries = {key: value for key, value in CLIENT_RETRIES.items() if key not in os.environ}
            block.enter_context(_environment({"PREFECT_API_URL": existing, **retries}))
            if of_root:
                use_password(files.password_file())
                block.enter_context(files.reporting())
            block.callback(_send_queued)
            named = "`bessemer serve start`" if of_root else "the Prefect profile"
            mend = "stop it (`bessemer serve stop`)" if of_root else "choose another profile (`prefect profile use`)"
            with _reached(existing, named, mend):
                yield existing
        else:
            server = block.enter_context(_private_server(files))
            block.callback(_send_queued)
            yield server.url


@contextmanager
def _reached(url: str, named: str, mend: str) -> Iterator[None]:
    """Raise Infra where Prefect cannot reach the server at `url`, which `named` names, and AccessError where the server
    refuses the password."""
    server = f"the Prefect server at {without_credentials(url)}, which {named} names,"
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("Failed to reach API"):
            raise
        raise Infra(
            f"{server} does not answer. Start it (`bessemer serve start`), or {mend}, and run again: without one, a"
            f" private server starts for the run"
        ) from error
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", None) not in (401, 403) or url not in str(error):
            raise
        raise AccessError(
            f"{server} refuses the password, or the lack of one. Set {CLIENT_AUTH} to USER:PASSWORD (of `bessemer serve"
            f" start`: the line in ROOT/service/password), or {mend}"
        ) from error


def _server_of_root(files: ServiceFiles) -> str | None:
    """Return the address of the server that `bessemer serve start` started for a root, if this user may read its
    password; another user's server is not used."""
    url, password = running_server(files.root), files.password_file()
    if url is None or password is None or os.access(password, os.R_OK):
        return url
    print(
        f"warning: {password} cannot be read by this user; this run is not shown by the Prefect server of {files.root}",
        file=sys.stderr,
    )
    return None


@contextmanager
def _private_server(files: ServiceFiles) -> Iterator["_Private"]:
    """Start a server with its database under the root, or in a temporary folder where that fails."""
    with ExitStack() as block:
        try:
            with files.locked():
                # Only one server at a time may migrate the database.
                server = block.enter_context(_Private(files, files.environment()["PREFECT_HOME"]))
                block.enter_context(_environment(server.clients_settings))
                if files.nobody_reports():
                    crash_lost_runs(server.url, deployed=False)
                block.enter_context(files.reporting("private"))
        except (OSError, Infra) as error:
            block.close()
            home = block.enter_context(
                tempfile.TemporaryDirectory(prefix="bessemer-prefect-", ignore_cleanup_errors=True)
            )
            print(
                f"warning: no Prefect database under {files.folder} ({error}); the server's view of this run is kept in"
                f" {home} and removed at its end. Artifacts and the run's record do not depend on it",
                file=sys.stderr,
            )
            server = block.enter_context(_Private(files, home))
            block.enter_context(_environment(server.clients_settings))
        yield server


class _Private:
    """A Prefect server that is restarted, with its database and password, whenever it ends within the block.

    This object holds the listening socket: while no server runs, requests wait for the next one instead of being
    refused, and no other process gets the port and with it the password.
    """

    def __init__(self, files: ServiceFiles, home: str) -> None:
        password = new_password()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/api"
        profiles = _profiles_file()
        self.clients_settings = {
            **{key: value for key, value in FEW_RETRIES.items() if key not in os.environ},
            "PREFECT_API_URL": self.url,
            "PREFECT_HOME": home,
            CLIENT_AUTH: password,
            **({"PREFECT_PROFILES_PATH": str(profiles)} if profiles is not None else {}),
        }
        self._home = Path(home)
        self._environment = (
            files.environment() | EPHEMERAL | SHORT_TIMEOUTS | self.clients_settings | {SERVER_AUTH: password}
        )
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = self._over = self._given_up = False
        # The kernel ends the server with the thread that started it, so one long-lived thread starts them all.
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> "_Private":
        creates_database = copy_database(self._home)
        self._thread.start()
        try:
            wait_until_healthy(self.url, lambda: not self._given_up, lambda: "run again with -v to see its log")
        except BaseException:
            self.__exit__()
            raise
        self._answered = True
        if creates_database:
            keep_database(self._home)
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._over = True
            if self._process is not None:
                self._process.send_signal(signal.SIGTERM)
        self._thread.join(timeout=10)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
            self._thread.join()

    def _keep(self) -> None:
        fd = self._socket.fileno()
        words = [sys.executable, "-m", "flows.service.local_server", str(fd), str(os.getpid())]
        early_ends = 0
        while True:
            began = time.monotonic()
            with self._lock:
                if self._over:
                    break
                # A process group of its own: Ctrl-C is for the run, which must still report its end to the server.
                self._process = subprocess.Popen(words, env=self._environment, process_group=0, pass_fds=[fd])
            code = self._process.wait()
            early_ends = early_ends + 1 if time.monotonic() - began < STEADY_SECONDS else 0
            if self._over:
                break
            if not self._answered or early_ends == MAX_EARLY_ENDS:
                self._given_up = True
                break
            print(f"the Prefect server of this run ended (exit code {code}); restarting it", file=sys.stderr)
        # From now on requests are refused, so no client waits for a server that does not come.
        self._socket.close()


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block, and restore them after it."""
    before = {key: os.environ.get(key) for key in (*settings, CLIENT_AUTH)}
    os.environ.update(settings)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


def _profile_url() -> str | None:
    """Return the server that the user's Prefect profile names, without importing Prefect."""
    import tomllib

    profiles = _profiles_file()
    if profiles is None:
        return None
    try:
        data = tomllib.loads(profiles.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{profiles}: Prefect's profiles cannot be read ({error}). Correct the file, or name another in"
            f" PREFECT_PROFILES_PATH."
        ) from error
    active = os.environ.get("PREFECT_PROFILE", data.get("active", ""))
    return data.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")


def _profiles_file() -> Path | None:
    """Return the file of the user's Prefect profiles; None where there is none."""
    home = os.path.expanduser(os.environ.get("PREFECT_HOME", "~/.prefect"))
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", f"{home}/profiles.toml"))
    return profiles if os.access(profiles, os.R_OK) else None


def _send_queued() -> None:
    """Send queued logs and events; Prefect's background threads would send the last ones after the server ended."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=10)
    EventsWorker.drain_all(timeout=10)


def _serve(descriptor: int, parent: int) -> None:
    die_with_parent(parent)
    with collecting_seldom():
        import uvicorn

        config = uvicorn.Config("flows.service.app:create_app", factory=True, log_level="error", lifespan="on")
        config.load()
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
