"""What a builder leaves behind at each of its writes: of a kill, and of a loss of power.

One build runs in a child process that listens to every file it opens, renames, links and removes, and to every fsync.
Before each of them, a hundred-odd instants, it copies the root four times: as a process that is killed there leaves it;
as a loss of power does on a file system that wrote the names back and not the bytes; on one that wrote back the names
of folders, and of files what fsync had promised; and on one that kept nothing but that. In each copy, whatever exists
is whole, whatever is recorded as finished is not done again, and the next build gives the bytes of an undisturbed one.
"""

import json
import os
import shutil
import stat
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from model.checkpoint.checkpoint import checkpoint_steps, intact_steps
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.writer import CheckpointWriter
from model.distributed.process_group import SINGLE_PROCESS
from model.errors import IntegrityError
from model.files import write_atomically
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.tables.ledger import CUT, LedgerRows
from tasks.artifacts.tables.map_parts import PartResult, map_parts
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.execution.executor import ThisProcess

POUR = Stage("pour", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
TRIM = Stage("trim", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
PARTS = 2
KILLED = "a kill"
UNWRITTEN = "a loss of power that kept names"
FOLDERS = "a loss of power that kept folders and what was synced"
PROMISED = "a loss of power that kept what was synced"
KEPT_OPEN: dict[tuple[int, int], int] = {}
"""Handles by device and inode, so that no inode's number is given to another file while its bytes are remembered."""


class TrimConfig(StrictConfig):
    limit: int = 6


def pour(workspace: Workspace) -> StageReport:
    report = StageReport()
    counts = report.source("ore")
    for number in range(PARTS):
        name, text = f"{number:05d}", f"ingot {number}"
        with workspace.unit(name) as unit:
            write_table(unit, "documents", pa.table({"text": [text]}), table_file_name("documents", name))
        counts.documents_in += 1
        counts.documents_out += 1
        counts.bytes_in += len(text)
        counts.bytes_out += len(text)
    return report


def trim(documents: pa.Table, index: int, config: TrimConfig, done: list[int]) -> PartResult:
    """Each text cut to the limit, and a row of the ledger that says so."""
    done.append(index)
    ledger = LedgerRows("trim")
    texts: list[str] = []
    result = PartResult()
    counts = result.report.source("ore")
    for text in documents.column("text").to_pylist():
        ledger.add(doc_id=bytes([index]) * 16, action=CUT, rule="limit", bytes_in=len(text), bytes_out=config.limit)
        texts.append(text[: config.limit])
        counts.documents_in += 1
        counts.documents_out += 1
        counts.bytes_in += len(text)
        counts.bytes_out += len(texts[-1])
    result.tables = {"documents": pa.table({"text": texts}), "ledger": ledger.table()}
    return result


def build(root: Path, done: list[int], limit: int = 6) -> Artifact:
    """Three parts with their ledgers, made of an artifact of three parts."""
    context = RunContext(root, "run", lease_seconds=0.06)
    ingots = build_artifact(context, POUR, StrictConfig(), {}, pour)
    config = TrimConfig(limit=limit)

    def run(workspace: Workspace) -> StageReport:
        return map_parts(workspace, ingots, lambda *part: trim(*part, config, done), ThisProcess())

    return build_artifact(context, TRIM, config, {"documents": ingots}, run)


class Disk:
    """Listens to what happens below `root`, and copies what would be left of it before each event into `copies`.

    What an fsync promises is remembered by inode: a file's bytes, a folder's names.
    """

    def __init__(self, root: Path, copies: Path) -> None:
        self.instants = 0
        self.events: list[str] = []
        self._root, self._copies = root, copies
        self._bytes: dict[tuple[int, int], bytes] = {}
        self._names: dict[tuple[int, int], dict[str, os.stat_result]] = {}
        self._listening = False
        self._sync = os.fsync

    def listen(self) -> None:
        """From now on, to the end of the process; what is below the root now counts as promised."""
        for path in [self._root, *self._root.rglob("*")]:
            handle = os.open(path, os.O_RDONLY)
            self._promise(handle)
            os.close(handle)
        os.fsync = os.fdatasync = self._fsync
        sys.addaudithook(self._hear)
        self._listening = True

    def stop(self) -> None:
        self._copy("the end")
        self._listening = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._listening:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if event in ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"):
            words = [str(word) for word in arguments if isinstance(word, str | Path)]
            if event in ("os.remove", "os.rmdir") and arguments[1] >= 0:  # `shutil.rmtree` names files by their folder.
                words = [f"{os.readlink(f'/proc/self/fd/{arguments[1]}')}/{words[0]}"]
            self._copy(" ".join([event, *words]))

    def _fsync(self, handle: int) -> None:
        self._copy(f"fsync {os.readlink(f'/proc/self/fd/{handle}')}")
        self._sync(handle)
        self._promise(handle)

    def _promise(self, handle: int) -> None:
        key = _key(os.fstat(handle))
        KEPT_OPEN.setdefault(key, os.dup(handle))
        path = Path(f"/proc/self/fd/{handle}")
        if path.is_dir():
            self._names[key] = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(path)}
        else:
            self._bytes[key] = path.read_bytes()

    def _copy(self, event: str) -> None:
        if str(self._root) not in event and event != "the end":
            return
        self._listening, listening = False, self._listening
        self.events.append(event.replace(f"{self._root}/", ""))
        place = self._copies / f"{self.instants:03d}"
        shutil.copytree(self._root, place / KILLED)
        shutil.copytree(self._root, place / UNWRITTEN, copy_function=self._copy_promised_bytes)
        self._restore(_key(self._root.stat()), place / PROMISED)
        for folder in [self._root, *(path for path in self._root.rglob("*") if path.is_dir())]:
            self._restore_files(_key(folder.stat()), place / FOLDERS / folder.relative_to(self._root))
        self.instants += 1
        self._listening = listening

    def _copy_promised_bytes(self, source: str, target: str) -> None:
        Path(target).write_bytes(self._bytes.get(_key(os.stat(source)), b""))

    def _restore(self, folder: tuple[int, int], target: Path) -> None:
        """The promised names below a folder, with the promised bytes; a name of what nobody synced holds nothing."""
        self._restore_files(folder, target)
        for name, status in self._names.get(folder, {}).items():
            if stat.S_ISDIR(status.st_mode):
                self._restore(_key(status), target / name)

    def _restore_files(self, folder: tuple[int, int], target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for name, status in self._names.get(folder, {}).items():
            if not stat.S_ISDIR(status.st_mode):
                (target / name).write_bytes(self._bytes.get(_key(status), b""))


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def listened(root: Path, copies: Path, write: Callable[[], object]) -> list[str]:
    """What was about to happen at each copy, while a child process wrote below `root`."""
    child = os.fork()
    if child == 0:
        disk = Disk(root, copies)
        try:
            disk.listen()
            write()
            disk.stop()
            (copies / "events.json").write_text(json.dumps(disk.events))
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads((copies / "events.json").read_text())


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copies of one build, and `events.json`."""
    root, copies = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("copies")
    build_artifact(RunContext(root, "run"), POUR, StrictConfig(), {}, pour)
    listened(root, copies, lambda: build(root, []))
    return copies


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("undisturbed"), []).content


def test_the_listener_hears_every_kind_of_write(copies: Path) -> None:
    """A listener that misses the writes would find no fault with their order."""
    events = json.loads((copies / "events.json").read_text())
    for kind in ("open", "fsync", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir"):
        assert any(event.startswith(f"{kind} ") for event in events), kind
    assert len(events) >= 60
    commits = [event for event in events if event.startswith("os.rename") and " artifacts/trim/" in event]
    assert len(commits) == 1, commits


@pytest.mark.parametrize("view", [KILLED, UNWRITTEN, FOLDERS, PROMISED])
def test_at_every_write_what_exists_is_whole_and_what_is_recorded_is_not_done_again(
    copies: Path, undisturbed: str, view: str
) -> None:
    events = json.loads((copies / "events.json").read_text())
    seen: set[frozenset[tuple[str, bytes]]] = set()
    for number, event in enumerate(events):
        root, at = copies / f"{number:03d}" / view, f"{view} at {number} of {len(events)}, before: {event}"
        published = list(root.glob("artifacts/trim/*"))
        assert published or number < len(events) - 1, f"{at}: the build had returned, and nothing exists"
        if (found := files_of(root)) in seen:
            # An fsync changes nothing that a kill leaves, and nothing else changes what was promised.
            continue
        seen.add(found)
        for path in root.glob("artifacts/*/*"):
            assert is_whole(path), f"{at}: {path.name} of {path.parent.name} exists and is not whole"
        recorded = len(list(root.glob("work/*/units/*.json")))
        for folder in root.glob("work/*/files"):
            (folder / "part-99999.arrow").write_bytes(b"of a unit that was never finished")
        done: list[int] = []
        artifact = build(root, done)
        assert artifact.content == undisturbed, at
        assert is_whole(artifact.path), at
        wanted = 0 if published else PARTS - recorded
        assert len(done) == wanted, f"{at}: {recorded} units were recorded, and {done} were done again"
        build(root, [], limit=5)  # The next build of anything removes what was left.
        # After a loss of power nobody can say whether the holder of a lease lives on another machine: its folder stays.
        assert view != KILLED or not list(root.glob("work/*")), f"{at}: something is left in work/"


def test_what_is_written_in_new_folders_is_kept_with_the_folders(tmp_path: Path) -> None:
    """The name of a new folder is durable once the folder above it is synced, however deep the folders are."""
    root, copies = tmp_path / "root", tmp_path / "copies"
    root.mkdir()
    copies.mkdir()

    def write() -> None:
        build_artifact(RunContext(root, "run"), POUR, StrictConfig(), {}, pour)
        write_atomically(root / "runs" / "a-run" / "run.json", b"{}")

    end = copies / f"{len(listened(root, copies, write)) - 1:03d}" / PROMISED
    (artifact,) = end.glob("artifacts/pour/*")
    assert is_whole(artifact)
    assert (end / "runs" / "a-run" / "run.json").read_bytes() == b"{}"


@dataclass
class Ingot:
    """What a checkpoint asks of an engine, with a network of one small vector."""

    weight: torch.Tensor
    optimizer_shards: int = 1
    weight_shards: int = 1

    def weights(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    def begins(self) -> dict[str, tuple[int, ...]]:
        return {}

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        return {"weight|exp_avg": self.weight / 2}


def test_at_every_write_the_checkpoints_that_exist_are_whole(tmp_path: Path) -> None:
    """Two checkpoints are written, of which the first is removed as the second is complete."""
    root, copies = tmp_path / "root", tmp_path / "copies"
    folder = root / "checkpoints"
    folder.mkdir(parents=True)
    copies.mkdir()

    def write() -> None:
        with CheckpointWriter(folder, SINGLE_PROCESS) as writer:
            for step in (1, 2):
                writer.save(step, Ingot(torch.full([8], float(step))), MetricsLog(), {}, keep=1)  # type: ignore[arg-type]

    events = listened(root, copies, write)
    wholes = 0
    for number, event in enumerate(events):
        for view in (KILLED, UNWRITTEN, FOLDERS, PROMISED):
            place = copies / f"{number:03d}" / view / "checkpoints"
            found, whole = checkpoint_steps(place), intact_steps(place)
            assert found == whole, f"{view} at {number}, before {event}: {found} exist, and {whole} are whole"
            assert len(whole) >= wholes, f"{view} at {number}, before {event}: none is left"
        wholes = min(1, len(intact_steps(copies / f"{number:03d}" / PROMISED / "checkpoints")))
    assert wholes == 1, "two checkpoints were written, and a loss of power leaves none"


def files_of(root: Path) -> frozenset[tuple[str, bytes]]:
    """Everything below a root: the names of folders, with a stroke, and files with their bytes."""
    paths = [(str(path.relative_to(root)), path) for path in root.rglob("*")]
    return frozenset((f"{name}/", b"") if path.is_dir() else (name, path.read_bytes()) for name, path in paths)


def is_whole(path: Path) -> bool:
    """Whether an artifact holds exactly the files that its manifest lists, with their bytes."""
    try:
        artifact = Artifact.open(path)
    except IntegrityError:
        return False
    listed = {"manifest.json", *(record.name for record in artifact.records)}
    return {entry.name for entry in path.iterdir()} == listed and artifact.verify() == []
