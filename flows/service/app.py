"""Prefect's server behind a check of who asks: `uvicorn --factory flows.service.app:create_app`.

Anyone who may give commands to the server can run code as its owner, so it never starts without a password. A foreign
web page can reach a server on this machine too, under a name that its owner lets point here (DNS rebinding): the `Host`
of every request must therefore be an address of this server, and the `Origin` that a browser adds too.
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
"""Environment: the addresses beside its own under which the server is reached, `https://HOST[:PORT]`, with commas
between them: its names in the network, and its name behind a proxy."""
DEFAULT_PORTS = {"http": 80, "https": 443}
LONGEST_LOGGED = 200
"""Characters of a refused request's own words that are logged."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

log = logging.getLogger("bessemer.server")


def create_app() -> App:
    """Prefect's app, without answers to other origins, behind `CheckedApp`.

    Raises InputError where the environment has no password for it (PREFECT_SERVER_API_AUTH_STRING).
    """
    if not os.environ.get(SERVER_AUTH):
        raise InputError(
            "the server starts only with a password: anyone who may give it commands can run code as its owner. Set"
            f" {SERVER_AUTH} to USER:PASSWORD in its environment; `bessemer up` does it by itself"
        )
    addresses = known_addresses(os.environ.get(ADDRESSES, ""))
    # Prefect's own is any origin. Its UI is of the same origin as its API, and needs no leave.
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(sorted(addresses))
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    from prefect.server.api.server import create_app as create_prefect_app

    return CheckedApp(create_prefect_app(), addresses)


def known_addresses(text: str) -> frozenset[str]:
    """The origins that `text` lists, separated by commas; InputError for what is none."""
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
    """How browsers write an address: without the port where it is the scheme's own."""
    full = f"{scheme}://{host}:{port}"
    return frozenset((full, f"{scheme}://{host}") if port == DEFAULT_PORTS[scheme] else (full,))


def own_addresses(scheme: str, host: str, port: int) -> frozenset[str]:
    """The origins of a socket that listens at `host` and `port`: its address there, and the names of this machine."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 6:
        address = address.ipv4_mapped or address
    own = f"[{address}]" if address.version == 6 else str(address)
    return frozenset().union(*(_origins(scheme, name, port) for name in (own, "localhost", "127.0.0.1", "[::1]")))


class CheckedApp:
    """An ASGI app that passes on what was sent to an address of this server, from no other origin, and logs what it or
    the app behind it refuses."""

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
            # Before it is accepted, which the client sees as status 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        body = f'{{"detail":"{refusal}"}}'.encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Message) -> str | None:
        """Why the request is refused, in fixed words; None where it is not."""
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
    """`send`, which logs the app's own refusals: a missing or wrong password."""

    async def logged(message: Message) -> None:
        unauthorized = message["type"] == "http.response.start" and message["status"] == 401
        # 1002 and 1008 are what Prefect closes a socket with whose first message holds no right password.
        closed = message["type"] == "websocket.close" and message.get("code") in (1002, 1008)
        if unauthorized or closed:
            _log_refusal(scope, message.get("reason") or "no password, or a wrong one")
        await send(message)

    return logged


def _log_refusal(scope: Message, why: str) -> None:
    client = ":".join(map(str, scope.get("client") or ("unknown",)))
    asked = {"host": _header(scope, b"host"), "origin": _header(scope, b"origin")}
    what = f"{scope.get('method', 'WEBSOCKET')} {scope['path']!r}"[:LONGEST_LOGGED]
    log.warning("refused %s from %s: %s; %s", what, client, why, str(asked)[:LONGEST_LOGGED])
