"""What the server asks of everyone who speaks to it: `USER:PASSWORD`, in a file of the owner's alone.

It is read when it is needed, handed on in environments, and never printed, logged or written down.
"""

import os
import stat
from pathlib import Path

from model.errors import InputError

OF_CLIENTS = "PREFECT_API_AUTH_STRING"
OF_SERVER = "PREFECT_SERVER_API_AUTH_STRING"


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
    if not (user and colon and word) or "\n" in text:
        raise InputError(f"up --password-file {path}: it must hold one line, USER:PASSWORD")
    return text


def use_password(path: Path | None) -> None:
    """Have this process, and those that it starts, give the password of the file; nothing without one."""
    if path is not None:
        os.environ[OF_CLIENTS] = read_password(path)
    elif OF_SERVER in os.environ:
        os.environ[OF_CLIENTS] = os.environ[OF_SERVER]


def asked_by_server(path: Path | None) -> dict[str, str]:
    """What the server is told in its environment, so that it asks for the password."""
    return {OF_SERVER: read_password(path)} if path is not None else {}
