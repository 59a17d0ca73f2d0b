"""Each sabotage of a joint fails the ordinary tests: applied for real, to a copy of the project, and one at a time.

A sabotage replaces one piece of text, and the tests named beside it run on the copy. The same tests pass on a copy that
nobody touched, so that they fail because of the sabotage. Where code moves, `old` moves with it.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.prove

PROJECT = Path(__file__).parents[2]
COPIED = ("flows", "tasks", "model", "tests", "deployments")
FIELDS = "tests/joints/reuse/test_fields.py"
IDENTITY = "tests/joints/reuse/test_builders_identity.py"
LIBRARIES = "tests/joints/reuse/test_libraries_that_ran.py"
WRITES = "tests/joints/test_durable_order.py"
BUILDERS = "tests/joints/test_builders.py"
RACES, LATE = f"{BUILDERS}::test_two_builders_race", f"{BUILDERS}::test_a_builder_that_wakes_up_late"
LATE_WRITES = f"{LATE}_writes_nothing_into_the_work_that_was_taken_over"
CHECKPOINTS = f"{WRITES}::test_at_every_write_the_checkpoints_that_exist_are_whole"
BUILD, LEASE = "tests/tasks/artifacts/test_build.py", "tests/tasks/artifacts/test_lease.py"
KILLS = "tests/chaos/test_kill_in_every_stage.py"


@dataclass(frozen=True)
class Sabotage:
    name: str
    file: str
    old: str
    new: str
    tests: str
    """The file or the test that must fail."""


FOUND = '{"files": [file.to_json() for file in unit.files], "report": unit.report.to_json()}'
RECORD = f"""            record: UnitRecord = {FOUND}
            write_record(self._records / f"{{name}}.json", record)
"""
FILES = """            for file in unit.files:
                os.replace(temporary / file.name, self._files / file.name)
            sync_directory(self._files)
"""
LINKS = """    workspace.publish_files(staging, {file["name"]: file["digest"] for file in manifest["files"]})
"""
MANIFEST = """    write_manifest(staging, manifest)
"""
PART = """    with workspace.unit(unit_name(index)) as unit:
        for table, rows in result.tables.items():
            write_table(unit, table, rows, table_file_name(table, unit_name(index)))
        unit.report = result.report
"""
APART = """    for table, rows in result.tables.items():
        with workspace.unit(unit_name(index) + ("" if table == "documents" else table)) as unit:
            write_table(unit, table, rows, table_file_name(table, unit_name(index)))
            unit.report = result.report
