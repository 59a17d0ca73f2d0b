"""What a store holds, put right and collected: parts, leftovers, damage."""

import secrets
import time
from pathlib import Path

import pytest

from flows.runs.object_store import (
    file_problem,
    list_leftovers,
    manifest_problem,
    remove_leftovers,
    remove_stored,
    repair_artifact,
)
from flows.upkeep.verify import repair_stored, set_aside, verify
from model.digests import digest_bytes
from tasks.artifacts.identity import FORMAT, identity_key
from tasks.artifacts.manifest import content_digest, read_manifest
from tasks.artifacts.published import artifacts_under
from tasks.artifacts.remote.artifacts import create_stub, fetch_files, put_artifact
from tasks.artifacts.remote.attach import attached_root, store_of
from tasks.artifacts.remote.mirror import RemoteMirror
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.workspace import FileRecord

DATA = b"rows and rows"
RECORD = FileRecord("part-00000.arrow", "documents", 1, len(DATA), digest_bytes(DATA))
PARTS = {"stage": "clean"}
MANIFEST = {
    "format": FORMAT,
    "stage": "clean",
    "identity": identity_key(PARTS),
    "identity_parts": PARTS,
    "content": content_digest([RECORD]),
    "files": [vars(RECORD)],
    "rows": {RECORD.table: RECORD.rows},
    "bytes": RECORD.bytes,
    "parents": {},
}


@pytest.fixture
def folder(object_store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of an artifact of one file, which is in a store and not here but for its manifest."""
    for name, value in {**object_store.environment, "BESSEMER_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    root = attached_root(f"s3://bessemer/{secrets.token_hex(6)}")
    (tmp_path / "file").write_bytes(DATA)
    put_artifact(store_behind(root), MANIFEST, lambda _: tmp_path / "file")
    create_stub(root, MANIFEST)
    return root / "artifacts" / "clean" / MANIFEST["identity"]


def store_behind(root: Path) -> ObjectStore:
    store = store_of(root)
    assert store is not None
    return store


def test_damage_in_a_store_is_put_right_from_here_or_taken_out_of_use(folder: Path) -> None:
    root = folder.parents[2]
    store = store_behind(root)
    (part,) = store.list_objects("parts")
    assert (manifest_problem(folder), file_problem(folder, RECORD)) == (None, None)
    fetch_files(root, store, folder, [RECORD])
    store.put(part, b"rows and rots")
    assert "its manifest says" in str(file_problem(folder, RECORD))
    assert f"uploaded to {store.address} again from {folder}" in repair_artifact(folder, [RECORD.name])
    assert file_problem(folder, RECORD) is None

    (folder / RECORD.name).unlink()
    store.delete([part])
    assert "is missing in s3://" in str(file_problem(folder, RECORD))
    manifest = read_manifest(folder)
    assert "taken out of use" in repair_artifact(folder, [RECORD.name])
    assert store.list_objects("manifests") == {}
    (aside,) = store.list_objects("aside")
    assert store.read(aside) == manifest


def test_an_artifact_that_neither_the_store_nor_this_machine_has_whole_is_built_again(folder: Path) -> None:
    root = folder.parents[2]
    store = store_behind(root)
    (part,) = store.list_objects("parts")
    store.put(part, b"rows and rots")
    found = verify([folder], root=root)
    assert [damage.stored for damage in found.damages] == [True]
    repair_stored(found.damages)
    assert set_aside(found.damages) == []
    # A run uses what is there.
    RemoteMirror.of(root).fetch_manifest("clean", folder.name)
    assert artifacts_under(root) == []


def test_another_machine_finds_what_was_taken_out_of_use(folder: Path) -> None:
    root = folder.parents[2]
    remove_stored(store_behind(root), [("clean", folder.name)])
    found = verify([folder], root=root)
    assert [(damage.stored, damage.problem) for damage in found.damages] == [(False, "is missing")]
    set_aside(found.damages)
    assert artifacts_under(root) == []


def test_what_builds_left_goes_and_what_exists_stays(folder: Path) -> None:
    store = store_behind(folder.parents[2])
    known, left = ("clean", MANIFEST["identity"]), ("train", "2" * 32)
    for stage, identity in (known, left):
        store.write(f"unfinished/{stage}/{identity}.json", {})
        store.put(f"checkpoints/{stage}/{identity}/{'d' * 32}", b"weights")
    store.put(f"parts/{left[0]}/{left[1]}/{'e' * 32}", b"rows")
    assert list_leftovers(store, [known], time.time() - 3600) == []
    places = list_leftovers(store, [known], time.time() + 3600)
    assert places == [known, left]
    remove_leftovers(store, places)
    assert store.list_objects("unfinished") == store.list_objects("checkpoints") == {}
    assert list(store.list_objects("parts")) == [f"parts/clean/{MANIFEST['identity']}/{RECORD.digest}"]
    remove_stored(store, [known])
    assert store.list_objects("parts") == store.list_objects("manifests") == {}
