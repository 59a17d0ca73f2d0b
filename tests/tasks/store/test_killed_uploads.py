"""Killed at any moment of an upload, a build leaves no manifest without its parts."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.store.attached import store_of
from tasks.store.objects import ObjectStore
from tasks.store.published import part_key

PROGRAM = """
import sys
import pyarrow as pa
from pathlib import Path
from tasks.build import RunContext, Stage, build_artifact
from tasks.config import StrictConfig
from tasks.report import StageReport
from tasks.workspace import table_file_name

class Config(StrictConfig):
    number: int

def run(workspace):
    for number in range(24):
        name = f"{number:05d}"
        if workspace.finished(name) is None:
            with workspace.unit(name) as unit:
                rows = pa.table({"text": [f"{config.number} {number} {row}" for row in range(2000)]})
                unit.write_table("documents", rows, table_file_name("documents", name))
    return StageReport()

config = Config(number=int(sys.argv[2]))
stage = Stage("pour", roots=("tasks.ledger",), libraries=("pyarrow",))
print("begun", flush=True)
print(build_artifact(RunContext(Path(sys.argv[1]), "run"), stage, config, {}, run).outcome, flush=True)
"""
KILLS = 12


def check_parts(store: ObjectStore) -> int:
    """How many manifests stand; each with every part that it lists."""
    manifests = list(store.under("manifests"))
    parts = store.under("parts")
    for key in manifests:
        manifest = store.read(key)
        for file in manifest["files"]:
            found = parts[part_key(manifest["stage"], manifest["identity"], file["digest"])]
            assert found.bytes == file["bytes"]
    return len(manifests)


@pytest.mark.prove
def test_killed_at_any_moment_no_manifest_stands_without_its_parts(machine) -> None:
    """A kill now and then within the upload of 24 parts; another machine goes on each time."""
    chance = random.Random(1)
    roots = [machine(name) for name in ("a", "b")]
    store = store_of(roots[0])
    assert store is not None
    finished = kills = within = 0
    while kills < KILLS:
        root: Path = roots[kills % 2]
        started = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(root), str(finished)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        assert started.stdout is not None
        assert started.stdout.readline() == "begun\n"
        wanted = chance.randrange(1, 24)
        while started.poll() is None and len(store.under("parts/pour")) < 24 * finished + wanted:
            time.sleep(0.01)
        if started.poll() is None:
            started.send_signal(signal.SIGKILL)
        last = started.communicate()[0]
        kills += 1
        within += len(store.under("parts")) % 24 != 0
        assert check_parts(store) >= finished
        finished += "built" in last
    assert within >= KILLS // 2, "kills are to fall within uploads"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(roots[0]), str(finished)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.stdout.split() in (["begun", "built"], ["begun", "reused"])
    assert check_parts(store) == finished + 1
