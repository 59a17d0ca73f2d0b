"""A finished artifact as stages read it: a folder whose manifest was written last, read by table."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from model.errors import IntegrityError
from tasks.artifacts import published
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables import read_table
from tasks.artifacts.workspace import FileRecord

BUILT, REUSED, ACCEPTED, REPRODUCED = "built", "reused", "accepted", "reproduced"
"""How an artifact came to stand in a run: made now; found; found under an accepted identity; made again, equal."""


@dataclass(frozen=True)
class Artifact:
    """A published artifact. `content` is the digest over its deterministic files; children are keyed by it.

    `outcome` and `cause` tell how it came to stand in a run, and why it was built or by whom it was accepted, for the
    identity `accepted_for`.
    """

    path: Path
    stage: str
    identity: str
    content: str
    outcome: str = REUSED
    cause: str = ""
    accepted_for: str | None = None

    @property
    def reused(self) -> bool:
        """Whether it stood already."""
        return self.outcome in (REUSED, ACCEPTED)

    @staticmethod
    def open(path: Path, *, outcome: str = REUSED, cause: str = "") -> "Artifact":
        """The artifact at `path`. Raises InputError where it is gone, IntegrityError where its manifest is damaged."""
        place, manifest = published.read_manifest(path)
        opened = Artifact(place, manifest["stage"], manifest["identity"], manifest["content"], outcome, cause)
        vars(opened)["manifest"] = manifest  # What was checked is what is used.
        return opened

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """What the manifest says, checked."""
        return published.read_manifest(self.path)[1]

    @property
    def report(self) -> StageReport:
        """The stage's report: counts by source and facts."""
        return StageReport.from_json(self.manifest["report"])

    @functools.cached_property
    def records(self) -> list[FileRecord]:
        """Every file of the artifact, sorted by name."""
        return [FileRecord(**record) for record in self.manifest["files"]]

    @functools.cached_property
    def _by_name(self) -> dict[str, FileRecord]:
        return {record.name: record for record in self.records}

    def names(self, table: str) -> list[str]:
        """The names of a table's files in their order, unread; `file` gives the path of one that is to be read."""
        return [record.name for record in self.records if record.table == table]

    def file(self, name: str) -> Path:
        """The path of a file, after its bytes were hashed and agree with the manifest (once per process)."""
        record = self._by_name.get(name)
        if record is None:
            raise IntegrityError(f"{self.path}: asked for `{name}`, but the manifest lists no such file")
        return published.checked(self.path, record)

    def files(self, table: str) -> list[Path]:
        """The checked files of a table in order of their names; empty when the artifact has no such table."""
        names = self.names(table)
        published.fetch(self.path, [self._by_name[name] for name in names])
        return [self.file(name) for name in names]

    def rows(self, table: str) -> int:
        """How many rows the manifest states for a table."""
        return sum(record.rows for record in self.records if record.table == table)

    def table(self, table: str) -> pa.Table:
        """A whole table in memory, memory-mapped where uncompressed; for tables known to be small."""
        tables = [read_table(path) for path in self.files(table)]
        if not tables:
            raise IntegrityError(f"{self.path} ({self.stage}) holds no table `{table}`")
        return pa.concat_tables(tables)

    def batches(self, table: str) -> Iterator[pa.RecordBatch]:
        """The table's record batches, one part in memory at a time."""
        for path in self.files(table):
            yield from read_table(path).to_batches()

    def verify(self) -> list[str]:
        """Names of files whose bytes no longer agree with the manifest; empty when all is well."""
        return [record.name for record in self.records if not published.is_whole(self.path, record)]


def artifact_at(path: Path) -> Artifact:
    """The artifact at `path`, for processes that work on many files of it: the manifest is read once."""
    status = (path / published.MANIFEST).stat()
    return _artifact_at(path, (status.st_ino, status.st_mtime_ns))


@functools.lru_cache(maxsize=8)
def _artifact_at(path: Path, mark: tuple[int, int]) -> Artifact:
    del mark  # only there to make another manifest a new key: workers of a cluster live long
    return Artifact.open(path)
