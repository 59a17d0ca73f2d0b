"""`bessemer up`: server, work pool, deployments, worker, keeper, in this order, each ready before the next begins.

`bessemer down`: the keeper goes first, what runs keeps its work and ends, then the worker, the server last.

What `bessemer up` prints when the service is up.
"""

import errno
import ipaddress
import os
import shlex
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from flows.service.api import (
    cancel_runs,
    crash_lost_runs,
    filtered,
    is_healthy,
    is_worker_online,
    wait_for_runs,
    write_automations,
)
from flows.service.app import ADDRESSES, known_addresses
from flows.service.database import (
    CONNECTION_URL,
    check_same,
    copy_database,
    database_settings,
    inherited,
    without_password,
)
from flows.service.files import (
    POOL,
    ServiceFiles,
    deployments_file,
    server_credentials,
    shipped,
    use_password,
    write_password,
)
from model.errors import Infra, InputError
from model.files import write_atomically

SERVER_APP = "flows.service.app:create_app"

START_SECONDS = 300.0

WORKER_SECONDS = 180.0

SETUP_SECONDS = 600.0

Tell = Callable[[str], None]


@dataclass(frozen=True)
class ServiceOptions:
    """What `bessemer up` is asked for."""

    host: str
    port: int
    recipe: str
    """What the deployments run unless their form says else."""
    database: str | None = None
    """`sqlite`, or the address of a PostgreSQL database; None for the one that the root's server used last."""
    password_file: Path | None = None
    """Holds what the server asks of its clients; as last time without one, at first a file that is made."""
    tls: tuple[Path, Path] | None = None
    """Certificate and key, PEM files."""
    behind_proxy: bool = False
    """A proxy that speaks TLS is between the server and everyone else."""
    addresses: tuple[str, ...] = ()
    """The addresses under which others reach the server."""


def start_service(root: Path, asked: ServiceOptions, tell: Tell) -> ServiceFiles:
    """Start what does not run yet of the service of `root`; `tell` hears each step.

    Raises InputError where the port is taken or an option is wrong, Infra where a part does not come up; what was
    started is ended again then.
    """
    files = ServiceFiles(root)
    with files.alone():
        kept = (files.server, files.worker, files.keeper)
        for process in kept:
            if process.is_stale():
                process.forget()
                tell(f"the {process.name} of an earlier `bessemer up` ended without `bessemer down`; starting another")
        if all(process.pid() is not None for process in kept):
            tell("the service is up already")
            return files
        try:
            _start(files, asked, tell)
        except BaseException:
            for process in reversed(kept):
                process.stop(seconds=10.0)
            raise
    return files


def _start(files: ServiceFiles, asked: ServiceOptions, tell: Tell) -> None:
    if files.server.pid() is None:
        database = check_same(asked.database, files.database())
        os.environ.pop(CONNECTION_URL, None)
        os.environ.update(database_settings(database))
        check_open(asked)
        check_free(asked.host, asked.port)
        password_file = asked.password_file or files.password_file() or files.own_password
        is_new = password_file == files.own_password and not password_file.exists()
        if is_new:
            write_password(password_file)
        use_password(password_file)
        files.remember_address(
            asked.host, asked.port, without_password(database), password_file, asked.tls, asked.addresses
        )
        if is_new:
            tell(_how_to_use(files, password_file))
        copy_database(Path(files.environment()["PREFECT_HOME"]))
        tell(f"starting a Prefect server on port {asked.port}")
        spawn_server(files)
    else:
        use_password(files.password_file())
    # One that runs may have been started by the keeper a moment ago.
    _wait_for_server(files)
    write_automations(files.api_url)
    if files.worker.pid() is None:
        _deploy(files, asked.recipe, tell)
        # By now, seconds later, the server has loaded the automations that are to start these again.
        lost = crash_lost_runs(files.api_url, deployed=True)
        if lost:
            tell(f"{lost} run{'s' if lost > 1 else ''} that an earlier service left behind: crashed, and started again")
        if files.nobody_reports():
            crash_lost_runs(files.api_url, deployed=False)
        tell("starting a worker")
        _wait_for_worker(files, spawn_worker(files))
    if files.keeper.pid() is None:
        words = [sys.executable, "-m", "flows.service.keeper", str(files.root)]
        files.keeper.start(words, files.environment() | secrets_of_server(files), Path.cwd())


