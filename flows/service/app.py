"""Prefect's server behind a check of each request: `uvicorn --factory flows.service.app:create_app`.

Anyone who may send commands to the server can run code as its owner, so it never starts without a password. A foreign
web page can reach a server on this machine too, under a domain that resolves to it (DNS rebinding): the `Host` of every
request, and the `Origin` that a browser adds, must therefore be an address of this server.
"""

import ipaddress
import logging
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from flows.service.files import SERVER_AUTH
from model.errors import InputError

ADDRESSES = "BESSEMER_SERVER_ADDRESSES"
"""Environment variable of the other addresses under which the server is reached, `https://HOST[:PORT]`, separated by
commas: its names in the network, and its name behind a proxy."""
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_LOGGED = 200
"""Characters of a refused request that are logged."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

log = logging.getLogger("bessemer.server")


def create_app() -> App:
    """Return Prefect's app behind `CheckedApp`, without answers to other origins.

    Raises InputError where the environment has no password for it (PREFECT_SERVER_API_AUTH_STRING).
    """
    if not os.environ.get(SERVER_AUTH):
        raise InputError(
            "the server starts only with a password: anyone who may send it commands can run code as its owner. Set"
            f" {SERVER_AUTH} to USER:PASSWORD in its environment; `bessemer serve start` does so"
        )
    addresses = known_addresses(os.environ.get(ADDRESSES, ""))
    # Prefect's default allows any origin. Its UI has the same origin as its API and needs no permission.
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(sorted(addresses))
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    from prefect.server.api.server import create_app as create_prefect_app

    return CheckedApp(create_prefect_app(), addresses)


def known_addresses(text: str) -> frozenset[str]:
    """Return the origins that `text` lists, separated by commas; InputError for an invalid one."""
    return frozenset(form for part in text.split(",") if part.strip() for form in _read_address(part.strip()))


def _read_address(address: str) -> frozenset[str]:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.username or parts.path not in ("", "/"):
        raise InputError(f"{address!r} is no address of a server; write https://HOST or https://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return _origins(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme])


def _origins(scheme: str, host: str, port: int) -> frozenset[str]:
    """Return an address as browsers write it: also without the port where it is the scheme's default."""
    full = f"{scheme}://{host}:{port}"
    return frozenset((full, f"{scheme}://{host}") if port == DEFAULT_PORTS[scheme] else (full,))


def own_addresses(scheme: str, host: str, port: int) -> frozenset[str]:
    """Return the origins of a socket that listens at `host` and `port`: its address, and the names of this machine."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 6:
        address = address.ipv4_mapped or address
    own = f"[{address}]" if address.version == 6 else str(address)
    return frozenset().union(*(_origins(scheme, name, port) for name in (own, "localhost", "127.0.0.1", "[::1]")))


class CheckedApp:
    """An ASGI app that passes on requests to an address of this server and from no other origin, and logs refusals."""

    def __init__(self, app: App, addresses: frozenset[str]) -> None:
        self._app = app
        self._addresses = addresses

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _logging(scope, send))
            return
        _log_refusal(scope, refusal)
        if scope["type"] == "websocket":
            # Closed before it is accepted, which the client sees as status 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        body = f'{{"detail":"{refusal}"}}'.encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Message) -> str | None:
        """Return why the request is refused, as a fixed text; None where it is allowed."""
        scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
        allowed = self._addresses | own_addresses(scheme, *scope["server"])
        hosts, origins = _header(scope, b"host"), _header(scope, b"origin")
        if len(hosts) != 1 or hosts[0] not in {address.partition("://")[2] for address in allowed}:
            return "its Host is no address of this server"
        if len(origins) > 1 or not allowed.issuperset(origins):
            return "its Origin is no address of this server"
        return None


def _header(scope: Message, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip().lower() for key, value in scope["headers"] if key == name]


def _logging(scope: Message, send: Send) -> Send:
    """Return `send` wrapped to log the app's own refusals: a missing or wrong password."""

    async def logged(message: Message) -> None:
        unauthorized = message["type"] == "http.response.start" and message["status"] == 401
        # Prefect closes a socket with 1002 or 1008 if its first message has no valid password.
        closed = message["type"] == "websocket.close" and message.get("code") in (1002, 1008)
        if unauthorized or closed:
            _log_refusal(scope, message.get("reason") or "no password, or a wrong one")
        await send(message)

    return logged


def _log_refusal(scope: Message, why: str) -> None:
    client = ":".join(map(str, scope.get("client") or ("unknown",)))
    headers = {"host": _header(scope, b"host"), "origin": _header(scope, b"origin")}
    what = f"{scope.get('method', 'WEBSOCKET')} {scope['path']!r}"[:MAX_LOGGED]
    log.warning("refused %s from %s: %s; %s", what, client, why, str(headers)[:MAX_LOGGED])
