"""`bessemer up`: server, work pool, deployments, worker, in this order, each ready before the next begins."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flows.private_server import wait_until_healthy
from flows.service.api import crash_lost_runs, is_worker_online
from flows.service.automations import write_automations
from flows.service.files import POOL, ServiceFiles, deployments_file
from model.errors import Infra, InputError

SERVER_APP = "prefect.server.api.server:create_app"
WORKER_SECONDS = 60.0
SETUP_SECONDS = 180.0

Tell = Callable[[str], None]


def start_service(root: Path, host: str, port: int, recipe: str, tell: Tell) -> ServiceFiles:
    """Start what does not run yet of the service of `root`; `tell` hears each step.

    `recipe` is what the deployments run unless their form says else. Raises InputError where the port is taken, Infra
    where a part does not come up; what was started is ended again then.
    """
    files = ServiceFiles(root)
    with files.alone():
        for process in (files.server, files.worker):
            if process.is_stale():
                process.forget()
                tell(f"the {process.name} of an earlier `bessemer up` ended without `bessemer down`; starting another")
        if files.server.pid() is not None and files.worker.pid() is not None:
            tell("the service is up already")
            return files
        try:
            _start(files, host, port, recipe, tell)
        except BaseException:
            for process in (files.worker, files.server):
                process.stop(seconds=10.0)
            raise
    return files


def _start(files: ServiceFiles, host: str, port: int, recipe: str, tell: Tell) -> None:
    folder = Path.cwd()
    if files.server.pid() is None:
        _check_free(host, port)
        files.remember_address(host, port)
        environment = {**files.environment(), "PREFECT__SERVER_FINAL": "1"}
        words = [sys.executable, "-m", "uvicorn", "--factory", SERVER_APP, "--log-level", "warning"]
        words += ["--host", host, "--port", str(port), "--timeout-keep-alive", "5"]
        tell(f"starting a Prefect server on port {port}")
        files.server.start(words, environment, folder)
        wait_until_healthy(files.api_url, lambda: files.server.pid() is not None, f"see {files.server.log}")
    write_automations(files.api_url)
    lost = crash_lost_runs(files.api_url)
    if lost:
        tell(f"{lost} run{'s' if lost > 1 else ''} that an earlier service left behind: crashed, and started again")
    tell("writing the deployments")
    environment = {**files.environment(), "BESSEMER_RECIPE": _absolute(recipe), "PWD": str(folder)}
    files.deploy_log.unlink(missing_ok=True)
    for words in (
        ("work-pool", "create", POOL, "--type", "process", "--overwrite"),
        ("deploy", "--prefect-file", str(deployments_file()), "--all"),
    ):
        _prefect(files, words, environment, folder)
    tell("starting a worker")
    words = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--name", f"{POOL}-{int(time.time())}"]
    files.worker.start(words, files.environment(), folder)
    _wait_for_worker(files, words[-1])


def _absolute(recipe: str) -> str:
    """A recipe's file by its full path, so that the worker finds it; a name that ships as it is."""
    return str(Path(recipe).resolve()) if Path(recipe).is_file() else recipe


def _check_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(
                f"up --host {host} --port {port}: {error.strerror}. Another server may hold the port; choose one with"
                f" --port, or end the other (`bessemer down --root ITS_ROOT`)."
            ) from error


def _prefect(files: ServiceFiles, words: Sequence[str], environment: dict[str, str], folder: Path) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", *words]
    with files.deploy_log.open("ab") as log:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=SETUP_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        end = "\n".join(files.deploy_log.read_text(errors="replace").splitlines()[-12:])
        raise Infra(f"`prefect {' '.join(words)}` ended with exit code {done.returncode}:\n{end}")


def _wait_for_worker(files: ServiceFiles, name: str) -> None:
    deadline = time.monotonic() + WORKER_SECONDS
    while time.monotonic() < deadline:
        if files.worker.pid() is None:
            break
        if is_worker_online(files.api_url, POOL, name):
            return
        time.sleep(0.25)
    raise Infra(
        f"the worker did not come up within {WORKER_SECONDS:.0f} s; its log {files.worker.log} ends:\n"
        f"{files.worker.last_lines()}"
    )
