"""What a recipe of somebody else's may reach: the files of one folder, and public addresses of the web.

Set once for a whole process (`confine`) and never taken back, so that no code path of a run can be forgotten. What a
recipe names is checked where it is loaded, files of sources again where they are listed, and addresses where a
connection is made: what a name resolves to, and where a server redirects to, is known there alone.
"""

import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from model.config import Reach
from model.errors import RecipeError

_folder: Path | None = None

_own: set[str] = set()
"""Paths and ids of runs that the program itself writes into recipes."""

_SCHEMES = ("http", "https")

_MAGIC = re.compile(r"[*?\[]")

_TRANSLATED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
"""IPv6 addresses that stand for any of IPv4 behind a translator (RFC 6052, RFC 8215)."""


def confine(folder: Path) -> None:
    """Let recipes of this process read nothing outside of a folder but public addresses."""
    global _folder
    if not folder.is_dir():
        raise RecipeError(f"--untrusted {folder}: there is no such folder; name the one that recipes may read from")
    _folder = folder.resolve()


def allow(*words: str | Path) -> None:
    """Let recipes of this process name a path or run that the program itself writes into them, such as the model that
    a night goes on from."""
    _own.update(str(word) for word in words)


def is_confined() -> bool:
    """Whether recipes are confined."""
    return _folder is not None


def reached(config: BaseModel, place: str = "") -> Iterator[tuple[str, Reach, Any]]:
    """(path of the key, what it reaches, its value) of each key of a configuration, nested ones too, that reaches
    anything."""
    for name, field in type(config).model_fields.items():
        here, value = f"{place}.{name}" if place else name, getattr(config, name)
        reach = reach_of(field.annotation, field.metadata)
        if reach is not None and value is not None:
            yield here, reach, value
        else:
            yield from _within(value, here)


def reach_of(annotation: Any, metadata: Iterable[Any]) -> Reach | None:
    """What a field reaches: by its mark, or as a `Path` by its type."""
    marked = next((mark for mark in metadata if isinstance(mark, Reach)), None)
    return marked or (Reach.FILE if _holds_path(annotation) else None)


def check_recipe(recipe: BaseModel, origin: str) -> None:
    """Raise RecipeError where a recipe reaches what it may not; nothing where recipes are not confined."""
    if _folder is None:
        return
    for place, reach, value in reached(recipe):
        values = [value] if isinstance(value, str | Path) else list(value)
        for one in values:
            if str(one) not in _own:
                _check(f"{origin}: {place} = {str(one)!r}", reach, str(one))


def check_file(what: str, path: str | Path) -> None:
    """Raise RecipeError, which begins with `what`, where a path leads out of the folder, by `..`, a link, or a link
    within the folder that it names; nothing where recipes are not confined."""
    if _folder is None or str(path) in _own:
        return
    _check_resolved(what, os.fspath(path))
    for base, folders, names in os.walk(path):
        for name in (*folders, *names):
            _check_resolved(what, os.path.join(base, name))


def check_files(what: str, paths: Iterable[str]) -> None:
    """As `check_file`, for files that were listed."""
    if _folder is not None:
        for path in paths:
            _check_resolved(what, path)


def check_address(what: str, uri: str) -> None:
    """Raise RecipeError where an address is none of the web: others are read with this machine's credentials."""
    if _folder is None:
        return
    if uri.partition("://")[0] not in _SCHEMES or "::" in uri:  # by which `fsspec` chains filesystems
        raise RecipeError(
            f"{what}: with --untrusted a recipe reads http:// and https:// addresses alone; others are read with this"
            f" machine's credentials, or lead elsewhere. Bring the files into {_folder}, or run without --untrusted a"
            f" recipe that you trust."
        )


def public_socket(address: tuple[Any, ...]) -> socket.socket:
    """The socket for a connection to an address (`aiohttp`'s `socket_factory`); RecipeError for one that is not
    public."""
    family, kind, protocol, _, (host, *_) = address
    if not is_public(host):
        raise RecipeError(
            f"a source, benchmark or model of the recipe leads to {host}, which is not public, and --untrusted refuses"
            f" it: what answers there trusts this machine. Run without --untrusted a recipe that you trust."
        )
    return socket.socket(family, kind, protocol)


def is_public(host: str) -> bool:
    """Whether an IP address is one of the public internet: not loopback, private, link-local, shared, reserved or
    multicast, nor IPv6 that stands for IPv4 behind a translator or tunnel."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(str(address.ipv4_mapped))
        if address.sixtofour or address.teredo or any(address in network for network in _TRANSLATED):
            return False
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _check(what: str, reach: Reach, value: str) -> None:
    if reach is Reach.SOURCE and "://" in value and not value.startswith("file://"):
        check_address(what, value)
    elif reach is Reach.SOURCE:
        pattern = unquote(urlsplit(value).path) if value.startswith("file://") else os.path.expanduser(value)
        magic = _MAGIC.search(pattern)
        # What a pattern finds is checked file by file where it is listed.
        _check_resolved(what, pattern if magic is None else os.path.dirname(pattern[: magic.start()]) or ".")
    elif reach is Reach.FILE:
        check_file(what, value)
    else:
        raise RecipeError(
            f"{what}: it names {reach.value}, and --untrusted refuses that. Read it, and run without --untrusted what"
            f" you trust."
        )


def _check_resolved(what: str, path: str) -> None:
    assert _folder is not None, "only confined recipes are checked"
    found = os.path.realpath(path)
    if not Path(found).is_relative_to(_folder):
        led = f"{path} is" if found == path else f"{path} is {found},"
        raise RecipeError(
            f"{what}: {led} outside of {_folder}, and with --untrusted a recipe reads nothing outside of"
            f" that folder. Bring it there, or run without --untrusted a recipe that you trust."
        )


def _within(value: Any, place: str) -> Iterator[tuple[str, Reach, Any]]:
    if isinstance(value, BaseModel):
        yield from reached(value, place)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _within(inner, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _within(inner, f"{place}[{number}]")


def _holds_path(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, Path)
    return any(_holds_path(inner) for inner in get_args(annotation))