def spawn_server(files: ServiceFiles) -> None:
    """Start the server where the root remembers it to listen; it does not answer yet."""
    host, port = files.address() or ("127.0.0.1", 0)
    environment = files.environment() | secrets_of_server(files) | {"PREFECT__SERVER_FINAL": "1"}
    words = [sys.executable, "-m", "uvicorn", "--factory", SERVER_APP, "--log-level", "warning"]
    words += ["--host", host, "--port", str(port), "--timeout-keep-alive", "5"]
    addresses, tls = files.addresses(), files.tls()
    environment[ADDRESSES] = ",".join(addresses)
    if tls is not None:
        words += ["--ssl-certfile", str(tls[0]), "--ssl-keyfile", str(tls[1])]
    if not addresses:
        words.append("--no-proxy-headers")
    files.server.start(words, environment, Path.cwd())


def spawn_worker(files: ServiceFiles) -> str:
    """Start a worker, and return the name by which the server will know it."""
    name = f"{POOL}-{int(time.time())}"
    words = [sys.executable, "-m", "flows.service.worker", name]
    files.worker.start(words, files.environment(), files.workplace())
    return name


def secrets_of_server(files: ServiceFiles) -> dict[str, str]:
    """Environment of the server, and of the keeper, which starts it again: the database and the password."""
    return inherited() | server_credentials(files.password_file())


def _deploy(files: ServiceFiles, recipe: str, tell: Tell) -> None:
    folder = Path.cwd()
    tell("writing the deployments")
    environment = {**files.environment(), "BESSEMER_RECIPE": _absolute(recipe), "PWD": str(folder)}
    files.deploy_log.unlink(missing_ok=True)
    files.remember_workplace(folder)
    template = ("--base-job-template", str(shipped("work_pool.json")))
    for words in (
        ("work-pool", "create", POOL, "--type", "process", *template, "--overwrite"),
        ("deploy", "--prefect-file", str(to_deploy(files)), "--all"),
    ):
        _prefect(files, words, environment, folder)


def to_deploy(files: ServiceFiles) -> Path:
    """A copy of `deployments/prefect.yaml` without the schedules of deployments that the server has: theirs are the
    user's, and were switched off again by each `up`."""
    file = yaml.safe_load(deployments_file().read_text(encoding="utf-8"))
    known = {one["name"] for one in filtered(f"{files.api_url}/deployments/filter", {})}
    for deployment in file["deployments"]:
        if deployment["name"] in known:
            deployment.pop("schedules", None)
    path = files.folder / "prefect.yaml"
    write_atomically(path, yaml.safe_dump(file).encode())
    return path


def _absolute(recipe: str) -> str:
    """A recipe's file by its full path, so that the worker finds it; a name that ships as it is."""
    return str(Path(recipe).resolve()) if Path(recipe).is_file() else recipe


def check_open(asked: ServiceOptions) -> None:
    """InputError where the server would be reached over the network without TLS, or by an address it cannot have."""
    known_addresses(",".join(asked.addresses))
    try:
        is_local = asked.host == "localhost" or ipaddress.ip_address(asked.host).is_loopback
    except ValueError:
        is_local = False
    if asked.tls is not None:
        if not any(address.startswith("https://") for address in asked.addresses[:1]):
            raise InputError(
                "up --tls-certificate: name the address that the certificate is for with --address https://HOST:PORT"
            )
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*asked.tls, password=lambda: "")
        except (OSError, ValueError) as error:
            raise InputError(
                f"up --tls-certificate {asked.tls[0]} --tls-key {asked.tls[1]}: no certificate with its key, PEM and"
                f" without a passphrase ({error})"
            ) from error
    elif not is_local and not asked.behind_proxy:
        raise InputError(
            f"up --host {asked.host}: the password, and with it the right to run code as you, would go over the network"
            " as it is. Give the server a certificate (--tls-certificate FILE --tls-key FILE --address"
            " https://HOST:PORT), or leave --host at 127.0.0.1 and put a proxy that speaks TLS before it. Where only"
            " that proxy reaches the address, a container's say, --behind-proxy says so."
        )


