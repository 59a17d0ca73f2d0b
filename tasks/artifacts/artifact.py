"""A published artifact as stages read it: a folder whose manifest was written last, read by table."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from model.errors import IntegrityError
from tasks.artifacts import published
from tasks.artifacts.manifest import Manifest
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import FileRecord

if TYPE_CHECKING:
    import pyarrow as pa

BUILT, REUSED, ACCEPTED, REPRODUCED = "built", "reused", "accepted", "reproduced"
"""How a run got an artifact: built now; found; found under an accepted identity; rebuilt with equal bytes."""


@dataclass(frozen=True)
class Artifact:
    """A published artifact. `content` is the digest over its deterministic files; children are keyed by it.

    `outcome` and `cause` say how a run got it, and why it was built, or who accepted it in place of the identity
    `accepted_for`.
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
        """Whether it existed before."""
        return self.outcome in (REUSED, ACCEPTED)

    @staticmethod
    def open(path: Path, *, outcome: str = REUSED, cause: str = "") -> Artifact:
        """Return the artifact at `path`. Raises InputError if it is missing, IntegrityError if its manifest is
        damaged."""
        manifest = published.read_manifest(path)
        opened = Artifact(path, manifest["stage"], manifest["identity"], manifest["content"], outcome, cause)
        object.__setattr__(opened, "manifest", manifest)  # The manifest that was checked is the one that is used.
        return opened

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest, checked."""
        return published.read_manifest(self.path)

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
        """Return the names of a table's files in order, without reading them; `file` returns the path of one."""
        return [record.name for record in self.records if record.table == table]

    def file(self, name: str) -> Path:
        """Return the path of a file once its bytes agree with the manifest; they are hashed once per process.

        Raises IntegrityError if they do not, or if the manifest lists no such file.
        """
        record = self._by_name.get(name)
        if record is None:
            raise IntegrityError(f"{self.path}: `{name}` is needed, but the manifest lists no such file")
        return published.checked(self.path, record)

    def files(self, table: str) -> list[Path]:
        """Return the checked files of a table in order of their names; empty if the artifact has no such table."""
        names = self.names(table)
        published.fetch(self.path, [self._by_name[name] for name in names])
        return [self.file(name) for name in names]

    def rows(self, table: str) -> int:
        """Return the number of rows of a table by the manifest."""
        return sum(record.rows for record in self.records if record.table == table)

    def table(self, table: str) -> pa.Table:
        """Return a whole table, memory-mapped if uncompressed; for tables known to be small."""
        import pyarrow as pa

        from tasks.artifacts.tables.files import read_table

        tables = [read_table(path) for path in self.files(table)]
        if not tables:
            raise IntegrityError(f"{self.path} ({self.stage}) holds no table `{table}`")
        return pa.concat_tables(tables)

    def verify(self) -> list[str]:
        """Return the names of files whose bytes do not agree with the manifest; empty if the artifact is whole."""
        return [record.name for record in self.records if not published.is_whole(self.path, record)]


def manifest_of(artifact: Artifact) -> Manifest:
    """Return the checked manifest of an artifact. The annotation of `Artifact.manifest` counts in every identity."""
    return cast(Manifest, artifact.manifest)


def artifact_at(path: Path) -> Artifact:
    """Return the artifact at `path`, for processes that read many files of it: the manifest is read once."""
    status = (path / published.MANIFEST).stat()
    return _artifact_at(path, (status.st_ino, status.st_mtime_ns))


@functools.lru_cache(maxsize=8)
def _artifact_at(path: Path, mark: tuple[int, int]) -> Artifact:
    del mark  # part of the cache key, so that workers of a cluster see a new manifest
    return Artifact.open(path)