"""
SABOTAGES = [
    Sabotage(
        "a parameter is left out of the identity",
        "tasks/artifacts/build.py",
        "params=config.identity_params(),",
        'params={name: value for name, value in config.identity_params().items() if name != "max_epochs"},',
        FIELDS,
    ),
    Sabotage("a library is left out of a stage's list", "tasks/dedup/stage.py", '"numba", ', "", LIBRARIES),
    Sabotage(
        "no rename at commit",
        "tasks/artifacts/publish.py",
        "        os.rename(staging, target)\n",
        '        __import__("shutil").copytree(staging, target)\n',
        WRITES,
    ),
    Sabotage("the manifest before the parts", "tasks/artifacts/publish.py", LINKS + MANIFEST, MANIFEST + LINKS, WRITES),
    Sabotage(
        "a unit's record before its files", "tasks/artifacts/workspace.py", FILES + RECORD, RECORD + FILES, WRITES
    ),
    Sabotage("parts that are not durable", "tasks/artifacts/workspace.py", "        sync_file(path)\n", "", WRITES),
    Sabotage(
        "a record that is not durable",
        "model/files.py",
        "            os.fsync(stream.fileno())\n        os.r",
        "        os.r",
        WRITES,
    ),
    Sabotage(
        "names of parts that are not durable",
        "tasks/artifacts/workspace.py",
        "            sync_directory(self._files)\n",
        "",
        WRITES,
    ),
    Sabotage(
        "a commit that is not durable",
        "tasks/artifacts/publish.py",
        "same bytes.\n    sync_directory(target.parent)\n",
        "same bytes.\n",
        WRITES,
    ),
    Sabotage(
        "names of new folders that are not durable",
        "model/files.py",
        "        path.mkdir(exist_ok=True)\n        sync_directory(path.parent)\n",
        "        path.mkdir(exist_ok=True)\n",
        WRITES,
    ),
    Sabotage("a part's ledger in a unit of its own", "tasks/artifacts/tables/map_parts.py", PART, APART, WRITES),
    Sabotage(
        "files that no record names are published",
        "tasks/artifacts/workspace.py",
        "            link_or_copy(self._files / record.name, target / record.name)\n",
        "            pass\n"
        "        for path in self._files.iterdir():\n"
        "            link_or_copy(path, target / path.name)\n",
        WRITES,
    ),
    Sabotage("a lease for two", "tasks/artifacts/lease.py", " | os.O_EXCL", "", RACES),
    Sabotage(
        "no second look under the lease",
        "tasks/artifacts/build.py",
        "                existing = _existing_artifact(self.context, self.identity)\n",
        "                existing = None\n",
        RACES,
    ),
    Sabotage(
        "a lease that is not renewed",
        "tasks/artifacts/lease.py",
        '            os.pwrite(self._handle, _state(f"{beat}"), 0)\n',
        "            pass\n",
        LEASE,
    ),
    Sabotage(
        "a late builder finds its folder where it was",
        "tasks/artifacts/workspace.py",
        "            os.rename(old, folder)\n",
        "            return old, True\n",
        LATE_WRITES,
    ),
    Sabotage(
        "a late builder's error ends it",
        "tasks/artifacts/build.py",
        "                    if not lease.is_lost():\n                        raise\n",
        "                    raise\n",
        LATE,
    ),
    Sabotage(
        "a damaged unit counts as finished",
        "tasks/artifacts/workspace.py",
        """ or digest_file(path) != file["digest"]""",
        "",
        BUILD,
    ),
    Sabotage(
        "what is read is not checked",
        "tasks/artifacts/published.py",
        "    if found != record.digest:\n",
        "    if not found:\n",
        BUILD,
    ),
    Sabotage(
        "lists and functions of the recipe do not count",
        "tasks/clean/stage.py",
        ", run, external=external, ",
        ", run, ",
        IDENTITY,
    ),
    Sabotage(
        "a parent counts by its identity",
        "tasks/artifacts/build.py",
        "name: parent.content for name, parent in parents.items()",
        "name: parent.identity for name, parent in parents.items()",
        IDENTITY,
    ),
    Sabotage(
        "an input is known by its size and time",
        "tasks/common/digests.py",
        "status.st_mtime_ns, status.st_ino, status.st_ctime_ns]",
        "status.st_mtime_ns]",
        f"{IDENTITY}::test_other_bytes_behind_an_old_time_count",
    ),
    Sabotage(
        "a living builder's work is swept",
        "tasks/artifacts/workspace.py",
        " and not busy(identity)",
        "",
        f"{BUILDERS}::test_the_work_of_a_living_builder_is_left_alone",
    ),
    Sabotage(
        "names of files do not count in the content",
        "tasks/artifacts/manifest.py",
        "combined_digest((record.name, record.digest)",
        'combined_digest(("", record.digest)',
        f"{BUILDERS}::test_the_content_of_an_artifact_counts_names_and_bytes",
    ),
    Sabotage(
        "a checkpoint's bytes are not durable",
        "model/files.py",
        "        os.fsync(stream.fileno())\n    return hasher",
        "    return hasher",
        CHECKPOINTS,
    ),
    Sabotage(
        "names in a checkpoint are not durable",
        "model/checkpoint/writer.py",
        "            sync_directory(self.temporary)\n",
        "",
        CHECKPOINTS,
    ),
    Sabotage(
        "a checkpoint's own name is not durable",
        "model/checkpoint/writer.py",
        "            sync_directory(folder)\n",
        "",
        CHECKPOINTS,
    ),
    Sabotage(
        "the server of a run outlives it",
        "flows/service/local_server.py",
        "    die_with_parent(parent)\n",
        "",
        KILLS,
    ),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in COPIED:
        shutil.copytree(PROJECT / folder, tmp_path / "copy" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", tmp_path / "copy")
    return tmp_path / "copy"


def outcome_of(copy: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.run(words, cwd=copy, capture_output=True, text=True, check=False, env=environment)


def test_nobody_s_copy_passes(copy: Path) -> None:
    done = outcome_of(copy, *sorted({sabotage.tests for sabotage in SABOTAGES}))
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_a_sabotage_fails_the_ordinary_tests(copy: Path, sabotage: Sabotage) -> None:
    path = copy / sabotage.file
    source = path.read_text(encoding="utf-8")
    assert source.count(sabotage.old) == 1, (
        f"{sabotage.file} holds the text to replace {source.count(sabotage.old)} times"
    )
    path.write_text(source.replace(sabotage.old, sabotage.new), encoding="utf-8")
    done = outcome_of(copy, sabotage.tests)
    assert done.returncode == 1, done.stdout[-4000:]
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed, done.stdout[-4000:]
    line = source[: source.index(sabotage.old)].count("\n") + 1
    print(f"{sabotage.name} | {sabotage.file}:{line} | {failed[0]}")
