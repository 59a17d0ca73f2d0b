"""Start and stop the service of a root (`bessemer serve start`, `bessemer serve stop`).

Starting brings up server, work pool, deployments, worker and keeper in this order, each ready before the next begins.
Stopping ends the keeper first, then running runs, which keep their work, then the worker, and the server last.
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
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from flows.service.api import (
    cancel_runs,
    crash_lost_runs,
    filtered,
    is_worker_online,
    wait_for_runs,
    wait_until_healthy,
    write_automations,
)
from flows.service.app import ADDRESSES, known_addresses
from flows.service.database import (
    CONNECTION_URL,
    SQLITE,
    check_same,
    copy_database,
    database_settings,
    without_password,
)
from flows.service.files import (
    POOL,
    ServiceFiles,
    server_credentials,
    shipped,
    use_password,
    write_password,
)
from flows.service.processes import end_of
from model.errors import Infra, InputError
from model.files import write_atomically

WORKER_SECONDS = 180.0

SETUP_SECONDS = 600.0

Notify = Callable[[str], None]


@dataclass(frozen=True)
class ServiceOptions:
    """Options of `bessemer serve start`."""

    host: str
    port: int
    recipe: str
    """Recipe of the deployments by default; their form can name another."""
    database: str | None = None
    """`sqlite`, or the address of a PostgreSQL database; None for the one that the root's server used last."""
    password_file: Path | None = None
    """File of the server's password; by default the one of last time, or a new one."""
    tls: tuple[Path, Path] | None = None
    """Certificate and key, PEM files."""
    behind_proxy: bool = False
    """Whether a proxy with TLS is between the server and everyone else."""
    addresses: tuple[str, ...] = ()
    """The addresses under which others reach the server."""


def start_service(root: Path, options: ServiceOptions, notify: Notify) -> ServiceFiles:
    """Start the parts of `root`'s service that do not run yet; `notify` is called with each step.

    Raises InputError where the port is taken or an option is wrong, Infra where a part does not come up; the parts
    started so far are then stopped again.
    """
    files = ServiceFiles(root)
    with files.locked():
        parts = (files.server, files.worker, files.keeper)
        for process in parts:
            if process.is_stale():
                process.forget()
                notify(f"the {process.name} of an earlier `bessemer serve start` ended unexpectedly; starting another")
        is_whole = all(process.pid() is not None for process in parts)
        unlike = _unlike(files, options) if files.server.pid() is not None else ""
        if is_whole or unlike:
            notify(f"the {'service' if is_whole else 'server'} is already running")
        if unlike:
            stop = f"`bessemer serve stop --root {shlex.quote(str(root))}`"
            notify(f"it keeps {unlike}: {stop}, then `serve start` with these options")
        if is_whole:
            return files
        try:
            _start(files, options, notify)
        except BaseException:
            for process in reversed(parts):
                process.stop(seconds=10.0)
            raise
    return files


def _unlike(files: ServiceFiles, options: ServiceOptions) -> str:
    """Return in what a running server, and deployments whose worker runs, differ from the options of this start, which
    do not apply to them."""
    known, asked = files.known, _absolute(options.recipe)
    # Without a worker the deployments are written again.
    recipe = known.recipe if files.worker.pid() is not None else None
    database, password = known.database or SQLITE, (files.password_file() or files.own_password).resolve()
    pairs = (
        ("port", known.port, options.port),
        ("host", known.host, options.host),
        ("recipe", recipe or asked, asked),
        ("database", database, without_password(options.database or database)),
        ("password file", password, options.password_file or password),
        ("certificate", known.tls, None if options.tls is None else [*map(str, options.tls)]),
        ("addresses", [*known.addresses], [address.rstrip("/") for address in options.addresses]),
    )
    return ", ".join(f"{name} {_shown(has)} and not {_shown(wants)}" for name, has, wants in pairs if has != wants)


def _shown(value: object) -> str:
    """Return an option for a message; `none` where it is not given."""
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple | list) else str(value or "none")


