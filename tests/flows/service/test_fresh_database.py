"""A root's first Prefect database is copied from the user's cache, and no harm comes of a cache that is damaged."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from flows.service.database import copy_database, keep_database
from flows.service.local_server import prefect_server


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path / "cache" / "bessemer"


def database(home: Path, *statements: str) -> Path:
    home.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as made:
        for statement in ("CREATE TABLE configuration (key TEXT)", *statements):
            made.execute(statement)
        made.commit()
    return home


def rows(home: Path, table: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as opened:
        return opened.execute(f"SELECT * FROM {table}").fetchall()


def test_a_copy_has_all_but_the_keys_of_one_server(cache: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert copy_database(first)  # nothing is kept yet
    database(first, "INSERT INTO configuration VALUES ('KEY')", "CREATE TABLE t (n)", "INSERT INTO t VALUES (7)")
    keep_database(first)
    assert not copy_database(second)
    assert (rows(second, "t"), rows(second, "configuration"), rows(first, "configuration")) == ([(7,)], [], [("KEY",)])


def test_what_a_root_has_stays(cache: Path, tmp_path: Path) -> None:
    keep_database(database(tmp_path / "kept"))
    own = database(tmp_path / "own", "CREATE TABLE mine (n)")
    assert not copy_database(own)
    assert rows(own, "mine") == []


def test_a_damaged_cache_is_passed_over_and_replaced(cache: Path, tmp_path: Path) -> None:
    keep_database(database(tmp_path / "made"))
    (kept,) = cache.iterdir()
    kept.write_bytes(b"no database, but 4,096 bytes long".ljust(4096, b"."))
    assert copy_database(tmp_path / "home")
    assert os.listdir(tmp_path / "home") == []
    keep_database(tmp_path / "made")
    assert not copy_database(tmp_path / "home")


def test_another_database_than_sqlite_is_left_alone(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_database(database(tmp_path / "kept"))
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "postgresql+asyncpg://host/name")
    assert not copy_database(tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_the_second_root_begins_with_the_tables_of_the_first(cache: Path, tmp_path: Path) -> None:
    with prefect_server(tmp_path / "first"):
        pass
    (kept,) = cache.glob("prefect-*.db")
    before = kept.stat()
    with prefect_server(tmp_path / "second"):
        pass
    assert "PREFECT_API_URL" not in os.environ, "it is set within the block alone"
    homes = [tmp_path / root / "service" / "prefect" for root in ("first", "second")]
    assert rows(homes[0], "alembic_version") == rows(homes[1], "alembic_version") != []
    assert len(rows(homes[0], "block_type")) == len(rows(homes[1], "block_type")) > 10
    assert kept.stat().st_mtime_ns == before.st_mtime_ns  # the second server made none of its own
