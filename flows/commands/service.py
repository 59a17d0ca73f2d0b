"""The standing service: a Prefect server with its UI and a worker, up and down."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.common import DEFAULT_ROOT, Json, Root, print_json, told_errors

DEFAULT_PORT = 4200


def up(
    root: Root = DEFAULT_ROOT,
    recipe: Annotated[
        str, typer.Option(help="What the deployments run unless their form says else: a recipe file, or a shipped one.")
    ] = "quickstart",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server and its UI.")] = DEFAULT_PORT,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; another than loopback needs --tls-certificate or --behind-proxy."),
    ] = "127.0.0.1",
    database: Annotated[
        str | None,
        typer.Option(
            envvar="BESSEMER_DATABASE",
            help="postgresql://USER:PASSWORD@HOST:PORT/NAME; as last time by default, at first SQLite under the root.",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(help="A file with the line USER:PASSWORD, which the server asks for; made under ROOT by default."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="The server's certificate with its chain, a PEM file; with --tls-key.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate, a PEM file.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="Only a proxy that speaks TLS reaches the address of --host.")
    ] = False,
    address: Annotated[
        list[str] | None,
        typer.Option(help="https://HOST[:PORT] by which others reach the server or its proxy; may be repeated."),
    ] = None,
) -> None:
    """Start a Prefect server with its UI, a worker and the deployments, and leave them running.

    Everything lies under ROOT/service: database, logs, pid files. Runs that you start with `bessemer run` under the
    same root appear there too. A keeper starts server and worker again when they are killed. `bessemer down` ends all.
    The server asks for a password; anyone who has it can run code on this machine as you.
    """
    with told_errors():
        from flows.recipe.load import find_recipe, load_recipe
        from flows.runs.record import check_writable
        from flows.service.server import ServiceOptions, start_service
        from model.errors import InputError

        root = root.resolve()
        check_writable(root)
        load_recipe(find_recipe(recipe), root)
        if (tls_certificate is None) != (tls_key is None):
            raise InputError("up: --tls-certificate and --tls-key belong together; give both or neither")
        tls = (tls_certificate.resolve(), tls_key.resolve()) if tls_certificate and tls_key else None
        password_file = password_file.resolve() if password_file else None
        asked = ServiceOptions(host, port, recipe, database, password_file, tls, behind_proxy, tuple(address or ()))
        files = start_service(root, asked, typer.echo)
        from flows.service.server import describe_service

        typer.echo(describe_service(files))


def down(
    root: Root = DEFAULT_ROOT,
    now: Annotated[
        bool, typer.Option("--now", help="End the server even while a `bessemer run` reports to it, which then fails.")
    ] = False,
) -> None:
    """End what `up` started: the worker first, then the server. A run under way keeps its finished parts and ends."""
    with told_errors():
        from flows.service.server import stop_service

        if not stop_service(root.resolve(), typer.echo, now):
            typer.echo(f"nothing is up under {root}; `bessemer up` starts it")


def status(root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Say whether server, worker and keeper of a root run, and where the UI is. Exit code 1 where they do not."""
    with told_errors():
        from flows.service.files import ServiceFiles

        files = ServiceFiles(root.resolve())
        pids = {process.name: process.pid() for process in (files.server, files.worker, files.keeper)}
        is_up = all(pid is not None for pid in pids.values())
        if as_json:
            print_json({**pids, "up": is_up, "ui": files.public_url() if pids["server"] is not None else None})
        else:
            for name, pid in pids.items():
                typer.echo(f"{name:8}{f'runs, process {pid}' if pid is not None else 'does not run'}")
            typer.echo(
                f"ui      {files.public_url()}"
                if pids["server"] is not None
                else f"`bessemer up --root {root}` starts them"
            )
        if not is_up:
            raise typer.Exit(1)