def _start(files: ServiceFiles, options: ServiceOptions, notify: Notify) -> None:
    if files.server.pid() is None:
        database = check_same(options.database, files.known.database)
        os.environ.pop(CONNECTION_URL, None)
        os.environ.update(database_settings(database))
        check_open(options)
        check_free(options.host, options.port)
        password_file = options.password_file or files.password_file() or files.own_password
        is_new = password_file == files.own_password and not password_file.exists()
        if is_new:
            write_password(password_file)
        use_password(password_file)
        known = replace(
            files.known,
            host=options.host,
            port=options.port,
            database=without_password(database),
            password_file=str(password_file),
            tls=[str(path) for path in options.tls] if options.tls is not None else None,
            addresses=[address.rstrip("/") for address in options.addresses],
        )
        files.remember(known)
        if is_new:
            notify(_how_to_use(files, password_file))
        copy_database(Path(files.environment()["PREFECT_HOME"]))
        notify(f"starting a Prefect server on port {options.port}")
        spawn_server(files)
    else:
        use_password(files.password_file())
    # A running server may have been started by the keeper a moment ago.
    wait_until_healthy(files.api_url, lambda: files.server.pid() is not None, files.server.end_of_log)
    write_automations(files.api_url)
    if files.worker.pid() is None:
        _deploy(files, options.recipe, notify)
        # By now the server has loaded the automations that restart these runs.
        lost = crash_lost_runs(files.api_url, deployed=True)
        if lost:
            notify(
                f"{lost} run{'s' if lost > 1 else ''} left behind by an earlier service: marked as crashed,"
                f" and restarted"
            )
        if files.nobody_reports():
            crash_lost_runs(files.api_url, deployed=False)
        notify("starting a worker")
        _wait_for_worker(files, spawn_worker(files))
    if files.keeper.pid() is None:
        words = [sys.executable, "-m", "flows.service.keeper", str(files.root)]
        files.keeper.start(words, files.environment() | secrets_of_server(files), Path.cwd())


def spawn_server(files: ServiceFiles) -> None:
    """Start the server at the recorded address; it does not answer yet."""
    known = files.known
    environment = files.environment() | secrets_of_server(files) | {"PREFECT__SERVER_FINAL": "1"}
    words = [sys.executable, "-m", "uvicorn", "--factory", "flows.service.app:create_app", "--log-level", "warning"]
    words += ["--host", known.host, "--port", str(known.port), "--timeout-keep-alive", "5"]
    environment[ADDRESSES] = ",".join(known.addresses)
    if known.tls is not None:
        words += ["--ssl-certfile", known.tls[0], "--ssl-keyfile", known.tls[1]]
    if not known.addresses:
        words.append("--no-proxy-headers")
    files.server.start(words, environment, Path.cwd())


def spawn_worker(files: ServiceFiles) -> str:
    """Start a worker, and return the name under which it registers with the server."""
    name = f"{POOL}-{int(time.time())}"
    words = [sys.executable, "-m", "flows.service.worker", name]
    files.worker.start(words, files.environment(), Path(files.known.workplace or Path.cwd()))
    return name


def secrets_of_server(files: ServiceFiles) -> dict[str, str]:
    """Return the environment of the server, and of the keeper, which restarts it: database and password."""
    database = {CONNECTION_URL: os.environ[CONNECTION_URL]} if CONNECTION_URL in os.environ else {}
    return database | server_credentials(files.password_file())


def _deploy(files: ServiceFiles, recipe: str, notify: Notify) -> None:
    folder = Path.cwd()
    notify("writing the deployments")
    environment = {**files.environment(), "BESSEMER_RECIPE": _absolute(recipe), "PWD": str(folder)}
    files.deploy_log.unlink(missing_ok=True)
    files.remember(replace(files.known, workplace=str(folder), recipe=_absolute(recipe)))
    template = ("--base-job-template", str(shipped("work_pool.json")))
    for words in (
        ("work-pool", "create", POOL, "--type", "process", *template, "--overwrite"),
        ("deploy", "--prefect-file", str(write_deployments(files)), "--all"),
    ):
        _prefect(files, words, environment, folder)


def write_deployments(files: ServiceFiles) -> Path:
    """Write a copy of `deployments/prefect.yaml` without the schedules of deployments that the server has, and
    return its path: existing schedules are the user's, and deploying them again would switch them off."""
    file = yaml.safe_load(shipped("prefect.yaml").read_text(encoding="utf-8"))
    known = {one["name"] for one in filtered(f"{files.api_url}/deployments/filter", {})}
    for deployment in file["deployments"]:
        if deployment["name"] in known:
            deployment.pop("schedules", None)
    path = files.folder / "prefect.yaml"
    write_atomically(path, yaml.safe_dump(file).encode())
    return path


def _absolute(recipe: str) -> str:
    """Return the full path of a recipe's file, so that the worker finds it; a shipped name unchanged."""
    return str(Path(recipe).resolve()) if Path(recipe).is_file() else recipe


def check_open(options: ServiceOptions) -> None:
    """Raise InputError where the server would be reached over the network without TLS, or has an invalid address."""
    known_addresses(",".join(options.addresses))
    try:
        is_local = options.host == "localhost" or ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        is_local = False
    if options.tls is not None:
        if not any(address.startswith("https://") for address in options.addresses[:1]):
            raise InputError(
                "serve start --tls-certificate: name the address that the certificate is for with --address https://HOST:PORT"
            )
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*options.tls, password=lambda: "")
        except (OSError, ValueError) as error:
            raise InputError(
                f"serve start --tls-certificate {options.tls[0]} --tls-key {options.tls[1]}: no certificate with its"
                f" key, PEM and without a passphrase ({error})"
            ) from error
    elif not is_local and not options.behind_proxy:
        raise InputError(
            f"serve start --host {options.host}: the password, and with it the right to run code as you, would go"
            " over the network unencrypted. Give the server a certificate (--tls-certificate FILE --tls-key FILE"
            " --address https://HOST:PORT), or leave --host at 127.0.0.1 and put a proxy with TLS in front of it. If"
            " only that proxy can reach the address, for example of a container, use --behind-proxy."
        )


