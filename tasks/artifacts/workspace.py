"""The workspace of an unfinished build: finished units of work, each written atomically.

A unit (usually one part) writes its files under temporary names, makes them durable, renames them into the workspace,
and writes its record last: the files' digests and the unit's share of the report. A build that was killed at any time
resumes from the units whose records and bytes agree.
"""

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

from model.checksummed_json import read_sealed, seal
from model.digests import digest_file
from model.errors import IntegrityError
from model.files import link_or_copy, replace_durably, sync_directory, sync_file
from tasks.artifacts.limits import Limits
from tasks.artifacts.report import StageReport
from tasks.common.work import Executor

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRecord:
    """One finished file: its table (or ""), rows, size in bytes, BLAKE3-128, and whether it is deterministic.

    Raises IntegrityError for a name that leads out of the folder of the manifest.
    """

    name: str
    table: str
    rows: int
    bytes: int
    digest: str
    deterministic: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name in ("", ".", "..") or {*self.name} & {"/", "\\", "\0"}:
            raise IntegrityError(
                f"a manifest lists the file {self.name!r}, and files of an artifact have plain names, without folders."
                f" Somebody changed the manifest, and nothing was read. Set the artifact aside with `bessemer store"
                f" verify --set-aside`, and run again."
            )

    def to_json(self) -> "FileEntry":
        """Return the entry of a manifest."""
        return cast(FileEntry, asdict(self))


class FileEntry(TypedDict):
    """A `FileRecord` as JSON."""

    name: str
    table: str
    rows: int
    bytes: int
    digest: str
    deterministic: bool


class UnitRecord(TypedDict):
    """The record of a finished unit: its files, and its share of the report (`StageReport.to_json`)."""

    files: list[FileEntry]
    report: dict[str, Any]


def take_over(work: Path, build: str, token: str) -> tuple[Path, bool]:
    """Return the folder `work/BUILD.TOKEN` with all that earlier holders finished, and whether there was an earlier
    one.

    `build` names what is built, `token` its present holder. The newest earlier folder is renamed, others are removed.
    """
    work.mkdir(parents=True, exist_ok=True)
    folder = work / f"{build}.{token}"
    earlier = sorted(work.glob(f"{build}.[0-9]*"), reverse=True)
    for number, old in enumerate(earlier):
        if number == 0:
            os.rename(old, folder)
        else:
            shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    return folder, bool(earlier)


def sweep(work: Path, published: Callable[[str], bool], busy: Callable[[str], bool]) -> None:
    """Remove the folders of killed builds whose artifacts were published since.

    `published` and `busy` return whether the artifact of an identity exists, and whether it is being built. Those of
    forced builds stay, since their artifacts were published before.
    """
    for folder in work.glob("*.*"):
        identity = folder.stem
        if published(identity) and not busy(identity):
            shutil.rmtree(folder, ignore_errors=True)


def write_record(path: Path, record: UnitRecord) -> None:
    """Write the record of a unit whose files are in place, durably."""
    replace_durably(path, seal(record, sort_keys=True, indent=None))


def read_record(path: Path) -> UnitRecord:
    """Return the record of a unit. Raises IntegrityError if it is damaged."""
    return cast(UnitRecord, read_sealed(path, "Run again: this unit is rebuilt, and the others are kept."))


class Unit:
    """A unit that is being written; it is finished on leaving the `Workspace.unit` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Where to write the files of the unit."""
        self.files: list[FileRecord] = []
        self.report = StageReport()

    def path(self, name: str) -> Path:
        """Return where to write a file of the unit; call `add_file` when it is complete."""
        return self.folder / name

    def add_file(self, name: str, *, table: str = "", rows: int = 0, deterministic: bool = True) -> None:
        """Add a completed file of this unit to the artifact."""
        path = self.folder / name
        sync_file(path)
        self.files.append(FileRecord(name, table, rows, path.stat().st_size, digest_file(path), deterministic))


