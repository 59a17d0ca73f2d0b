"""The database of the server is named by its address, which is told without its password."""

import socket
from pathlib import Path

import pytest

from flows.service.database import CONNECTION_URL, check_same, database_settings, without_password
from flows.service.files import ServiceFiles
from model.errors import Infra, InputError


def test_sqlite_asks_for_nothing() -> None:
    assert database_settings("sqlite") == {}


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
def test_an_address_is_told_to_prefect_as_it_takes_it(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        found = database_settings(f"{scheme}://me:word@127.0.0.1:{port}/runs")
    assert found == {CONNECTION_URL: f"postgresql+asyncpg://me:word@127.0.0.1:{port}/runs"}


def test_nobody_at_the_address_is_told_without_the_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(Infra, match=f"nobody answers at 127.0.0.1:{port}") as told:
        database_settings(f"postgresql://me:word@127.0.0.1:{port}/runs")
    assert "word" not in str(told.value)


@pytest.mark.parametrize(
    "address", ["mysql://me:word@host/runs", "me:word@host/runs", "postgresql://me:word@host", "postgresql://h:word/r"]
)
def test_what_is_no_address_is_refused_without_the_password(address: str) -> None:
    with pytest.raises(InputError, match="write postgresql://USER:PASSWORD@HOST:PORT/NAME, or sqlite") as told:
        database_settings(address)
    assert "me:word" not in str(told.value)


def test_the_password_is_not_written_down() -> None:
    assert without_password("postgresql+asyncpg://me:word@host:5433/runs") == "postgresql://me@host:5433/runs"
    assert without_password("postgres://host/runs") == "postgresql://host/runs"


def test_a_root_is_not_brought_up_on_another_database_by_forgetting() -> None:
    assert check_same(None, None) == "sqlite"
    assert check_same(None, "sqlite") == "sqlite"
    assert check_same("sqlite", "postgresql://host/runs") == "sqlite"
    with pytest.raises(InputError, match="stand in the database postgresql://host/runs"):
        check_same(None, "postgresql://host/runs")


def test_another_servers_database_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION_URL, "postgresql+asyncpg://another")
    assert CONNECTION_URL not in ServiceFiles(tmp_path).environment()
