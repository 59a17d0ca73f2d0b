"""A service on a PostgreSQL of its own, which asks for a password: made by the script, killed, recovered, ended."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import bessemer

SCRIPT = Path(__file__).parents[3] / "deployments" / "local" / "postgresql.sh"
SECONDS = 900.0
PASSWORD = "me:a-word-that-stands-nowhere"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own, which PostgreSQL's user may not enter."""
    if shutil.which("initdb") is None and not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("no PostgreSQL on this machine; on Debian: apt install postgresql")
    made = Path(tempfile.mkdtemp(prefix="bessemer-postgresql-", dir="/var/tmp"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        subprocess.run([SCRIPT, "stop", made], check=False)
        shutil.rmtree(made)


def start(folder: Path) -> str:
    """The address."""
    done = subprocess.run([SCRIPT, "start", folder], capture_output=True, text=True, timeout=SECONDS, check=True)
    return done.stdout.splitlines()[-1]


def first_process(folder: Path) -> int:
    return int((folder / "data" / "postmaster.pid").read_text().split()[0])


@pytest.mark.prove
def test_the_script_can_be_run_again_and_recovers_what_was_killed(folder: Path) -> None:
    address = start(folder)
    assert start(folder) == address
    kept = ["psql", address.replace("+asyncpg", ""), "--quiet", "--tuples-only", "--no-align", "--command"]
    subprocess.run([*kept, "CREATE TABLE kept AS SELECT 7 AS number"], check=True)
    os.kill(first_process(folder), signal.SIGKILL)
    assert start(folder) == address
    assert subprocess.check_output([*kept, "SELECT number FROM kept"], text=True).strip() == "7"
    for _ in range(2):
        subprocess.run([SCRIPT, "stop", folder], check=True)
    assert not (folder / "data" / "postmaster.pid").exists()


def test_a_wrong_password_and_a_missing_database_are_explained_on_the_terminal(folder: Path, tmp_path: Path) -> None:
    address = start(folder)
    password = (folder / "password").read_text()
    assert f"//bessemer:{password}@127.0.0.1:" in address
    assert stat.S_IMODE((folder / "password").stat().st_mode) == 0o600
    for wrong, reported in (
        (address.replace(password, "wr0ng"), 'password authentication failed for user "bessemer"'),
        (address.replace(f"bessemer:{password}@", "stranger@"), 'password authentication failed for user "stranger"'),
        (f"{address}-other", 'database "bessemer-other" does not exist'),
    ):
        words = ("serve", "start", "--root", tmp_path / "root")
        done = bessemer(*words, code=3, environment={"BESSEMER_DATABASE": wrong})
        assert reported in done.stderr
        assert "wr0ng" not in done.stderr + done.stdout
        assert password not in done.stderr + done.stdout


def test_a_cluster_that_let_everyone_in_asks_for_a_password_from_now_on(folder: Path) -> None:
    address = start(folder)
    rules = folder / "data" / "pg_hba.conf"
    rules.write_text(rules.read_text().replace("scram-sha-256", "trust"))
    (folder / "password").unlink()
    subprocess.run([SCRIPT, "stop", folder], check=True)
    again = start(folder)
    assert again != address
    assert "trust" not in "".join(line for line in rules.read_text().splitlines() if not line.startswith("#"))
    open_to_all = [
        "psql",
        "--no-password",
        again.replace("+asyncpg", "").replace(":" + (folder / "password").read_text(), ""),
    ]
    refused = subprocess.run([*open_to_all, "--command", "SELECT 1"], capture_output=True, text=True, check=False)
    assert "no password supplied" in refused.stderr


@pytest.mark.prove
def test_the_server_writes_there_and_asks_for_the_password(folder: Path, tmp_path: Path) -> None:
    address, root, file = start(folder), tmp_path / "root", tmp_path / "password"
    file.write_text(PASSWORD)
    file.chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    try:
        words = ("serve", "start", "--root", root, "--port", port)
        ended = [bessemer(*words, "--database", address, "--password-file", file)]
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/flow_runs/count", b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=60)
        ended.append(bessemer("run", "quickstart", "--root", root, "--until", "sample", "--limit", "1%", "--json"))
        kept = ["psql", address.replace("+asyncpg", ""), "--tuples-only", "--no-align", "--command"]
        states = subprocess.check_output([*kept, "SELECT state_type FROM flow_run"], text=True).split()
        assert states == ["COMPLETED"]
        ended.append(bessemer("serve", "stop", "--root", root))
        again = bessemer(*words, code=3)
        assert "are in the database postgresql://bessemer@127.0.0.1:" in again.stderr
    finally:
        bessemer("serve", "stop", "--now", "--root", root, code=None)
    written = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert PASSWORD.split(":")[1].encode() not in written
    assert PASSWORD.split(":")[1] not in "".join(done.stdout + done.stderr for done in ended)
