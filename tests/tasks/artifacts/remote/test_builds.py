"""Builds of machines that share a store: found, gone on with, raced for, and never there before their parts."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from flows.upkeep.root_records import record_problem, records_under
from model.checksummed_json import read_sealed, write_sealed
from model.errors import Infra, InputError, IntegrityError, RecipeError
from tasks.artifacts.artifact import BUILT, Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.remote import partial_builds as unfinished
from tasks.artifacts.remote import retries
from tasks.artifacts.remote.artifacts import create_stub, withdraw
from tasks.artifacts.remote.attach import _store, attached_root, check_store, is_address, store_of
from tasks.artifacts.remote.metadata import pull_metadata
from tasks.artifacts.remote.mirror import RemoteMirror
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.remote.partial_builds import (
    PartialBuildUploader,
    checkpoints_prefix,
    download_partial_build,
    unfinished_key,
)
from tasks.artifacts.remote.retries import report_waits
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.models.finetune import UNIT, seed_files

Machine = Callable[[str], Path]
POUR = Stage("pour", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))


class PourConfig(StrictConfig):
    casts: int = 3


def pour(workspace: Workspace, casts: int = 3, fails_after: int | None = None, made: list[int] | None = None):
    """One unit a cast."""
    reports: list[StageReport] = []
    for number in range(casts):
        if number == fails_after:
            raise Infra("the ladle broke")
        name = f"{number:05d}"
        done = workspace.finished(name)
        if done is None:
            if made is not None:
                made.append(number)
            with workspace.unit(name) as unit:
                rows = pa.table({"text": [f"cast {number}"] * (number + 1)})
                write_table(unit, "documents", rows, table_file_name("documents", name))
                unit.report.source("iron").documents_in = unit.report.source("iron").documents_out = number + 1
                done = unit.report
        reports.append(done)
    return StageReport.merged(reports)


def build(root: Path, stage: Stage = POUR, forced: bool = False, **how) -> Artifact:
    context = RunContext(root, "run", forced=frozenset({"pour"}) if forced else frozenset())
    return build_artifact(context, stage, PourConfig(), {}, lambda workspace: pour(workspace, **how))


def test_what_one_machine_built_another_finds_and_reads_file_by_file(machine: Machine, store: ObjectStore) -> None:
    built, made = build(machine("a")), []
    there = build(machine("b"), made=made)
    assert (built.outcome, there.outcome, made) == ("built", "reused", [])
    assert there.path != built.path
    assert {path.name for path in there.path.iterdir()} == {"manifest.json"}
    assert there.file("part-00001.arrow").read_bytes() == built.file("part-00001.arrow").read_bytes()
    assert {path.name for path in there.path.iterdir()} == {"manifest.json", "part-00001.arrow"}
    assert there.table("documents").column("text").to_pylist() == ["cast 0"] + ["cast 1"] * 2 + ["cast 2"] * 3
    assert there.manifest == built.manifest
    assert there.verify() == []
    assert store.list_objects("unfinished") == store.list_objects("checkpoints") == {}


def test_a_part_that_the_store_has_damaged_is_never_read(machine: Machine, store: ObjectStore) -> None:
    build(machine("a"))
    (key, *_) = store.list_objects("parts")
    store.put(key, b"something else")
    there = build(machine("b"))
    with pytest.raises(IntegrityError, match="Nothing was computed from it"):
        there.table("documents")
    assert len(there.verify()) == 1
    store.delete([key])
    with pytest.raises(IntegrityError, match="somebody deleted it"):
        there.table("documents")


@pytest.mark.parametrize("damaged", [lambda size: b"something else", bytes])
def test_a_forced_build_is_held_against_the_store_and_restores_it(
    machine: Machine, store: ObjectStore, damaged: Callable[[int], bytes]
) -> None:
    assert build(machine("a"), forced=True).outcome == "built"
    assert len(store.list_objects("manifests")) == 1
    there = build(machine("b"), forced=True)
    assert (there.outcome, there.cause) == ("reproduced", "forced")
    (key, listed), *_ = store.list_objects("parts").items()
    store.put(key, damaged(listed.bytes))
    restored = build(machine("c"), forced=True)
    assert restored.outcome == "reproduced"
    assert restored.cause.startswith("damaged part-")
    assert build(machine("d")).table("documents").num_rows == 6


def test_an_artifact_that_only_exists_locally_is_uploaded_again(machine: Machine, store: ObjectStore) -> None:
    build(machine("a"))
    store.delete([*store.list_objects("manifests"), *store.list_objects("parts")])
    assert build(machine("a")).reused
    assert build(machine("b")).table("documents").num_rows == 6


def test_another_machine_goes_on_with_the_finished_units(machine: Machine, store: ObjectStore) -> None:
    with pytest.raises(Infra, match="ladle"):
        build(machine("a"), fails_after=2)
    assert store.list_objects("manifests") == {}
    made: list[int] = []
    assert build(machine("b"), made=made).table("documents").num_rows == 6
    assert made == [2]
    assert store.list_objects("unfinished") == {}


def test_two_histories_of_a_build_are_never_mixed(machine: Machine) -> None:
    """What a machine left behind gives way to what another made of it since."""
    with pytest.raises(Infra):
        build(machine("a"), fails_after=1)
    with pytest.raises(Infra):
        build(machine("b"), fails_after=2)
    made: list[int] = []
    build(machine("a"), made=made)
    assert made == [2]


def test_what_is_finished_is_put_while_the_build_goes_on(
    machine: Machine, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished.PartialBuildUploader.__init__, "__kwdefaults__", {"pause_seconds": 0.05})
    seen: list[int] = []

    def slow(workspace: Workspace) -> StageReport:
        report = pour(workspace)
        deadline = time.monotonic() + 60
        while not seen or (seen[-1] < 3 and time.monotonic() < deadline):
            time.sleep(0.05)
            seen.extend(len(store.read(key)["units"]) for key in store.list_objects("unfinished"))
        return report

    build_artifact(RunContext(machine("a"), "run"), POUR, PourConfig(), {}, slow)
    assert seen[-1] == 3


def test_checkpoints_come_whole_and_old_ones_go(machine: Machine, store: ObjectStore) -> None:
    def kept(scratch: Path):
        return [tuple(sorted(folder.iterdir())) for folder in sorted(scratch.glob("steps/*"))]

    stage = replace(POUR, resume_files=kept)

    def reaches(step: int) -> Callable[[Workspace], StageReport]:
        def run(workspace: Workspace) -> StageReport:
            steps = workspace.scratch("steps")
            found = sorted(path.name for path in steps.iterdir())
            for folder in steps.iterdir():
                assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": folder.name, "b": "same"}
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()
            (steps / str(step)).mkdir()
            (steps / str(step) / "a").write_text(str(step))
            (steps / str(step) / "b").write_text("same")
            raise Infra(f"found {found}")

        return run

    def attempt(name: str, step: int) -> None:
        build_artifact(RunContext(machine(name), "run"), stage, PourConfig(), {}, reaches(step))

    for name, step, found in (("a", 1, "[]"), ("b", 2, "['1']"), ("a", 3, "['2']"), ("c", 4, "['3']")):
        with pytest.raises(Infra, match=f"found {found}".replace("[", r"\[").replace("]", r"\]")):
            attempt(name, step)
    (key,) = store.list_objects("unfinished")
    assert [sorted(group) for group in store.read(key)["groups"]] == [["scratch/steps/4/a", "scratch/steps/4/b"]]


class SlowStore(ObjectStore):
    """Takes a file no sooner than a trainer's next checkpoint is written; `refuse` answers with an error instead."""

    def __init__(self, store: ObjectStore, steps: Path) -> None:
        super().__init__(store.address)
        self._steps = steps
        self._lock = threading.Lock()
        self.reached = 0
        self.refuse = False
        self.train()

    def train(self) -> None:
        """A newer checkpoint is written, and the one before it is removed."""
        with self._lock:
            self.reached += 1
            newest = self._steps / f"{self.reached}"
            newest.mkdir(parents=True)
            for name in ("a", "b", "c"):
                (newest / name).write_text(f"{name} of step {self.reached}")
            for old in self._steps.iterdir():
                if old != newest:
                    shutil.rmtree(old)

    def put_file(self, key: str, path: Path, digest: str) -> None:
        self.train()
        if self.refuse and path.name == "b":
            raise Infra("the store was not in the mood")
        super().put_file(key, path, digest)


