"""What the server asks of everyone who speaks to it: `USER:PASSWORD`, in a file of the owner's alone.

It is read when it is needed, handed on in environments, and never printed, logged or written down.
"""

import os
import secrets
import stat
import tempfile
from pathlib import Path

from model.durable import link_or_copy, sync_file
from model.errors import InputError

OF_CLIENTS = "PREFECT_API_AUTH_STRING"
OF_SERVER = "PREFECT_SERVER_API_AUTH_STRING"


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
        os.environ[OF_CLIENTS] = read_password(path)


def asked_by_server(path: Path | None) -> dict[str, str]:
    """Environment with which the server asks for the password of the file; empty without one."""
    return {OF_SERVER: read_password(path)} if path is not None else {}
