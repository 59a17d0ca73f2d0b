"""Credentials that a store does not take: reported at once, and gone on from once there are others."""

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import s3fs

from model.errors import AccessError
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tests.command import bessemer

CODES = {
    "expired": "ExpiredToken",
    "unknown": "InvalidAccessKeyId",
    "forged": "SignatureDoesNotMatch",
    "denied": "AccessDenied",
}
AT_ONCE = 10.0
"""Seconds; eight tries, as of a store that fails, took up to 91."""
Take = Callable[[str], None]


@pytest.fixture
def take(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Take:
    """Puts another access key into this machine's credentials file."""
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()

    def put(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = local\n")

    put("local")
    return put


REQUESTS: dict[str, Callable[[ObjectStore], object]] = {
    "exists": lambda store: store.exists("runs/a"),
    "read": lambda store: store.read("runs/a"),
    "write": lambda store: store.write("runs/a", {"casts": 1}),
    "create": lambda store: store.create("runs/a", {"casts": 1}),
    "under": lambda store: store.list_objects("runs"),
    "delete": lambda store: store.delete(["runs/a"]),
}


@pytest.mark.parametrize("key", CODES)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_refused_credentials_are_reported_at_once_with_the_code_of_the_store(
    address: str, take: Take, key: str, request_name: str
) -> None:
    """Of `exists`, too, whose answer has no body: 400 Bad Request is all that it says of an expired token."""
    take(key)
    began = time.monotonic()
    with pytest.raises(AccessError, match=f"refuses access.*{CODES[key]}.*replace.*run again"):
        REQUESTS[request_name](ObjectStore(address))
    assert time.monotonic() - began < AT_ONCE


def test_credentials_that_were_replaced_meanwhile_are_taken_and_nobody_hears_of_it(address: str, take: Take) -> None:
    store = ObjectStore(address)
    store.write("runs/a", {"casts": 1})
    take("expired")
    ObjectStore._renew(store)  # As if the token had expired since: the client that is open has it.
    take("local")
    assert store.read("runs/a") == {"casts": 1}
    take("denied")
    assert store.read("runs/a") == {"casts": 1}, "credentials that work are not read again"


def test_a_build_whose_credentials_expire_keeps_its_work_and_goes_on_with_new_ones(
    machine: Callable[[str], Path], take: Take
) -> None:
    root, made = machine("a"), []
    store = store_of(root)
    assert store is not None

    def cast(workspace: Workspace, then: Callable[[], None]) -> StageReport:
        report = workspace.finished("00000")
        if report is None:
            made.append("00000")
            with workspace.unit("00000") as unit:
                write_table(unit, "documents", pa.table({"text": ["iron"]}), table_file_name("documents", "00000"))
                unit.report.source("iron").documents_in = unit.report.source("iron").documents_out = 1
                report = unit.report
        then()
        return report

    def expire() -> None:
        take("expired")
        store._renew()

    def build(then: Callable[[], None]) -> str:
        # The lease of a build that ended in this process counts as held: its end could not be written.
        context = RunContext(root, "run", lease_seconds=2)
        stage = Stage("pour", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
        return build_artifact(context, stage, StrictConfig(), {}, lambda workspace: cast(workspace, then)).outcome

    with pytest.raises(AccessError, match="ExpiredToken"):
        build(expire)
    assert made == ["00000"]
    take("local")
    assert build(lambda: None) == "built"
    assert made == ["00000"], "what was finished is not made again"
    assert store.list_objects("manifests")


def test_sources_of_s3_say_refused_credentials_too(address: str, take: Take) -> None:
    take("expired")
    asked = SampleConfig(sources=(Source(name="s", paths=(f"{address}/a.txt",), weight=1),), budget_tokens=10**6)
    began = time.monotonic()
    with pytest.raises(AccessError, match=r"source `s`.*ExpiredToken"):
        find_files(asked)
    assert time.monotonic() - began < AT_ONCE


def test_the_command_ends_with_a_code_of_its_own(address: str, take: Take, tmp_path: Path) -> None:
    take("expired")
    assert AccessError.exit_code == 77
    done = bessemer("runs", "list", "--root", address, code=77)
    assert "AccessError: the object store refuses access" in done.stderr
    assert "Traceback" not in done.stderr