def test_a_checkpoint_that_is_removed_while_a_slow_store_takes_it_is_put_whole(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Three files a checkpoint, and none exists for longer than one file takes: each look puts the one it found, and
    one that failed is ended by the next."""

    def kept(scratch: Path):
        return [tuple(sorted(folder.iterdir())) for folder in sorted(scratch.glob("steps/*"))]

    def listed() -> dict[str, str]:
        key = unfinished_key("pour", "0" * 32)
        (group,) = store.read(key)["groups"]
        for name, file in group.items():
            place = f"{checkpoints_prefix('pour', '0' * 32)}/{file['digest']}"
            store.fetch(place, tmp_path / Path(name).name, file["bytes"], file["digest"], tmp_path)
        return {name: (tmp_path / Path(name).name).read_text() for name in group}

    slow = SlowStore(store, tmp_path / "work" / "scratch" / "steps")
    with PartialBuildUploader(
        slow, "pour", "0" * 32, tmp_path / "work", kept, writer="w", is_lost=lambda: False, pause_seconds=3600
    ) as keeper:
        slow.refuse = True
        with pytest.raises(Infra):
            keeper.upload_finished()
        slow.refuse = False
        keeper.upload_finished()
        assert listed() == {f"scratch/steps/1/{name}": f"{name} of step 1" for name in ("a", "b", "c")}
        newest = slow.reached
        assert newest > 3
        keeper.upload_finished()
        assert listed() == {f"scratch/steps/{newest}/{name}": f"{name} of step {newest}" for name in ("a", "b", "c")}
        assert len(store.list_objects(checkpoints_prefix("pour", "0" * 32))) == 3
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["scratch"]


@pytest.mark.parametrize("lost", [False, True])
def test_seeds_of_a_fine_tuning_reach_another_machine_or_are_left_out_as_lost(
    store: ObjectStore, tmp_path: Path, lost: bool
) -> None:
    seeds = tmp_path / "work" / "scratch" / UNIT
    seeds.mkdir(parents=True)
    files = dict[str, str]()
    for seed in ("seed-1", "seed-2"):
        files |= {f"{seed}.json": "{}", f"{seed}.safetensors": f"weights of {seed}"}
    for name, text in files.items():
        (seeds / name).write_text(text)
    identity = "2" * 32
    PartialBuildUploader(
        store, "finetune", identity, tmp_path / "work", seed_files, writer="w", is_lost=lambda: False
    ).upload_finished()
    if lost:
        store.delete(store.list_objects(checkpoints_prefix("finetune", identity)))
    there = tmp_path / "there"
    there.mkdir()
    fetched = download_partial_build(tmp_path, store, "finetune", identity, there, "another")
    found = {path.name: path.read_text() for path in there.rglob("*") if path.is_file() and path.parent != there}
    assert (fetched, found) == ((0, {}) if lost else (4, files))


def test_a_build_that_ends_does_not_wait_for_checkpoints_on_their_way(store: ObjectStore, tmp_path: Path) -> None:
    """Forty files, eight at once: those in flight come to their end, and no other is begun."""
    scratch = tmp_path / "work" / "scratch"
    scratch.mkdir(parents=True)
    for number in range(40):
        (scratch / str(number)).write_text(str(number))
    begun, go_on = threading.Semaphore(0), threading.Event()

    class Waiting(ObjectStore):
        def put_file(self, key: str, path: Path, digest: str) -> None:
            begun.release()
            assert go_on.wait(60)
            super().put_file(key, path, digest)

    def kept(scratch: Path):
        yield tuple(scratch.iterdir())

    keeper = PartialBuildUploader(
        Waiting(store.address),
        "pour",
        "1" * 32,
        tmp_path / "work",
        kept,
        writer="w",
        is_lost=lambda: False,
        pause_seconds=0.01,
    )
    with keeper:
        assert all(begun.acquire(timeout=60) for _ in range(8))
        threading.Timer(0.2, go_on.set).start()
    assert len(store.list_objects(checkpoints_prefix("pour", "1" * 32))) == 8
    assert not begun.acquire(blocking=False)
    assert store.list_objects("unfinished") == {}
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["scratch"]


def test_an_interrupted_build_does_not_wait_for_a_store_that_is_down(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build waits a quarter of an hour for a store. Ctrl-C does not: what the store lacks is on this machine."""
    (tmp_path / "work" / "scratch").mkdir(parents=True)
    (tmp_path / "work" / "scratch" / "checkpoint").write_text("of step 1")
    monkeypatch.setattr(retries.time, "sleep", lambda seconds: None)
    asked = []

    class Down(ObjectStore):
        def put_file(self, key: str, path: Path, digest: str) -> None:
            def refused() -> None:
                asked.append(key)
                raise ConnectionRefusedError(111, "Connection refused")

            retries.with_retries("writing", refused)

    def waited(sentence: str) -> None:
        raise AssertionError(sentence)

    down = Down(store.address)
    keeper = PartialBuildUploader(
        down,
        "pour",
        "2" * 32,
        tmp_path / "work",
        lambda scratch: [tuple(scratch.iterdir())],
        writer="w",
        is_lost=lambda: False,
        pause_seconds=3600,
    )
    with pytest.raises(KeyboardInterrupt), report_waits(waited), keeper:
        raise KeyboardInterrupt
    assert len(asked) == retries.TRIES == 8, "as docs/object_stores.md says"


def test_two_machines_that_race_end_with_one_artifact(
    machine: Machine, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in the midst of the build at once, since a lease carries no correctness: the first manifest wins."""
    monkeypatch.setattr(RemoteMirror, "lease", lambda *_: nullcontext())
    both = threading.Barrier(2)
    roots = [machine("a"), machine("b")]
    ended: list[Artifact] = []

    def one(root: Path) -> None:
        def run(workspace: Workspace) -> StageReport:
            report = pour(workspace)
            both.wait(60)
            return report

        context = RunContext(root, f"run-of-{root.parent.name}")
        ended.append(build_artifact(context, POUR, PourConfig(), {}, run))

    threads = [threading.Thread(target=one, args=(root,)) for root in roots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(ended) == 2
    assert ended[0].manifest == ended[1].manifest
    assert ended[0].content == ended[1].content
    assert len(store.list_objects("manifests")) == 1


def test_a_build_with_other_bytes_than_the_store_has_is_an_error(machine: Machine, store: ObjectStore) -> None:
    (key,) = (build(machine("a")), *store.list_objects("manifests"))[1:]
    reported = store.read(key)
    store.write(key, {**reported, "content": "0" * 32})
    with pytest.raises(IntegrityError, match="different contents of the same identity"):
        pull_metadata(machine("a"), store)


def test_while_one_machine_builds_another_waits(machine: Machine) -> None:
    began, made = threading.Event(), []
    first, second = machine("a"), machine("b")

    def slow(workspace: Workspace) -> StageReport:
        began.set()
        time.sleep(1.0)
        return pour(workspace)

    thread = threading.Thread(target=lambda: build_artifact(RunContext(first, "run"), POUR, PourConfig(), {}, slow))
    thread.start()
    assert began.wait(60)
    assert build(second, made=made).reused
    assert made == []
    thread.join(60)


def test_a_cache_knows_its_store(machine: Machine, store: ObjectStore) -> None:
    root = machine("a")
    check_store(root, store)
    store.delete(["store.json"])
    with pytest.raises(InputError, match="emptied or replaced"):
        check_store(root, store)
    store.write("store.json", {"format": 1, "id": "another", "made": "now"})
    with pytest.raises(InputError, match="is not the store that"):
        check_store(root, store)


@pytest.mark.parametrize("name", ["address.json", "store.json"])
def test_a_damaged_record_of_a_cache_is_named_before_it_is_used(
    machine: Machine, store: ObjectStore, name: str
) -> None:
    root = machine("a")
    check_store(root, store)
    assert [path for path in records_under(root) if record_problem(path)] == []
    path = root / ".store" / name
    path.write_bytes(path.read_bytes().replace(b'": "', b'": "x', 1))
    assert record_problem(path) is not None
    _store.cache_clear()
    with pytest.raises(IntegrityError, match=rf"{name} is damaged .*it is rewritten"):
        check_store(root, store_of(root) or store)


def test_an_address_with_credentials_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="without credentials") as reported:
        attached_root("s3://key:planted-secret@bucket/prefix")
    assert "planted-secret" not in str(reported.value)
    assert store_of(tmp_path) is None


def test_an_address_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"--root s3://\[bucket: it cannot be read \(Invalid IPv6 URL\)"):
        attached_root("s3://[bucket")


@pytest.mark.parametrize("root", ["s3://", "s3:///prefix", Path("s3://")])
def test_an_address_without_a_bucket_is_refused_and_is_no_local_folder(root: str | Path) -> None:
    assert is_address(root)
    with pytest.raises(RecipeError, match=f"--root {root} names no bucket. Write s3://BUCKET or s3://BUCKET/PREFIX"):
        attached_root(str(root))
    assert not is_address(f"./{root}")


def test_a_user_without_a_home_folder_is_asked_for_one_for_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "BESSEMER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    # Without an entry of the user, as in a container that is started with a number.
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(InputError, match="BESSEMER_CACHE"):
        attached_root("s3://bucket/prefix")


def test_runs_and_aliases_of_one_machine_are_seen_by_another(machine: Machine, store: ObjectStore) -> None:
    first = machine("a")
    check_store(first, store)
    artifact = build(first)
    folder = first / "runs" / "20261122T000000Z-aaaaaa"
    folder.mkdir(parents=True)
    stages = [{"stage": "pour", "path": str(artifact.path)}]
    write_sealed(folder / "run.json", {"run_id": folder.name, "root": str(first), "stages": stages})
    alias = first / "aliases" / "pour" / f"{'1' * 32}.json"
    alias.parent.mkdir(parents=True)
    write_sealed(alias, {"who": "me"})
    pull_metadata(first, store)
    second = machine("b")
    pull_metadata(second, store)
    record = json.loads((second / "runs" / folder.name / "run.json").read_text())
    assert record["root"] == str(second)
    assert record["stages"][0]["path"] == str(second / "artifacts" / "pour" / artifact.identity)
    assert read_sealed(second / alias.relative_to(first), "") == {"who": "me"}
    store.delete([alias.relative_to(first).as_posix()])
    pull_metadata(second, store)
    assert not (second / alias.relative_to(first)).exists()


def test_what_another_machine_removed_is_built_again_where_its_files_are_not_here(
    machine: Machine, store: ObjectStore
) -> None:
    first, second = machine("a"), machine("b")
    check_store(first, store)
    artifact = build(first)
    stub = second / artifact.path.relative_to(first)
    for root in (first, second):
        pull_metadata(root, store)
    assert stub.exists()
    withdraw(store, artifact.stage, artifact.identity)
    for root in (first, second):
        pull_metadata(root, store)
    assert (artifact.path.exists(), list(stub.parent.iterdir())) == (True, [])
    assert build(second).outcome == BUILT


@pytest.mark.parametrize("name", ["../../escaped", "/escaped", "a/../../escaped", ".."])
def test_no_name_in_a_store_leads_out_of_the_root(machine: Machine, store: ObjectStore, name: str) -> None:
    """What somebody else wrote there, with a right seal: nothing is written anywhere."""
    root = machine("a")
    check_store(root, store)
    files = [{"name": name, "table": "", "rows": 0, "bytes": 1, "digest": "0" * 32, "deterministic": True}]
    with pytest.raises(IntegrityError, match="plain"):
        create_stub(root, {"stage": "pour", "identity": "1" * 32, "files": files})
    with pytest.raises(IntegrityError, match="plain"):
        create_stub(root, {"stage": name, "identity": "1" * 32, "files": []})
    store.write(f"unfinished/pour/{'1' * 32}.json", {"units": {name: {"files": []}}, "groups": [], "writer": "x"})
    (root / "work").mkdir()
    with pytest.raises(IntegrityError, match="plain"):
        download_partial_build(root, store, "pour", "1" * 32, root / "work", "me")
    store.write(f"unfinished/pour/{'1' * 32}.json", {"units": {}, "groups": [{name: files[0]}], "writer": "x"})
    with pytest.raises(IntegrityError, match="plain"):
        download_partial_build(root, store, "pour", "1" * 32, root / "work", "me")
    assert not [path for path in root.parent.parent.rglob("*") if "escaped" in path.name]
