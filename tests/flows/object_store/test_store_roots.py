"""The whole pipeline on a root in an object store that fails, and over two machines: the digests of a local run."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import s3fs

from flows.recipe.stages import STAGES
from flows.runs.object_store import list_leftovers
from tasks.artifacts.remote.artifacts import part_key
from tasks.artifacts.remote.object_store import ObjectStore

SECONDS = 1800.0
SECRET = "planted-c0ffee-and-nobody-s"
SETTINGS = (
    "budget_tokens=160K",
    "train.batch_rows=1",
    "train.micro_batch_rows=1",
    "train.checkpoint_steps=20",
    "train.threads=1",
    "train.model.layers=12",
    "train.model.width=64",
)
"""2,500 steps, a minute on a quiet machine: the first checkpoint must be in a store that fails before the end."""

pytestmark = pytest.mark.prove


class Machine:
    """One machine: its cache, and how it knows the store."""

    def __init__(self, cache: Path, store_environment: dict[str, str]) -> None:
        self.cache = cache
        patience = {"BESSEMER_STORE_SECONDS": "15", "BESSEMER_STORE_PAUSE": "0.5"}
        more = {"BESSEMER_CACHE": str(cache), "AWS_SECRET_ACCESS_KEY": SECRET, **patience}
        self._environment = {**os.environ, **store_environment, **more}

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """A `bessemer` command in a group of its own."""
        command = [sys.executable, "-m", "flows.cli", *map(str, words)]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,
        )

    def bessemer(self, *words: str | Path) -> str:
        """What a command says."""
        started = self.start(*words)
        out, err = started.communicate(timeout=SECONDS)
        assert started.returncode == 0, f"{words}: {err}"
        return out

    def run(self, recipe: Path, root: str | Path, *words: str) -> dict[str, Any]:
        """The record of a run."""
        return json.loads(self.bessemer("run", recipe, "--root", root, "--json", *words))


@pytest.fixture
def address(object_store, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    return f"s3://bessemer/{secrets.token_hex(6)}"


def contents(record: dict[str, Any]) -> dict[str, str]:
    return {entry["stage"]: entry["content"] for entry in record["stages"]}


def wait_for(what: str, holds, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.5)


def kept_checkpoints(store: ObjectStore) -> int:
    keys = list(store.list_objects("unfinished/train"))
    groups = [group for key in keys for group in store.read(key)["groups"]]
    return sum(any("checkpoints/step-" in name for name in group) for group in groups)


def planted_secrets(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_through_faults_and_over_two_machines_a_run_ends_with_the_digests_of_a_local_one(
    foundry: Path, object_store, address: str, tmp_path: Path
) -> None:
    """15% of the requests meet a fault. Machine A is killed in training; B begins with an empty cache."""
    recipe = foundry / "foundry.toml"
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    first, second = (Machine(tmp_path / name, object_store.environment) for name in ("a", "b"))
    undisturbed = first.run(recipe, tmp_path / "local", *settings)
    store, before = ObjectStore(address), len(object_store.faults())
    object_store.fail(0.15, seed=9, stall_seconds=20)
    try:
        started = first.start("run", recipe, "--root", address, "--json", *settings)
        wait_for("a checkpoint in the store", lambda: kept_checkpoints(store) or started.poll() is not None)
        assert started.poll() is None, started.communicate()
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
        assert [key for key in store.list_objects("manifests") if "/train/" in key] == []
        record = second.run(recipe, address, *settings)
    finally:
        object_store.fail(0)
    assert contents(record) == contents(undisturbed)
    assert len(contents(record)) == len(STAGES)
    outcomes = {entry["stage"]: entry["outcome"] for entry in record["stages"]}
    assert outcomes == {stage: "built" if stage in ("train", "evaluate") else "reused" for stage in STAGES}
    came = [note["note"] for note in record["notes"] if "fetched from the store" in note["note"]]
    assert len(came) == 1
    (model,) = [entry for entry in record["stages"] if entry["stage"] == "train"]
    assert "continued from the finished parts" in model["cause"]
    faults = object_store.faults()[before:]
    print(Counter(fault["fault"] for fault in faults), came)
    # What was given up after its deadline may reach the store behind all else; `gc` takes it.
    late = {fault["path"] for fault in faults if fault["fault"] == "stall" and fault["method"] == "PUT"}
    left = [*store.list_objects("unfinished"), *store.list_objects("checkpoints")]
    assert {f"/{address.removeprefix('s3://')}/{key}" for key in left} <= late
    known = [(entry["stage"], entry["identity"]) for entry in record["stages"]]
    unfinished = {tuple(key.removesuffix(".json").split("/")[1:3]) for key in left}
    assert list_leftovers(store, known, unfinished_since=time.time() + 1) == sorted(unfinished)

    assert "all as published" in second.bessemer("store", "verify", "--root", address)
    third = Machine(tmp_path / "c", object_store.environment)
    listed = json.loads(third.bessemer("runs", "list", "--root", address, "--json"))
    assert sorted(run["state"] for run in listed) == ["completed", "interrupted"], "A was killed"
    assert "note-05.txt" in third.bessemer("data", "history", "note-05.txt", "--root", address)
    forecast = json.loads(third.bessemer("plan", recipe, "--root", address, "--json", *settings))
    assert [stage["verdict"] for stage in forecast] == ["reused"] * len(STAGES)

    for machine in (first, second, third):
        assert planted_secrets(machine.cache) == []
    everything = s3fs.S3FileSystem(use_listings_cache=False)
    objects = everything.find(address.removeprefix("s3://"))
    assert len(store.list_objects("manifests")) == len(STAGES) <= len(store.list_objects("parts")) < len(objects)
    assert [name for name in objects if SECRET.encode() in everything.cat_file(name)] == []


def test_two_machines_that_run_one_recipe_build_each_artifact_once(
    foundry: Path, object_store, address: str, tmp_path: Path
) -> None:
    machines = [Machine(tmp_path / name, object_store.environment) for name in ("a", "b")]
    words = ("run", foundry / "foundry.toml", "--root", address, "--until", "dedup", "--json")
    started = [machine.start(*words) for machine in machines]
    records = [json.loads(one.communicate(timeout=SECONDS)[0]) for one in started]
    assert contents(records[0]) == contents(records[1])
    by_stage = [{entry["stage"]: entry["outcome"] for entry in record["stages"]} for record in records]
    for stage in ("sample", "clean", "dedup"):
        assert sorted(outcomes[stage] for outcomes in by_stage) == ["built", "reused"], stage
    store = ObjectStore(address)
    assert len(store.list_objects("manifests")) == 3
    parts = store.list_objects("parts")
    for key in store.list_objects("manifests"):
        manifest = store.read(key)
        for file in manifest["files"]:
            assert part_key(manifest["stage"], manifest["identity"], file["digest"]) in parts


def test_what_no_kept_run_needs_is_collected_in_the_store(
    foundry: Path, object_store, address: str, tmp_path: Path
) -> None:
    machine = Machine(tmp_path / "a", object_store.environment)
    store = ObjectStore(address)
    recipe = foundry / "foundry.toml"
    machine.run(recipe, address, "--until", "clean", "--set", "sample.limit=0.5")
    old = {*store.list_objects("manifests"), *store.list_objects("parts")}
    machine.run(recipe, address, "--until", "clean")
    kept = {*store.list_objects("manifests"), *store.list_objects("parts")} - old
    for manifest in tmp_path.glob("a/*/artifacts/*/*/manifest.json"):
        os.utime(manifest, (0, 0))  # Artifacts of the last hour are never collected.
    machine.bessemer("store", "gc", "--keep-last", "1", "--yes", "--root", address)
    left = {*store.list_objects("manifests"), *store.list_objects("parts")}
    assert left >= kept
    assert len([key for key in left if key.startswith("manifests/")]) == 2
    assert "all as published" in machine.bessemer("store", "verify", "--root", address)
