"""A finished artifact: a folder whose manifest was written last, read by table and checked before it is believed."""

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from model.errors import InputError, IntegrityError
from tasks.digests import combined_digest, digest_file
from tasks.report import StageReport
from tasks.schema import FORMAT
from tasks.store.attached import root_of, store_of
from tasks.store.published import fetch_files, fetch_manifest
from tasks.workspace import FileRecord

MANIFEST = "manifest.json"

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
        """The artifact at `path`, by its manifest from the store that the root stands before where it is not here.

        Raises InputError where the folder is gone or of another format, IntegrityError where its manifest is damaged.
        """
        store = None if path.exists() else store_of(root_of(path))
        if not path.exists() and not (store and fetch_manifest(root_of(path), store, path.parent.name, path.name)):
            raise InputError(
                f"{path} no longer stands: somebody removed it. Run the recipe again, and it is rebuilt; artifacts made"
                f" from it are reused if it comes out the same."
            )
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            if manifest["format"] != FORMAT:
                return Artifact.open(_successor(path, manifest["format"]), outcome=outcome, cause=cause)
            return Artifact(path, manifest["stage"], manifest["identity"], manifest["content"], outcome, cause)
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise IntegrityError(
                f"{path} is not a finished artifact: its {MANIFEST} is missing or unreadable ({error})."
                f" Put it out of the way with `bessemer verify --set-aside`, and run again."
            ) from error

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest's JSON."""
        return json.loads((self.path / MANIFEST).read_text())

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
        path = self.path / name
        self.fetch([name])
        _check(path, record.digest, self.path)
        return path

    def files(self, table: str) -> list[Path]:
        """The checked files of a table in order of their names; empty when the artifact has no such table."""
        names = self.names(table)
        self.fetch(names)
        return [self.file(name) for name in names]

    def fetch(self, names: Iterable[str]) -> None:
        """Bring files that are not here yet from the store that the root stands before, if it stands before one.

        Raises IntegrityError where the store has other bytes than the manifest says, or none.
        """
        missing = [name for name in names if not (self.path / name).exists()]
        store = store_of(root_of(self.path)) if missing else None
        if store is not None:
            fetch_files(root_of(self.path), store, self.path, [asdict(self._by_name[name]) for name in missing])

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
        return [record.name for record in self.records if not self._is_whole(record)]

    def _is_whole(self, record: FileRecord) -> bool:
        try:
            self.fetch([record.name])
        except IntegrityError:
            return False
        path = self.path / record.name
        return path.exists() and digest_file(path) == record.digest


def artifact_at(path: Path) -> Artifact:
    """The artifact at `path`, for processes that work on many files of it: the manifest is read once."""
    status = (path / MANIFEST).stat()
    return _artifact_at(path, (status.st_ino, status.st_mtime_ns))


@functools.lru_cache(maxsize=8)
def _artifact_at(path: Path, mark: tuple[int, int]) -> Artifact:
    del mark  # only there to make another manifest a new key: workers of a cluster live long
    return Artifact.open(path)


def upgraded_file(path: Path) -> Path:
    """The file that leads from an artifact of an earlier format to its copy in this one, where there is one."""
    return root_of(path) / "aliases" / "upgraded" / path.parent.name / f"{path.name}.json"


def _successor(path: Path, found: int) -> Path:
    """The copy in this format of an artifact of another."""
    file = upgraded_file(path)
    if file.exists():
        return path.with_name(json.loads(file.read_text())["identity"])
    if found < FORMAT:
        cure = "Run `bessemer upgrade`: it makes a copy in this format, and changes nothing that stands."
    else:
        cure = "A later version made it: use that one, or another --root."
    raise InputError(
        f"{path} is an artifact of format {found}, and this version of Bessemer reads format {FORMAT}. {cure}"
    )


def is_set_aside(path: Path) -> bool:
    """Whether the folder holds an artifact that no run may use: it contradicts another, or its bytes are damaged."""
    return ".conflict-" in path.name or ".damaged-" in path.name


def read_table(path: Path) -> pa.Table:
    """One Arrow IPC file as a table, memory-mapped."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def content_digest(records: list[FileRecord]) -> str:
    """BLAKE3 over sorted names and digests of the deterministic files."""
    return combined_digest((record.name, record.digest) for record in records if record.deterministic)


@functools.cache
def _check(path: Path, digest: str, artifact: Path) -> None:
    found = digest_file(path) if path.exists() else "no file"
    if found != digest:
        raise IntegrityError(
            f"{path.name} of {artifact} should have the digest {digest} and has {found}: the disk or somebody changed"
            f" it after it was published. Nothing was computed from it. Put it out of the way with `bessemer verify"
            f" --set-aside`, and run again."
        )