def _how_to_use(files: ServiceFiles, password_file: Path) -> str:
    lines = (
        f"a password for the server was made: {password_file} (mode 600); anyone who has it can run code as you",
        "  in the UI       give the whole line of that file, USER:PASSWORD, once for each browser",
        f"  `prefect ...`   export PREFECT_API_URL={files.api_url}",
        f'                  export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(password_file))})"',
        "  `bessemer ...`  under this root finds it by itself",
    )
    return "\n".join(lines)


def _wait_for_server(files: ServiceFiles) -> None:
    deadline = time.monotonic() + START_SECONDS
    while files.server.pid() is not None and time.monotonic() < deadline:
        if is_healthy(files.api_url):
            return
        time.sleep(0.1)
    state = f"did not answer within {START_SECONDS:.0f} s" if files.server.pid() is not None else "ended at start"
    raise Infra(
        f"the Prefect server at {files.api_url} {state}; its log {files.server.log} ends:\n{files.server.last_lines()}"
    )


def check_free(host: str, port: int) -> None:
    """Raise InputError where the server could not listen at an address, IPv4 or IPv6, that `host` means."""
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        cure = (
            "Another server holds the port; choose one with --port, or end the other (`bessemer down --root ITS_ROOT`)"
            if error.errno == errno.EADDRINUSE
            else "Name an address of this machine with --host, such as 127.0.0.1, and a port that you may use"
        )
        raise InputError(f"up --host {host} --port {port}: {error.strerror}. {cure}.") from error


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


RUN_SECONDS = 150.0
"""What a run gets to write a checkpoint: a little more than the trainer itself gets (`train.stop_seconds`)."""

STOP_SECONDS = 20.0


def stop_service(root: Path, tell: Tell, now: bool = False) -> bool:
    """Stop the service of `root`; False where nothing ran. A run that is cut short goes on from where it was.

    Raises InputError, and stops nothing, where a run that the service did not start reports to it, unless `now`.
    """
    files = ServiceFiles(root)
    with files.alone():
        if not now:
            files.check_nobody_reports()
        use_password(files.password_file())
        stale = [process for process in (files.keeper, files.worker, files.server) if process.is_stale()]
        for process in stale:
            process.forget()
            tell(f"the {process.name} had ended by itself; cleaned up")
        keeper, worker, server = files.keeper.pid(), files.worker.pid(), files.server.pid()
        if keeper is not None:
            files.keeper.stop(STOP_SECONDS)
        if worker is not None:
            if server is not None:
                _end_runs(files, tell)
            _tell_end(files.worker.stop(STOP_SECONDS), "worker", tell)
        if server is not None:
            _tell_end(files.server.stop(STOP_SECONDS), "server", tell)
    return any(pid is not None for pid in (keeper, worker, server))


def _end_runs(files: ServiceFiles, tell: Tell) -> None:
    """Cancel what runs while the worker still lives: it ends the run's processes and tells the server so."""
    count = cancel_runs(files.api_url)
    if count:
        tell(f"{count} run{'s' if count > 1 else ''} under way: keeping finished parts and the last checkpoint")
        if not wait_for_runs(files.api_url, RUN_SECONDS):
            tell(f"not ended after {RUN_SECONDS:.0f} s; killing")


def _tell_end(by_itself: bool, name: str, tell: Tell) -> None:
    tell(f"the {name} ended" if by_itself else f"the {name} did not end when asked, and was killed")


def describe_service(files: ServiceFiles) -> str:
    """The UI's address, the deployments, and what to do next."""
    deployments = yaml.safe_load(deployments_file().read_text(encoding="utf-8"))["deployments"]
    width = max(len(deployment["name"]) for deployment in deployments)
    lines = [f"  {deployment['name']:<{width}}  {deployment['description']}" for deployment in deployments]
    of_root = f" --root {files.root}"
    return "\n".join(
        [
            "",
            f"UI            {files.public_url()}/deployments",
            f"password      {files.password_file()} (anyone who has it can run code as you)",
            f"logs          {files.server.log}, {files.worker.log}",
            "deployments   (Run > Custom run opens their form)",
            *lines,
            f"next          bessemer run RECIPE{of_root}     shows its run in the UI",
            f"              bessemer down{of_root}           ends the service",
        ]
    )
