"""The server answers its own addresses alone, from no other origin, and never without a password."""

import asyncio
import logging
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.service.app import CheckedApp, create_app, known_addresses, own_addresses
from flows.service.files import SERVER_AUTH, read_password, write_password
from model.errors import InputError

HERE = "127.0.0.1:4200"


async def _passed(scope: Any, receive: Any, send: Any) -> None:
    status = {"http": {"type": "http.response.start", "status": 200}, "websocket": {"type": "websocket.accept"}}
    await send(status[scope["type"]])


async def _unauthorized(scope: Any, receive: Any, send: Any) -> None:
    status = {
        "http": {"type": "http.response.start", "status": 401},
        "websocket": {"type": "websocket.close", "code": 1008, "reason": "Invalid token"},
    }
    await send(status[scope["type"]])


def ask(
    headers: dict[str, str], scheme: str = "http", server: tuple[str, int] = ("127.0.0.1", 4200), **more: Any
) -> Any:
    """The first message of the answer."""
    answer: list[Any] = []

    async def send(message: Any) -> None:
        answer.append(message)

    async def receive() -> Any:
        raise AssertionError

    kind = "websocket" if scheme in ("ws", "wss") else "http"
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "scheme": scheme, "server": server, "path": "/api/x", "method": "POST", "headers": raw}
    app = CheckedApp(more.get("app", _passed), known_addresses(more.get("addresses", "")))
    asyncio.run(app({**scope, "client": ("127.0.0.1", 5)}, receive, send))
    return answer[0]


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"host": HERE}, True),
        ({"host": "localhost:4200"}, True),
        ({"host": "LOCALHOST:4200"}, True),
        ({"host": "[::1]:4200"}, True),
        ({"host": HERE, "origin": f"http://{HERE}"}, True),
        ({}, False),
        ({"host": "127.0.0.1"}, False),
        ({"host": "127.0.0.1:4201"}, False),
        ({"host": "127.0.0.1:4200.evil.example"}, False),
        ({"host": "evil.example:4200"}, False),
        ({"host": "evil@127.0.0.1:4200"}, False),
        ({"host": HERE, "origin": "http://evil.example"}, False),
        ({"host": HERE, "origin": "http://127.0.0.1:4201"}, False),
        ({"host": HERE, "origin": "https://127.0.0.1:4200"}, False),
        ({"host": HERE, "origin": "null"}, False),
        ({"host": HERE, "origin": ""}, False),
    ],
)
def test_only_own_addresses_are_answered(
    headers: dict[str, str],
    passes: bool,
    scheme: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("bessemer.server"), "propagate", True)
    answer = ask(headers, scheme)
    if passes:
        assert answer.get("status") == 200 or answer["type"] == "websocket.accept"
        assert caplog.messages == []
    else:
        assert answer.get("status") == 403 or (answer["type"], answer["code"]) == ("websocket.close", 1008)
        assert "/api/x' from 127.0.0.1:5: its " in caplog.text


def test_a_socket_is_known_by_the_address_at_which_it_was_reached() -> None:
    """Of a server that listens everywhere, uvicorn names the address that this connection reached."""
    assert "http://10.0.0.7:4200" in own_addresses("http", "10.0.0.7", 4200)
    assert "http://10.0.0.7:4200" in own_addresses("http", "::ffff:10.0.0.7", 4200)
    assert "https://[fe80::1]" in own_addresses("https", "fe80::1%eth0", 443)
    assert ask({"host": "10.0.0.7:4200"}, server=("10.0.0.7", 4200))["status"] == 200
    assert ask({"host": "10.0.0.8:4200"}, server=("10.0.0.7", 4200))["status"] == 403


def test_other_addresses_are_answered_where_they_are_named() -> None:
    proxy = "https://bessemer.example.org"
    for host in ("bessemer.example.org", "bessemer.example.org:443", HERE):
        assert ask({"host": host, "origin": proxy}, addresses=proxy)["status"] == 200
    assert (
        ask({"host": "bessemer.example.org", "origin": "http://bessemer.example.org"}, addresses=proxy)["status"] == 403
    )
    assert ask({"host": "bessemer.example.org"})["status"] == 403
    for wrong in ("bessemer.example.org", "ftp://x", "https://", "https://me@x", "https://x/path", "https://x:port"):
        with pytest.raises(InputError, match="is no address of a server"):
            known_addresses(wrong)


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_what_the_app_itself_refuses_is_logged(
    scheme: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bessemer.server"), "propagate", True)
    ask({"host": HERE}, scheme, app=_unauthorized)
    assert "no password, or a wrong one" in caplog.text or "Invalid token" in caplog.text


def test_a_line_of_the_log_is_short_and_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bessemer.server"), "propagate", True)
    ask({"host": "x\x1b[31m\n" + 9999 * "y"})
    (line,) = caplog.messages
    assert len(line) < 600
    assert line.isprintable()


def test_no_server_starts_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for password in (None, ""):
        monkeypatch.setenv(SERVER_AUTH, password) if password is not None else monkeypatch.delenv(
            SERVER_AUTH, raising=False
        )
        with pytest.raises(InputError, match="starts only with a password"):
            create_app()


def test_a_password_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "service" / "password"
    makers = [threading.Thread(target=write_password, args=(file,)) for _ in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    found = read_password(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["password"]
    assert read_password(write_password(file)) == found
    user, _, word = found.partition(":")
    assert (user, len(word)) == ("bessemer", 32)
    assert read_password(write_password(tmp_path / "other")) != found
