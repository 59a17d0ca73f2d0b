"""A Prefect server of one run's own, for people who have set none up; it dies with the run, however the run dies.

Prefect's built-in ephemeral server survives a kill -9 of the flow's process (measured with 3.8.8: one orphaned
`uvicorn` a kill). Ours asks the kernel to end it with its parent; `python -m flows.private_server PORT PARENT_PID` is
the child.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from flows.service.files import PATIENT_CLIENT, ServiceFiles, standing_server
from flows.service.password import use_password
from model.errors import Infra
from model.parent_death import die_with_parent

STARTUP_SECONDS = 300.0
# Prefect's own switches for a server inside a client: no UI, no schedulers that only a standing server needs.
EPHEMERAL = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


@contextmanager
def prefect_server(root: Path | None = None) -> Iterator[str]:
    """Yields the API address of the server to use: the one that the environment names, else the one that `bessemer up`
    started for `root`, else that of the Prefect profile, else a private one that ends with this block.

    Must be entered before Prefect is imported, since it sets `PREFECT_API_URL`. Raises Infra when
    the private server does not answer within five minutes.
    """
    if os.environ.get("PREFECT_API_URL"):
        yield os.environ["PREFECT_API_URL"]
        return
    of_root = standing_server(root) if root is not None else None
    standing = of_root or _profile_url()
    if standing:
        patience = {key: value for key, value in PATIENT_CLIENT.items() if key not in os.environ}
        os.environ.update(PREFECT_API_URL=standing, **patience)
        if root is not None and of_root:
            use_password(ServiceFiles(root).password_file())
        try:
            with ServiceFiles(root).reporting() if root is not None and of_root else nullcontext():
                yield standing
        finally:
            _send_what_is_queued()
            for key in ("PREFECT_API_URL", *patience):
                del os.environ[key]
        return
    port = _free_port()
    environment = {**os.environ, **EPHEMERAL}
    words = [sys.executable, "-m", "flows.private_server", str(port), str(os.getpid())]
    # A group of its own: Ctrl-C is for the run, which still has an ending to tell the server.
    server = subprocess.Popen(words, env=environment, process_group=0)
    url = f"http://127.0.0.1:{port}/api"
    try:
        wait_until_healthy(url, lambda: server.poll() is None, "run again with -v to see its log")
        os.environ["PREFECT_API_URL"] = url
        yield url
    finally:
        _send_what_is_queued()
        os.environ.pop("PREFECT_API_URL", None)
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _profile_url() -> str | None:
    """The server that the user's Prefect profile names, found without importing Prefect."""
    import tomllib

    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = home / "profiles.toml"
    if not profiles.is_file():
        return None
    data = tomllib.loads(profiles.read_text())
    active = os.environ.get("PREFECT_PROFILE", data.get("active", ""))
    return data.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_healthy(url: str, is_running: Callable[[], bool], advice: str) -> None:
    """Wait until the server at an API address answers; Infra, ending in the advice, where it ends or does not."""
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline:
        if not is_running():
            raise Infra(f"the Prefect server for {url} ended at start; {advice}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise Infra(f"the Prefect server at {url} did not answer within {STARTUP_SECONDS:.0f} s; {advice}")


def _send_what_is_queued() -> None:
    """Prefect sends logs and events from background threads; without this the last ones find no server."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=10)
    EventsWorker.drain_all(timeout=10)


def _serve(port: int, parent: int) -> None:
    die_with_parent(signal.SIGKILL, parent)
    import uvicorn

    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=port,
        log_level="error",
        lifespan="on",
    )


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
