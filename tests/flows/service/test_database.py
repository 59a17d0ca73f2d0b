"""The database of the server is named by its address, which is shown without its password."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.service.database import CONNECTION_URL, check_same, database_settings, without_password
from flows.service.files import ServiceFiles
from model.errors import Infra, InputError


def test_sqlite_asks_for_nothing() -> None:
    assert database_settings("sqlite") == {}


@contextmanager
def postgresql(answer: bytes) -> Iterator[int]:
    """The port of a server that takes one connection without TLS and answers its first message."""

    def serve(listening: socket.socket) -> None:
        with listening.accept()[0] as client:
            first = client.recv(8)
            if first == struct.pack("!II", 8, 80877103):  # may it be TLS?
                client.sendall(b"N")
                first = client.recv(8)
            client.recv(struct.unpack("!I", first[:4])[0] - 8)
            client.sendall(answer)
            client.recv(1024)  # its goodbye

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, args=(listening,))
        serving.start()
        yield listening.getsockname()[1]
        serving.join()


def message(kind: bytes, body: bytes) -> bytes:
    """Of PostgreSQL's protocol, version 3: a letter, the length with its own four bytes, the body."""
    return kind + struct.pack("!I", len(body) + 4) + body


LET_IN = message(b"R", struct.pack("!I", 0)) + message(b"S", b"server_version\x0015.0\x00") + message(b"Z", b"I")


def refused(code: bytes, text: bytes) -> bytes:
    return message(b"E", b"SFATAL\x00C" + code + b"\x00M" + text + b"\x00\x00")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
def test_an_address_is_reported_to_prefect_as_it_takes_it(scheme: str) -> None:
    with postgresql(LET_IN) as port:
        found = database_settings(f"{scheme}://me:word@127.0.0.1:{port}/runs")
    assert found == {CONNECTION_URL: f"postgresql+asyncpg://me:word@127.0.0.1:{port}/runs"}


@pytest.mark.parametrize(
    ("answer", "error", "explained"),
    [
        (
            refused(b"28P01", b'password authentication failed for user "me"'),
            InputError,
            "refuses the user or the pass",
        ),
        (refused(b"28000", b'role "me" does not exist'), InputError, "refuses the user or the password"),
        (refused(b"3D000", b'database "runs" does not exist'), InputError, "create it first"),
        (refused(b"53300", b"too many clients already"), Infra, "too many clients"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Infra, "no PostgreSQL answers"),
    ],
)
def test_what_postgresql_refuses_is_explained_without_the_password(
    answer: bytes, error: type[Exception], explained: str
) -> None:
    with postgresql(answer) as port, pytest.raises(error, match=explained) as reported:
        database_settings(f"postgresql://me:word@127.0.0.1:{port}/runs")
    assert f"serve start --database postgresql://me@127.0.0.1:{port}/runs: " in str(reported.value)
    assert "me:word" not in str(reported.value)


def test_nobody_at_the_address_is_reported_without_the_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(Infra, match=f"no PostgreSQL answers at 127.0.0.1:{port}") as reported:
        database_settings(f"postgresql://me:word@127.0.0.1:{port}/runs")
    assert "word" not in str(reported.value)


@pytest.mark.parametrize(
    "address", ["mysql://me:word@host/runs", "me:word@host/runs", "postgresql://me:word@host", "postgresql://h:word/r"]
)
def test_what_is_no_address_is_refused_without_the_password(address: str) -> None:
    with pytest.raises(InputError, match="write postgresql://USER:PASSWORD@HOST:PORT/NAME, or sqlite") as reported:
        database_settings(address)
    assert "me:word" not in str(reported.value)


def test_the_password_is_not_written_down() -> None:
    assert without_password("postgresql+asyncpg://me:word@host:5433/runs") == "postgresql://me@host:5433/runs"
    assert without_password("postgres://host/runs") == "postgresql://host/runs"
    assert without_password("postgres://me:word@[::1]:5433/runs") == "postgresql://me@[::1]:5433/runs"


def test_a_root_is_not_brought_up_on_another_database_by_forgetting() -> None:
    assert check_same(None, None) == "sqlite"
    assert check_same(None, "sqlite") == "sqlite"
    assert check_same("sqlite", "postgresql://host/runs") == "sqlite"
    with pytest.raises(InputError, match="are in the database postgresql://host/runs"):
        check_same(None, "postgresql://host/runs")


def test_another_servers_database_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION_URL, "postgresql+asyncpg://another")
    assert CONNECTION_URL not in ServiceFiles(tmp_path).environment()
