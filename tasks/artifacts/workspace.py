"""Where an unfinished build keeps what it has finished: units of work, each all there or not there at all.

A unit (usually one part) writes its files under temporary names, makes them durable, renames them into the
workspace, and last writes its record: the files' digests and the unit's share of the report. A build killed at any
instant goes on from the units whose records and bytes still agree.
"""

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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

    Raises IntegrityError for a name that would lead out of the folder that lists it.
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
                f" Somebody changed the manifest, and nothing was read. Put the artifact out of the way with `bessemer"
                f" verify --set-aside`, and run again."
            )


def take_over(work: Path, build: str, token: str) -> tuple[Path, bool]:
    """The folder `work/BUILD.TOKEN` with all that earlier holders of the build finished; True if there was any.

    `build` names what is built, `token` who builds it now. The newest earlier folder is renamed, others are removed.
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
    """Remove what killed builders left of builds that somebody has published since.

    `published` and `busy` tell whether an artifact of an identity stands, and whether somebody builds it now.
    """
    for folder in work.glob("*.*"):
        identity = folder.name.partition(".")[0]
        if published(identity) and not busy(identity):
            shutil.rmtree(folder, ignore_errors=True)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record of a unit, whose files and folder stand."""
    replace_durably(path, seal(record, sort_keys=True, indent=None))


def read_record(path: Path) -> dict[str, Any]:
    """The record of a unit; IntegrityError where it is damaged."""
    return read_sealed(path, "Run again: this unit is made again, and the others are kept.")


class Unit:
    """One unit being written; leave the `Workspace.unit` block to finish it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: list[FileRecord] = []
        self.report = StageReport()

    def path(self, name: str) -> Path:
        """Where to write a file of the unit; call `add_file` once it is complete."""
        return self._folder / name

    def add_file(self, name: str, *, table: str = "", rows: int = 0, deterministic: bool = True) -> None:
        """Take a completed file of this unit into the artifact."""
        path = self._folder / name
        sync_file(path)
        self.files.append(FileRecord(name, table, rows, path.stat().st_size, digest_file(path), deterministic))


@dataclass(frozen=True)
class Workspace:
    """The folder of one unfinished build. Cheap to copy into worker processes: it is only a path.

    Whoever takes the build over renames the folder (`take_over`), and a late predecessor finds nothing where it left
    off. That is why nothing here ever makes the folder itself.
    """

    folder: Path
    progress: Callable[[int, int | None, str], None] | None = None
    identity_file: Path | None = None
    """States the whole identity of what is built; None outside a build."""
    limits: Limits | None = None
    """What ends the build while its parts finish."""

    @property
    def _files(self) -> Path:
        return self.folder / "files"

    @property
    def _records(self) -> Path:
        return self.folder / "units"

    def scratch(self, name: str) -> Path:
        """A folder for a build's own intermediate state (checkpoints, signatures); never published."""
        path = self.folder / "scratch" / name
        for folder in (path.parent, path):
            folder.mkdir(exist_ok=True)
        return path

    def within(self, name: str) -> "Workspace":
        """A workspace in the scratch folder `name`, for a pass whose units are not published."""
        return replace(self, folder=self.scratch(name), limits=None)

    def advance(self, done: int, total: int | None, unit: str) -> None:
        """Tell whoever watches that `done` of `total` units of the named kind are finished."""
        if self.progress is not None:
            self.progress(done, total, unit)

    def check_so_far(self, report: StageReport) -> None:
        """Raise GuardError where the first parts, whose report this is, pass a limit whatever the others say."""
        if self.limits is not None:
            self.limits.check_so_far(report)

    def for_worker(self) -> "Workspace":
        """The same workspace without whoever listens, who does not travel between processes."""
        return replace(self, progress=None, limits=None)

    def finished(self, unit: str) -> StageReport | None:
        """The report of a unit that is finished and whose files still have their digests, else None."""
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
                log.warning("%s is missing or has other bytes: the unit %s is made again", path, unit)
                record.unlink()
                return None
        return StageReport.from_json(data["report"])

    @contextmanager
    def unit(self, name: str) -> Iterator[Unit]:
        """Write one unit; on leaving the block its files are durable, renamed into place, and recorded last."""
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
            record = {"files": [asdict(file) for file in unit.files], "report": unit.report.to_json()}
            write_record(self._records / f"{name}.json", record)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def file(self, name: str) -> Path:
        """The path of a file of a finished unit, for later passes of the same build."""
        return self._files / name

    def await_units(self, units: Sequence[str], executor: Executor) -> None:
        """Return once this machine sees the records and files of units that the executor's workers finished."""
        if units:
            executor.await_files(self._records, (f"{unit}.json" for unit in units))
            executor.await_files(self._files, (record.name for record in self.records()))

    def records(self) -> list[FileRecord]:
        """All files of finished units, sorted by name."""
        found = [
            FileRecord(**file)
            for record in sorted(self._records.glob("*.json"))
            for file in read_record(record)["files"]
        ]
        return sorted(found, key=lambda file: file.name)

    def clear_temporary(self) -> None:
        """Remove what a killed builder left half-written."""
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)

    def publish_files(self, target: Path, listed: Mapping[str, str] | None = None) -> None:
        """Put every finished file into `target` by hard link, or by copy where the disk has no links.

        With `listed`, digests by name, only files that have theirs.
        """
        for record in self.records():
            if listed is not None and listed.get(record.name) != record.digest:
                continue
            link_or_copy(self._files / record.name, target / record.name)
