"""Killed before or after any request that it makes of the store, a build leaves no manifest without its parts."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
import pyarrow as pa
from pathlib import Path
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.common.config import StrictConfig
from tasks.artifacts.report import StageReport
from tasks.artifacts.remote import partial_builds as unfinished
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.remote.artifacts import part_key
from tasks.artifacts.tables.files import write_table, table_file_name
from tests.processes import in_a_child

class Config(StrictConfig):
    number: int

STAGE = Stage("pour", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
unfinished.PartialBuildUploader.__init__.__kwdefaults__["pause_seconds"] = 0.02

def build(root, number):
    def run(workspace):
        for part in range(4):
            if workspace.finished(f"{part:05d}") is None:
                with workspace.unit(f"{part:05d}") as unit:
                    rows = pa.table({"text": [f"{number} {part} {row}" for row in range(200)]})
                    write_table(unit, "documents", rows, table_file_name("documents", f"{part:05d}"))
        return StageReport()

    return build_artifact(RunContext(root, "run"), STAGE, Config(number=number), {}, run)

def killed(root, number, point, when):
    ask, asked = ObjectStore._request, 0

    def counted(store, *words, **more):
        nonlocal asked
        asked += 1
        mine = asked
        if (mine, when) == (point, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return ask(store, *words, **more)
        finally:
            if (mine, when) == (point, "after"):
                os.kill(os.getpid(), signal.SIGKILL)

    ObjectStore._request = counted
    build(root, number)

def check(root, at_least):
    store = store_of(root)
    parts, manifests = store.list_objects("parts"), store.list_objects("manifests")
    assert len(manifests) >= at_least
    for key, _ in sorted(manifests.items(), key=lambda listed: listed[1].written)[-2:]:
        manifest = store.read(key)
        assert len(manifest["files"]) == 4
        for file in manifest["files"]:
            found = parts[part_key(manifest["stage"], manifest["identity"], file["digest"])]
            assert found.bytes == file["bytes"]

def check_and_go_on(root, number):
    check(root, number)
    build(root, number)
    check(root, number + 1)

first, second = map(Path, sys.argv[1:])
number = 0
for when in ("before", "after"):
    point, ended = 0, signal.SIGKILL
    while ended == signal.SIGKILL:
        point += 1
        ended = in_a_child(killed, first, number, point, when)
        assert in_a_child(check_and_go_on, second, number) == 0
        number += 1
    assert ended == 0, ended
    print(point - 1, flush=True)
"""


@pytest.mark.prove
def test_killed_at_any_request_no_manifest_exists_without_its_parts(machine) -> None:
    """A kill before and after each request of a build; another machine then ends the build."""
    roots = [str(machine(name)) for name in ("a", "b")]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    words = [sys.executable, "-c", PROGRAM, *roots]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=3000)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    print(f"kills before {before} requests, after {after}")
    assert min(before, after) >= 12