@dataclass(frozen=True)
class Workspace:
    """The folder of one unfinished build. Cheap to copy into worker processes: it is only a path.

    A process that takes the build over renames the folder (`take_over`), so a late predecessor finds it missing. That
    is why no method here creates the folder itself."""

    folder: Path
    progress: Callable[[int, int | None, str], None] | None = None
    identity_file: Path | None = None
    """File with the identity of the build; None outside of a build."""
    limits: Limits | None = None
    """Limits that are checked as parts finish."""

    @property
    def _files(self) -> Path:
        return self.folder / "files"

    @property
    def _records(self) -> Path:
        return self.folder / "units"

    def scratch(self, name: str) -> Path:
        """Return a folder for intermediate state of the build (checkpoints, signatures); it is not published."""
        path = self.folder / "scratch" / name
        for folder in (path.parent, path):
            folder.mkdir(exist_ok=True)
        return path

    def within(self, name: str) -> "Workspace":
        """Return a workspace in the scratch folder `name`, for a pass whose units are not published."""
        return replace(self, folder=self.scratch(name), limits=None)

    def advance(self, done: int, total: int | None, unit: str) -> None:
        """Report that `done` of `total` units of the named kind are finished."""
        if self.progress is not None:
            self.progress(done, total, unit)

    def check_so_far(self, report: StageReport) -> None:
        """Raise GuardError if the first parts, whose report this is, exceed a limit whatever the others hold."""
        if self.limits is not None:
            self.limits.check_so_far(report)

    def for_worker(self) -> "Workspace":
        """Return the workspace without progress listener and limits, which are not sent to other processes."""
        return replace(self, progress=None, limits=None)

    def finished(self, unit: str) -> StageReport | None:
        """Return the report of a finished unit whose files have their digests, else None."""
        record = self._records / f"{unit}.json"
        if not record.exists():
            return None
        try:
            data = read_record(record)
        except IntegrityError as error:
            log.warning("%s", error)
            record.unlink()
            return None
        for file in data["files"]:
            path = self._files / file["name"]
            if not path.exists() or digest_file(path) != file["digest"]:
                log.warning("%s is missing or has other bytes: the unit %s is rebuilt", path, unit)
                record.unlink()
                return None
        return StageReport.from_json(data["report"])

    @contextmanager
    def unit(self, name: str) -> Iterator[Unit]:
        """Write one unit; on leaving the block its files are made durable, renamed into place, and recorded last."""
        temporary = self.folder / "tmp" / f"{name}-{uuid.uuid4().hex[:8]}"
        for folder in (temporary.parent, temporary):
            folder.mkdir(exist_ok=True)
        self._files.mkdir(exist_ok=True)
        self._records.mkdir(exist_ok=True)
        unit = Unit(temporary)
        try:
            yield unit
            for file in unit.files:
                os.replace(temporary / file.name, self._files / file.name)
            sync_directory(self._files)
            record: UnitRecord = {"files": [file.to_json() for file in unit.files], "report": unit.report.to_json()}
            write_record(self._records / f"{name}.json", record)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def discard(self, unit: str) -> None:
        """Make a finished unit unfinished, so that it is not published unless it is written again."""
        (self._records / f"{unit}.json").unlink(missing_ok=True)

    def file(self, name: str) -> Path:
        """Return the path of a file of a finished unit, for later passes of the same build."""
        return self._files / name

    def await_units(self, units: Sequence[str], executor: Executor) -> None:
        """Return once this machine sees the records and files of units that the executor's workers finished."""
        if units:
            executor.await_files(self._records, (f"{unit}.json" for unit in units))
            executor.await_files(self._files, (record.name for record in self.records()))

    def records(self) -> list[FileRecord]:
        """Return all files of finished units, sorted by name."""
        found = [
            FileRecord(**file)
            for record in sorted(self._records.glob("*.json"))
            for file in read_record(record)["files"]
        ]
        return sorted(found, key=lambda file: file.name)

    def clear_temporary(self) -> None:
        """Remove the half-written files of a killed builder."""
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)

    def publish_files(self, target: Path, listed: Mapping[str, str]) -> None:
        """Put the finished files that have the `listed` digest of their name into `target` by hard link, or by copy if
        the file system has no links."""
        for record in self.records():
            if listed.get(record.name) != record.digest:
                continue
            link_or_copy(self._files / record.name, target / record.name)
