"""Documents leave a root in an object store: its bucket with earlier versions, and the folders of all machines."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import s3fs

from flows.commands import forgetting
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.removal.affected import Request, find_leaving, recipe_without
from flows.removal.carry_out import decide, finish, note_end, read_pending
from flows.removal.replay import ReplayPlan
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import write_recipe
from flows.runs.roots import open_root
from flows.runs.shredding import shred
from flows.upkeep.root_records import records_under
from flows.upkeep.verify import repair_stored, verify
from model.checksummed_json import read_sealed, write_sealed
from model.digests import digest_bytes
from model.errors import InputError, IntegrityError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.identity import FORMAT, identity_key
from tasks.artifacts.manifest import content_digest, read_manifest, write_manifest
from tasks.artifacts.published import artifacts_under
from tasks.artifacts.remote.artifacts import manifest_key, part_key, parts_prefix, put_artifact
from tasks.artifacts.remote.erasure import describe_retention
from tasks.artifacts.remote.metadata import FORGOTTEN, PENDING, put_pages, put_run
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.results import Training, TrainResult
from tasks.artifacts.workspace import FileRecord

BEFORE, AFTER = "20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"
SETTINGS = ("sample.part_bytes=10_000_000",)
"""Few objects."""
PLAN = ReplayPlan(16, 84, 31_998, 40_000, 2, 7, 3.5)


@dataclass(frozen=True)
class Corpus:
    """A root in a folder with two runs, before and after a document left, and what would give the document away."""

    root: Path
    runs: dict[str, dict[str, Artifact]]
    recipes: dict[str, Recipe]
    traces: dict[str, bytes]


@pytest.fixture(scope="module")
def corpus(
    foundry: Path, build: Callable[[str, Recipe, Path], dict[str, Artifact]], tmp_path_factory: pytest.TempPathFactory
) -> Corpus:
    root = tmp_path_factory.mktemp("corpus")
    sources = tmp_path_factory.mktemp("sources") / "foundry"
    shutil.copytree(foundry, sources)
    text = (sources / "notes" / "note-07.txt").read_text()
    recipe = Recipe.model_validate(load_recipe(sources / "foundry.toml", root, SETTINGS).model_dump(mode="json"))
    before = build("chunk", recipe, root)
    before["train"] = a_model(root, "before", f"weights that recite {text}")
    (doc_id,), (other,) = (find_ids(before["sample"], name) for name in ("note-07", "note-08"))
    excluding = recipe.sample.model_copy(update={"exclude_documents": (other.hex(),)})
    build("clean", recipe.model_copy(update={"sample": excluding}), root)  # As a plan to remove another does.
    write_run(root, BEFORE, before, recipe)
    leaving = find_leaving(root, BEFORE, before, recipe, Request(("note-07",)))
    without = recipe_without(recipe, BEFORE, before, leaving, Request())
    after = build("chunk", without, root)
    after["train"] = a_model(root, "after", "weights of another model")
    traces = {"id": doc_id, "text": text.splitlines()[3].encode(), "digest": bytes.fromhex(digest_bytes(text.encode()))}
    traces |= {f"{name} in digits": traces[name].hex().encode() for name in ("id", "digest")}
    return Corpus(root, {BEFORE: before, AFTER: after}, {BEFORE: recipe, AFTER: without}, traces)


def find_ids(sample: Artifact, name: str) -> list[bytes]:
    rows = sample.table("documents").select(["doc_id", "origin"]).to_pylist()
    return [row["doc_id"] for row in rows if name in row["origin"]["path"]]


def a_model(root: Path, name: str, text: str) -> Artifact:
    """An artifact of train with one file; training itself is proved in tests/prove_forget."""
    parts, data = {"stage": "train", "model": name}, text.encode()
    identity = identity_key(parts)
    folder = root / "artifacts" / "train" / identity
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(data)
    file = FileRecord("model.safetensors", "", 0, len(data), digest_bytes(data))
    manifest: Any = {"format": FORMAT, "stage": "train", "identity": identity, "content": content_digest([file])}
    losses = {"first_loss": None, "last_loss": None, "seconds": None, "tokens_s": None}
    trained = Training(steps=1, skipped_steps=0, rollbacks=0, tokens=1, **losses)
    manifest["report"] = {"sources": {}, "facts": TrainResult(trained, exact=True).facts()}
    manifest |= {"identity_parts": parts, "files": [vars(file)], "rows": {}, "bytes": len(data), "parents": {}}
    write_manifest(folder, manifest)
    return Artifact.open(folder)


def write_run(root: Path, run_id: str, artifacts: dict[str, Artifact], recipe: Recipe) -> None:
    stages = [
        {"stage": stage, "identity": one.identity, "path": str(root / "artifacts" / stage / one.identity)}
        for stage, one in artifacts.items()
    ]
    record = {"run_id": run_id, "recipe_name": "foundry", "state": "completed", "root": str(root), "started": 0.0}
    write_recipe(root / "runs" / run_id, recipe)
    write_sealed(root / "runs" / run_id / "run.json", {**record, "stages": stages, "notes": []})


class Machines:
    """Machines before one address, each with a folder of its own."""

    def __init__(self, server: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
        self.server, self.address = server, f"s3://{bucket}/{secrets.token_hex(6)}"
        self.folder, self._monkeypatch = folder, monkeypatch

    def root(self, name: str) -> Path:
        """The root as a command of this machine opens it."""
        self._monkeypatch.setenv("BESSEMER_CACHE", str(self.folder / name))
        return open_root(self.address)

    def fill(self, corpus: Corpus) -> Path:
        """Put both runs into the store from machine A, whose folder is returned."""
        root = self.root("a")
        shutil.copytree(corpus.root / "artifacts", root / "artifacts")
        for run_id, artifacts in corpus.runs.items():
            write_run(root, run_id, artifacts, corpus.recipes[run_id])
            (root / "runs" / run_id / "page.html").write_bytes(corpus.traces["text"] if run_id == BEFORE else b"page")
            put_run(root, self.store, run_id)
            put_pages(root, self.store, run_id)
        for folder in artifacts_under(root):
            put_artifact(self.store, read_manifest(folder), folder.joinpath)
        return root

    @property
    def store(self) -> ObjectStore:
        return ObjectStore(self.address)


@pytest.fixture
def machines_at(object_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Machines]:
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    return lambda bucket: Machines(object_store, tmp_path, monkeypatch, bucket)


def a_bucket(*, locked: bool = False) -> str:
    """A bucket that keeps versions."""
    name, s3 = f"versions-{secrets.token_hex(4)}", s3fs.S3FileSystem()
    s3.call_s3("create_bucket", Bucket=name, ObjectLockEnabledForBucket=locked)
    s3.call_s3("put_bucket_versioning", Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


def decided(root: Path, corpus: Corpus) -> None:
    before = run_artifacts(open_run(root, BEFORE))
    leaving = find_leaving(root, BEFORE, before, corpus.recipes[BEFORE], Request(("note-07",)))
    decide(root, BEFORE, corpus.recipes[AFTER], before["sample"], leaving, Request(), PLAN)


def finished(root: Path) -> dict[str, Any]:
    """Carry the decided removal out, and return its certificate."""
    pending = read_pending(root)
    assert pending is not None
    return read_sealed(finish(root, pending, open_run(root, AFTER)).with_suffix(".json"), "")


def found(corpus: Corpus, places: dict[str, bytes]) -> set[tuple[str, str]]:
    """Pairs of a trace and a place that holds it."""
    return {(name, place) for place, data in places.items() for name, trace in corpus.traces.items() if trace in data}


def is_named(place: str, corpus: Corpus) -> bool:
    """Whether a certificate says that a place has the ids: the record and the manifest of the new recipe."""
    sample = corpus.runs[AFTER]["sample"].identity
    return f"runs/{AFTER}" in place or f"sample/{sample}" in place


def test_nothing_of_a_document_is_left_in_the_bucket_its_versions_and_the_folders_of_two_machines(
    corpus: Corpus, machines_at: Callable[[str], Machines]
) -> None:
    machines = machines_at(a_bucket())
    root, store = machines.fill(corpus), machines.store
    there = machines.root("b")
    fetched = Artifact.open(there / "artifacts" / "sample" / corpus.runs[BEFORE]["sample"].identity).files("documents")
    (there / "runs" / BEFORE / "page.html").write_bytes(corpus.traces["text"])
    for pilots in (root / "pilots", there / "pilots"):
        (pilots / "artifacts" / "sample" / "44").mkdir(parents=True)
        (pilots / "artifacts" / "sample" / "44" / "part.arrow").write_bytes(corpus.traces["text"])
    sample = corpus.runs[BEFORE]["sample"].identity
    leave_traces(root, store, sample, corpus.traces["text"])
    held = found(corpus, machines.server.objects(machines.address))
    assert {name for name, _ in held} == {*corpus.traces} - {"digest in digits"}

    root = machines.root("a")
    decided(root, corpus)
    assert read_pending(machines.root("b")) == read_pending(root), "any machine can end it"
    with pytest.raises(InputError, match="another machine has begun a removal"):
        decided(machines.root("b"), corpus)
    root = machines.root("a")
    salt = read_sealed(root / FORGOTTEN / PENDING, "")["salt"]
    certificate = finished(root)
    stored = machines.server.objects(machines.address)
    left = found(corpus, stored)
    assert {name for name, place in left if not is_named(place, corpus)} == set()
    assert {name for name, _ in left} == {"id in digits"}
    assert not any(salt.encode() in data for data in stored.values())
    assert not list((root / ".store" / "tmp").glob("*"))
    assert not (store.ask_bucket("list_multipart_uploads") or {}).get("Uploads")
    here = found(corpus, machines.server.files(root))
    assert {name for name, place in here if not is_named(place, corpus)} == set()

    assert certificate["store"] == machines.address
    assert f"train/{corpus.runs[BEFORE]['train'].identity}" in certificate["removed"]
    assert f"pages/{BEFORE}/page.html" in certificate["removed"]
    assert any("keeps earlier versions" in sentence for sentence in certificate["retention"])
    assert certificate["stays"] == []
    assert (certificate["duplicates"], certificate["promoted"]) == (0, 0)
    # Machine B gives its copies up when a command opens the root there.
    assert fetched[0].exists()
    there = machines.root("b")
    assert {name for name, place in found(corpus, machines.server.files(there)) if not is_named(place, corpus)} == set()
    assert read_pending(there) is None
    assert read_sealed(there / FORGOTTEN / f"{AFTER}.json", "") == certificate
    assert open_run(there, BEFORE)["collected"]["stages"]
    check = verify(artifacts_under(there), records=records_under(there), root=there)
    assert check.damages == ()


def test_a_removal_that_is_killed_while_it_deletes_goes_on_without_what_it_deleted(
    corpus: Corpus, machines_at: Callable[[str], Machines], monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = machines_at("bessemer")
    root, sample = machines.fill(corpus), corpus.runs[BEFORE]["sample"].identity
    decided(root, corpus)
    pending = read_pending(root)
    assert pending is not None
    note_end(root, pending, AFTER)
    machines.store.delete([manifest_key("sample", sample)])
    there = machines.root("b")
    assert not (there / "artifacts" / "sample" / sample).exists()

    def run_again(*words: object) -> None:
        raise AssertionError("the recipe keeps what is gone")

    monkeypatch.setattr(forgetting, "run_recipe", run_again)
    monkeypatch.setattr(forgetting, "open_run", lambda root, run_id, needs: open_run(root, run_id))
    pending = read_pending(there)
    assert pending is not None
    forgetting.carry_out(there, pending, as_json=True, verbose=False)
    assert read_sealed(there / FORGOTTEN / f"{AFTER}.json", "")["after"] == AFTER
    assert read_pending(there) is None
    assert read_pending(machines.root("a")) is None


def leave_traces(root: Path, store: ObjectStore, identity: str, text: bytes) -> None:
    """What killed builds, uploads and fetches leave of an artifact, and artifacts that were set aside."""
    name = f"sample/{identity}"
    store.write(f"aside/{name}-12345678.json", {"text": text.decode()})
    store.write(f"unfinished/{name}.json", {"text": text.decode()})
    store.put(f"checkpoints/{name}/{'c' * 32}", text)
    upload = store.ask_bucket("create_multipart_upload", Key=store.key_in_bucket(f"parts/{name}/{'d' * 32}"))
    assert upload is not None
    artifact, temporary, work = root / "artifacts" / name, root / ".store" / "tmp", root / "work" / f"{identity}.1-2"
    for folder in (artifact.with_name(f"{identity}.damaged-1"), artifact.with_name(f".removed-{identity}"), work):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(text)
    temporary.mkdir(exist_ok=True)
    (temporary / f"parts-{name.replace('/', '-')}-{'e' * 32}-12").write_bytes(text)


def test_what_another_run_of_any_machine_uses_stays_and_is_whole(
    corpus: Corpus, machines_at: Callable[[str], Machines]
) -> None:
    machines = machines_at("bessemer")
    root, store = machines.fill(corpus), machines.store
    decided(root, corpus)
    there, third = machines.root("b"), "20260103T000000Z-cccccc"
    shared = {stage: corpus.runs[BEFORE][stage] for stage in ("sample", "clean")}
    write_run(there, third, shared, corpus.recipes[BEFORE])
    put_run(there, store, third)
    certificate = finished(root)
    assert certificate["shared"] == [f"{stage}/{one.identity} (run {third})" for stage, one in shared.items()]
    for stage in ("dedup", "decontaminate", "chunk", "train"):
        identity = corpus.runs[BEFORE][stage].identity
        assert not store.exists(manifest_key(stage, identity))
        assert store.list_objects(parts_prefix(stage, identity)) == {}
    there = machines.root("b")
    assert verify(artifacts_under(there), records=records_under(there), root=there).damages == ()
    assert {folder.name for folder in artifacts_under(there, "sample")} >= {shared["sample"].identity}
    given_up = shred(there, open_run(there, third), open_run(there, AFTER))
    assert not store.exists(manifest_key("sample", shared["sample"].identity))
    assert f"sample/{shared['sample'].identity}" in given_up.removed


def test_what_a_store_keeps_after_all_is_named(corpus: Corpus, machines_at: Callable[[str], Machines]) -> None:
    machines = machines_at(bucket := a_bucket(locked=True))
    s3, rule = s3fs.S3FileSystem(), {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    lock = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    s3.call_s3("put_object_lock_configuration", Bucket=bucket, ObjectLockConfiguration=lock)
    to = {"ID": "r", "Status": "Enabled", "Prefix": "", "Destination": {"Bucket": "arn:aws:s3:::elsewhere"}}
    replication = {"Role": "arn:aws:iam::123:role/x", "Rules": [to]}
    s3.call_s3("put_bucket_replication", Bucket=bucket, ReplicationConfiguration=replication)
    root = machines.fill(corpus)
    decided(root, corpus)
    certificate = finished(root)
    said = " ".join(certificate["retention"])
    assert "has object lock, by default COMPLIANCE for 1 days" in said
    assert "replicated to arn:aws:s3:::elsewhere" in said
    held = found(corpus, machines.server.objects(machines.address))
    keys = {place.split()[0] for _, place in held if not is_named(place, corpus)}
    assert len(keys) > 5
    for key in keys:
        assert any(sentence.startswith(f"{bucket}/{key} as version ") for sentence in certificate["stays"]), key
    assert machines.store.list_objects(parts_prefix("sample", corpus.runs[BEFORE]["sample"].identity)) == {}, "hidden"
    page = (root / FORGOTTEN / f"{AFTER}.html").read_text()
    assert "refuses to delete (AccessDenied)" in page
    assert describe_retention(ObjectStore("memory://somewhere"))[0].startswith("memory://somewhere: whether this store")


PROGRAM = """
import os, signal, sys
import s3fs  # Once, and not in each child.
from flows.removal.carry_out import finish, read_pending
from flows.runs import shredding
from flows.runs.lineage import open_run
from flows.runs.roots import open_root
from tasks.artifacts.remote.object_store import ObjectStore
from tests.processes import in_a_child