def _how_to_use(files: ServiceFiles, password_file: Path) -> str:
    lines = (
        f"created a password for the server: {password_file} (mode 600); anyone who has it can run code as you",
        "  in the UI       enter the whole line of that file, USER:PASSWORD, once for each browser",
        f"  `prefect ...`   export PREFECT_API_URL={files.api_url}",
        f'                  export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(password_file))})"',
        "  `bessemer ...`  under this root finds it automatically",
    )
    return "\n".join(lines)


def check_free(host: str, port: int) -> None:
    """Raise InputError where the server could not listen at an address, IPv4 or IPv6, of `host`."""
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        hint = (
            "Another server holds the port; choose one with --port, or stop it (`bessemer serve stop --root ITS_ROOT`)"
            if error.errno == errno.EADDRINUSE
            else "Name an address of this machine with --host, such as 127.0.0.1, and a port that you may use"
        )
        raise InputError(f"serve start --host {host} --port {port}: {error.strerror}. {hint}.") from error


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
        raise Infra(f"`prefect {' '.join(words)}` ended with exit code {done.returncode}; {end_of(files.deploy_log)}")


def _wait_for_worker(files: ServiceFiles, name: str) -> None:
    deadline = time.monotonic() + WORKER_SECONDS
    while files.worker.pid() is not None and time.monotonic() < deadline:
        if is_worker_online(files.api_url, POOL, name):
            return
        time.sleep(0.25)
    raise Infra(f"the worker did not come up within {WORKER_SECONDS:.0f} s; {files.worker.end_of_log()}")


RUN_SECONDS = 150.0
"""Time for a run to write a checkpoint: a little more than the trainer itself gets (`train.stop_seconds`)."""

STOP_SECONDS = 20.0


def stop_service(root: Path, notify: Notify, now: bool = False) -> bool:
    """Stop the service of `root`, and return False where nothing ran. An interrupted run continues from its checkpoint.

    Raises InputError, and stops nothing, where a run that the service did not start reports to it, unless `now`.
    """
    files = ServiceFiles(root)
    with files.locked():
        if not now:
            files.check_nobody_reports()
        stale = [process for process in (files.keeper, files.worker, files.server) if process.is_stale()]
        for process in stale:
            process.forget()
            notify(f"the {process.name} had ended by itself; cleaned up")
        keeper, worker, server = files.keeper.pid(), files.worker.pid(), files.server.pid()
        if keeper is not None:
            files.keeper.stop(STOP_SECONDS)
        if worker is not None:
            if server is not None:
                _end_runs(files, notify)
            _report_end(files.worker.stop(STOP_SECONDS), "worker", notify)
        if server is not None:
            _report_end(files.server.stop(STOP_SECONDS), "server", notify)
    return any(pid is not None for pid in (keeper, worker, server))


def _end_runs(files: ServiceFiles, notify: Notify) -> None:
    """Cancel running runs while the worker is alive, which ends their processes and reports it to the server."""
    try:
        use_password(files.password_file())
        count = cancel_runs(files.api_url)
        if count:
            notify(f"{count} run{'s' if count > 1 else ''} under way: keeping finished parts and the last checkpoint")
            if not wait_for_runs(files.api_url, RUN_SECONDS):
                notify(f"not ended after {RUN_SECONDS:.0f} s; killing")
    except (Infra, InputError) as error:
        notify(f"runs under way end with the worker, for the server cannot be asked to cancel them: {error}")


def _report_end(by_itself: bool, name: str, notify: Notify) -> None:
    notify(f"the {name} ended" if by_itself else f"the {name} did not end when asked, and was killed")


def describe_service(files: ServiceFiles) -> str:
    """Return the UI's address, the deployments, and what to do next, as text."""
    deployments = yaml.safe_load(shipped("prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    width = max(len(deployment["name"]) for deployment in deployments)
    lines = [f"  {deployment['name']:<{width}}  {deployment['description']}" for deployment in deployments]
    of_root = f" --root {shlex.quote(str(files.root))}"
    return "\n".join(
        [
            "",
            f"UI            {files.public_url()}/deployments",
            f"password      {files.password_file()} (anyone who has it can run code as you)",
            f"logs          {files.server.log}, {files.worker.log}",
            "deployments   (Run > Custom run opens their form)",
            *lines,
            f"next          bessemer run RECIPE{of_root}     shows its run in the UI",
            f"              bessemer serve stop{of_root}     stops the service",
        ]
    )
