"""`bessemer serve`: a Prefect server with its UI, a worker and the deployments, started and stopped."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.common import DEFAULT_ROOT, CommandGroup, Json, Root, of_home, print_found

serve = typer.Typer(
    name="serve",
    cls=CommandGroup,
    help="A Prefect server with its UI, a worker and the deployments of a recipe.",
    no_args_is_help=True,
)


@serve.command()
def start(
    root: Root = DEFAULT_ROOT,
    recipe: Annotated[
        str,
        typer.Option(
            help="Recipe of the deployments unless their form names another: a file, or the name of a shipped one."
        ),
    ] = "quickstart",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server and its UI.")] = 4200,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs --tls-certificate or --behind-proxy.")
    ] = "127.0.0.1",
    database: Annotated[
        str | None,
        typer.Option(
            envvar="BESSEMER_DATABASE",
            help="postgresql://USER:PASSWORD@HOST:PORT/NAME; the last one by default, initially SQLite under the root.",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(callback=of_home, help="A file with the line USER:PASSWORD; generated under ROOT by default."),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(callback=of_home, help="The server's certificate with its chain, a PEM file; with --tls-key."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(callback=of_home, help="The key of the certificate, a PEM file.")
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="Only a proxy with TLS can reach the address of --host.")
    ] = False,
    address: Annotated[
        list[str] | None,
        typer.Option(help="https://HOST[:PORT] at which others reach the server or its proxy; repeatable."),
    ] = None,
) -> None:
    """Start a Prefect server with its UI, a worker and the deployments, in the background.

    Database, logs and pid files are under ROOT/service. Runs that you start with `bessemer run` under the same root
    appear there too. A keeper restarts server and worker when they are killed. `bessemer serve stop` stops all of them.
    The server asks for a password; anyone who has it can run code on this machine as you.
    """
    from flows.recipe.load import find_recipe, load_recipe
    from flows.runs.record import check_writable
    from flows.service.server import ServiceOptions, describe_service, start_service
    from model.errors import InputError

    check_writable(root)
    load_recipe(find_recipe(recipe), root)
    if (tls_certificate is None) != (tls_key is None):
        raise InputError("serve start: --tls-certificate and --tls-key belong together; give both or neither")
    tls = (tls_certificate.resolve(), tls_key.resolve()) if tls_certificate and tls_key else None
    password_file = password_file.resolve() if password_file else None
    options = ServiceOptions(host, port, recipe, database, password_file, tls, behind_proxy, tuple(address or ()))
    typer.echo(describe_service(start_service(root, options, typer.echo)))


@serve.command()
def stop(
    root: Root = DEFAULT_ROOT,
    now: Annotated[
        bool, typer.Option("--now", help="Stop the server even while a `bessemer run` uses it, which then fails.")
    ] = False,
) -> None:
    """Stop what `start` started, the worker first. A run in progress ends and keeps its finished parts."""
    from flows.service.server import stop_service

    if not stop_service(root, typer.echo, now):
        typer.echo(f"no service runs under {root}; `bessemer serve start` starts it")


@serve.command()
def status(root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Show whether server, worker and keeper run, and the address of the UI. Exit code 1 if they do not."""
    from flows.service.files import ServiceFiles

    files = ServiceFiles(root)
    pids = {process.name: process.pid() for process in (files.server, files.worker, files.keeper)}
    is_up = all(pid is not None for pid in pids.values())
    address = files.public_url() if pids["server"] is not None else None
    lines = [f"{name:8}{'does not run' if pid is None else f'runs, process {pid}'}" for name, pid in pids.items()]
    lines.append(
        f"ui      {address}" if address else f"`bessemer serve start --root {shlex.quote(str(root))}` starts them"
    )
    print_found({**pids, "up": is_up, "ui": address}, as_json, lambda _: typer.echo("\n".join(lines)))
    if not is_up:
        raise typer.Exit(1)
