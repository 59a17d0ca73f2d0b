"""Objects of a real S3 server: created once, fetched whole or not at all, asked again while the store fails."""

import os
import secrets
from pathlib import Path

import pytest
import s3fs

from model.checksummed_json import seal
from model.digests import digest_bytes, digest_file
from model.errors import AccessError, Infra, InputError, IntegrityError
from tasks.artifacts.remote import object_store as objects
from tasks.artifacts.remote import retries
from tasks.artifacts.remote.erasure import describe_retention, erase
from tasks.artifacts.remote.object_store import ObjectStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "part"
    path.write_bytes(os.urandom(200_000))
    return path


def test_of_two_that_create_an_object_the_first_one_wins(store: ObjectStore) -> None:
    assert store.create("who", {"by": "first"})
    assert not store.create("who", {"by": "second"})
    assert store.read("who") == {"by": "first"}


def test_a_creator_whose_answer_was_lost_finds_its_own_object(store: ObjectStore) -> None:
    assert [store.create("who", {"by": "me"}), store.create("who", {"by": "me"})] == [True, True]


def test_files_come_back_block_by_block(
    store: ObjectStore, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_file("parts/a", file, digest_file(file))
    monkeypatch.setattr(objects, "BLOCK_BYTES", 65_536)
    store.fetch("parts/a", tmp_path / "copy", 200_000, digest_file(file), tmp_path)
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    assert store.digest("parts/a", 200_000) == digest_file(file)


def test_an_object_that_ends_before_its_last_blocks_is_damaged_and_the_store_is_not_down(
    store: ObjectStore, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "BLOCK_BYTES", 65_536)
    monkeypatch.setattr(objects, "FETCHES", 1)
    monkeypatch.setattr(retries, "TRIES", 1)
    beginning = file.read_bytes()[:100_000]
    store.put("parts/a", beginning)
    assert store.digest("parts/a", 200_000) == digest_bytes(beginning)
    with pytest.raises(IntegrityError, match=f"and has {digest_bytes(beginning)}"):
        store.fetch("parts/a", tmp_path / "copy", 200_000, digest_file(file), tmp_path)


def test_the_bytes_of_a_fetched_file_are_durable_before_its_name(
    store: ObjectStore, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync, replace = os.fsync, os.replace

    def note(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        sync(handle)

    def checked(source: Path, target: Path) -> None:
        assert source.stat().st_ino in synced
        replace(source, target)

    store.put_file("parts/a", file, digest_file(file))
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", checked)
    store.fetch("parts/a", tmp_path / "copy", 200_000, digest_file(file), tmp_path)
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()


def test_a_file_with_other_bytes_is_neither_uploaded_nor_accepted(
    store: ObjectStore, file: Path, tmp_path: Path
) -> None:
    right = digest_bytes(b"right")
    with pytest.raises(IntegrityError, match="Nothing was written there"):
        store.put_file("parts/a", file, right)
    assert store.list_objects("parts") == {}
    store.put("parts/a", b"wrong")
    with pytest.raises(IntegrityError, match="fetched 4 times"):
        store.fetch("parts/a", tmp_path / "copy", 5, right, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part"]


def test_keys_are_listed_by_whole_names_and_deleted(store: ObjectStore) -> None:
    for key in ("runs/a", "runs/b", "runs-of-old/c"):
        store.put(key, b"x")
    assert list(store.list_objects("runs")) == ["runs/a", "runs/b"]
    store.delete(["runs/a", "runs/b", "runs/never-was"])
    assert store.list_objects("runs") == {}
    assert store.exists("runs-of-old/c")


def test_what_a_request_for_many_could_not_delete_is_deleted_one_by_one(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("runs/a", "runs/b"):
        store.put(key, b"x")
    answer = {"Errors": [{"Key": store.key_in_bucket("runs/b"), "Code": "SlowDown"}]}
    monkeypatch.setattr(store, "ask_bucket", lambda method, **words: answer)
    store.delete(["runs/a", "runs/b"])
    assert list(store.list_objects("runs")) == ["runs/a"], "of which the answer said that it is gone"


def test_of_what_is_erased_no_version_and_no_upload_stays(store: ObjectStore) -> None:
    name = f"versions-{secrets.token_hex(4)}"
    s3 = s3fs.S3FileSystem()
    s3.call_s3("create_bucket", Bucket=name)
    s3.call_s3("put_bucket_versioning", Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    store = ObjectStore(f"s3://{name}/root")
    for key in ("parts/a/1", "parts/a/2", "parts/ab/1", "runs/a.json"):
        for text in (b"first", b"second"):
            store.put(key, text)
    store.delete(["parts/a/2"])
    store.ask_bucket("create_multipart_upload", Key=store.key_in_bucket("parts/a/3"))
    assert erase(store, ["parts/a/", "runs/none.json"]) == []
    assert erase(store, ["runs/a.json"], earlier_only=True) == []
    answer = store.ask_bucket("list_object_versions") or {}
    assert "DeleteMarkers" not in answer
    versions = [one["Key"].removeprefix("root/") for one in answer["Versions"]]
    assert versions == ["parts/ab/1", "parts/ab/1", "runs/a.json"]
    assert not (store.ask_bucket("list_multipart_uploads") or {}).get("Uploads")


def test_what_credentials_may_not_ask_is_said(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(method: str, **words: object) -> None:
        raise AccessError(f"{method} is not allowed")

    store.put("parts/a/1", b"x")
    monkeypatch.setattr(store, "ask_bucket", refuse)
    assert [sentence.split(",")[0] for sentence in erase(store, ["parts/a/"])] == [
        "unfinished uploads",
        "earlier versions",
    ]
    assert store.list_objects("parts") == {}
    said = describe_retention(store)
    assert len(said) == 3
    assert all("these credentials may not ask" in sentence for sentence in said)


def test_no_bucket_no_credentials_and_no_server_are_different_errors(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "TRIES", 2)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(InputError, match="no such bucket"):
        ObjectStore("s3://nobody-made-this/x").write("a", {"rows": 1})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(Infra, match="failed 2 times"):
        ObjectStore("s3://bessemer/x").read("a")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(AccessError, match="refuses access"):
        ObjectStore("s3://bessemer/x").read("a")
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_name_that_no_bucket_has_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r'looking for s3://my bucket/x/a: .*Invalid bucket name "my bucket"'):
        ObjectStore("s3://my bucket/x").exists("a")


def test_a_damaged_small_object_is_refused(store: ObjectStore) -> None:
    store.put("manifests/a", seal({"rows": 1}).replace(b'"rows": 1', b'"rows": 2'))
    with pytest.raises(IntegrityError, match="is damaged; it was read"):
        store.read("manifests/a")


@pytest.mark.prove
def test_under_faults_of_every_kind_all_that_is_read_is_what_was_put(
    store: ObjectStore, object_store, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty files put, listed and fetched while a third of the requests meets a fault."""
    monkeypatch.setattr(objects, "BLOCK_BYTES", 65_536)
    monkeypatch.setattr(retries, "ANSWER_SECONDS", 3.0)
    before = len(object_store.faults())
    object_store.fail(0.33, seed=5, stall_seconds=6)
    try:
        for number in range(40):
            data = os.urandom(100_000 + number)
            file.write_bytes(data)
            store.put_file(f"parts/{number:02d}", file, digest_bytes(data))
            assert store.create(f"manifests/{number:02d}", {"digest_of": digest_bytes(data)})
            assert not store.create(f"manifests/{number:02d}", {"by": "another"})
            store.fetch(f"parts/{number:02d}", tmp_path / "copy", len(data), digest_bytes(data), tmp_path)
            assert (tmp_path / "copy").read_bytes() == data
            assert store.read(f"manifests/{number:02d}") == {"digest_of": digest_bytes(data)}
        assert len(store.list_objects("parts")) == len(store.list_objects("manifests")) == 40
    finally:
        object_store.fail(0)
    met = {fault["fault"] for fault in object_store.faults()[before:]}
    assert met == {"error", "lost", "cut", "short", "flipped", "slow", "stall"}