address, after, step = sys.argv[1], sys.argv[2], int(sys.argv[3])

def killed_at(point):
    moments = 0

    def counted(function):
        def call(*words, **more):
            nonlocal moments
            moments += 1
            if moments == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*words, **more)
        return call

    root = open_root(address)
    pending = read_pending(root)
    ObjectStore._request, shredding._overwrite = counted(ObjectStore._request), counted(shredding._overwrite)
    if pending is not None:
        finish(root, pending, open_run(root, after))

def check():
    store = ObjectStore(address)
    for key in store.list_objects("manifests"):
        manifest = store.read(key)
        parts = store.list_objects(f"parts/{manifest['stage']}/{manifest['identity']}")
        assert {file["digest"] for file in manifest["files"]} <= {part.rpartition("/")[2] for part in parts}, key

point, ended, kills = step, signal.SIGKILL, 0
while ended == signal.SIGKILL:
    ended = in_a_child(killed_at, point)
    assert in_a_child(check) == 0
    point, kills = point + step, kills + (ended == signal.SIGKILL)
assert ended == 0, ended
print(kills)
"""


@pytest.mark.parametrize("step", [60, pytest.param(3, marks=pytest.mark.prove)])
def test_a_removal_that_is_killed_again_and_again_ends_like_another_and_is_verified(
    corpus: Corpus, machines_at: Callable[[str], Machines], step: int
) -> None:
    """Killed at requests of the store and at files here; no manifest is ever there without its files."""
    machines = machines_at("bessemer")
    root, store = machines.fill(corpus), machines.store
    decided(root, corpus)
    another = "runs/20260103T000000Z-cccccc.json"
    store.put(another, b"{}")
    with pytest.raises(IntegrityError, match="20260103T000000Z-cccccc"):
        finished(root)
    assert len(store.list_objects("manifests")) == len(list(corpus.root.glob("artifacts/*/*")))
    store.delete([another])

    words = [sys.executable, "-c", PROGRAM, machines.address, AFTER, str(step)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "BESSEMER_CACHE": str(machines.folder / "a")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 120 // step
    places = {**machines.server.objects(machines.address), **machines.server.files(root)}
    assert {name for name, place in found(corpus, places) if not is_named(place, corpus)} == set()
    assert not (root / FORGOTTEN / PENDING).exists()
    assert {folder.name for folder in artifacts_under(root)} == {one.identity for one in corpus.runs[AFTER].values()}
    assert verify(artifacts_under(root), records=records_under(root), root=root).damages == ()

    key, sample = f"{FORGOTTEN}/{AFTER}.json", corpus.runs[BEFORE]["sample"].identity
    whole, late = store.read(key), part_key("sample", sample, "e" * 32)
    store.put(key, b"{}")
    (damage,) = verify([], root=root).damages
    assert (damage.place, damage.stored) == (root / key, True)
    repair_stored([damage])
    assert store.read(key) == whole
    store.put(late, b"an upload that arrived late")
    (damage,) = verify([], root=root).damages
    assert late in damage.problem
    repair_stored([damage])
    assert not store.exists(late)
    store.delete([key])
    assert machines.root("a") == root
    assert store.read(key) == whole, "uploaded again from here"
    (root / key).unlink()
    assert (machines.root("a") / key).exists(), "fetched again"
