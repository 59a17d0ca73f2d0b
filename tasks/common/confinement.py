"""What an untrusted recipe may read: the files of one folder, and public addresses of the web.

`confine` applies to the whole process and cannot be undone, so that no code path of a run is left out. What a recipe
names is checked when it is loaded, files of sources again when they are listed, and addresses when a connection is
made: only then is known what a name resolves to and where a server redirects to."""

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
"""Paths and run ids that the program itself writes into recipes."""

_SCHEMES = ("http", "https")

_MAGIC = re.compile(r"[*?\[]")

_TRANSLATED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
"""IPv6 addresses that a translator maps to any IPv4 address (RFC 6052, RFC 8215)."""


def confine(folder: Path) -> None:
    """Restrict the recipes of this process to the files of a folder and to public addresses."""
    global _folder
    if not folder.is_dir():
        raise RecipeError(f"--untrusted {folder}: there is no such folder; name the one that recipes may read from")
    _folder = folder.resolve()


def allow(*words: str | Path) -> None:
    """Allow paths or run ids that the program itself writes into recipes, such as the model from which a nightly run
    continues."""
    _own.update(str(word) for word in words)


def is_confined() -> bool:
    return _folder is not None


def external_references(config: BaseModel, place: str = "") -> Iterator[tuple[str, Reach, Any]]:
    """Yield (path of the key, kind of resource, value) for each key of a configuration, nested ones too, that names a
    resource outside of the recipe."""
    for name, field in type(config).model_fields.items():
        here, value = f"{place}.{name}" if place else name, getattr(config, name)
        reach = reach_of(field.annotation, field.metadata)
        if reach is not None and value is not None:
            yield here, reach, value
        else:
            yield from _references_within(value, here)


def reach_of(annotation: Any, metadata: Iterable[Any]) -> Reach | None:
    """Return the kind of resource that a field names, by its annotation, or as a `Path` by its type; None if it names
    none."""
    marked = next((mark for mark in metadata if isinstance(mark, Reach)), None)
    return marked or (Reach.FILE if _holds_path(annotation) else None)


def check_recipe(recipe: BaseModel, origin: str) -> None:
    """Raise RecipeError if recipes are confined and this one names a resource that it may not read."""
    if _folder is None:
        return
    for place, reach, value in external_references(recipe):
        values = [value] if isinstance(value, str | Path) else list(value)
        for one in values:
            if str(one) not in _own:
                _check(f"{origin}: {place} = {str(one)!r}", reach, str(one))


def check_file(what: str, path: str | Path) -> None:
    """Raise RecipeError, which begins with `what`, if recipes are confined and a path leads out of the folder: by `..`,
    by a link, or by a link inside the folder that it names."""
    if _folder is None or str(path) in _own:
        return
    _check_resolved(what, os.fspath(path))
    for base, folders, names in os.walk(path):
        for name in (*folders, *names):
            _check_resolved(what, os.path.join(base, name))


def check_files(what: str, paths: Iterable[str]) -> None:
    """Check files that were listed, as `check_file` does."""
    if _folder is not None:
        for path in paths:
            _check_resolved(what, path)


def check_address(what: str, uri: str) -> None:
    """Raise RecipeError if recipes are confined and an address is not http(s): others are read with this machine's
    credentials."""
    if _folder is None:
        return
    if uri.partition("://")[0] not in _SCHEMES or "::" in uri:  # `fsspec` chains filesystems by ::
        raise RecipeError(
            f"{what}: with --untrusted a recipe reads only http:// and https:// addresses; others are read with this"
            f" machine's credentials, or lead elsewhere. Copy the files into {_folder}, or run a recipe that you trust"
            f" without --untrusted."
        )


def public_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return the socket for a connection to an address (`aiohttp`'s `socket_factory`).

    Raises RecipeError for an address that is not public.
    """
    family, kind, protocol, _, (host, *_) = address
    if not is_public(host):
        raise RecipeError(
            f"a source, benchmark or model of the recipe leads to {host}, which is not public, and --untrusted refuses"
            f" it: a server there may trust this machine. Run a recipe that you trust without --untrusted."
        )
    return socket.socket(family, kind, protocol)


def is_public(host: str) -> bool:
    """Return whether an IP address belongs to the public internet: not loopback, private, link-local, shared, reserved
    or multicast, and not an IPv6 address that a translator or tunnel maps to IPv4."""
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
        # The files that a pattern matches are checked one by one when they are listed.
        _check_resolved(what, pattern if magic is None else os.path.dirname(pattern[: magic.start()]) or ".")
    elif reach is Reach.FILE:
        check_file(what, value)
    else:
        raise RecipeError(
            f"{what}: it names {reach.value}, and --untrusted refuses that. Read it, and if you trust it, run it"
            f" without --untrusted."
        )


def _check_resolved(what: str, path: str) -> None:
    assert _folder is not None, "only confined recipes are checked"
    found = os.path.realpath(path)
    if not Path(found).is_relative_to(_folder):
        location = f"{path} is" if found == path else f"{path} is {found},"
        raise RecipeError(
            f"{what}: {location} outside of {_folder}, and with --untrusted a recipe reads nothing outside of"
            f" that folder. Copy it there, or run a recipe that you trust without --untrusted."
        )


def _references_within(value: Any, place: str) -> Iterator[tuple[str, Reach, Any]]:
    if isinstance(value, BaseModel):
        yield from external_references(value, place)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _references_within(inner, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _references_within(inner, f"{place}[{number}]")


def _holds_path(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, Path)
    return any(_holds_path(inner) for inner in get_args(annotation))
