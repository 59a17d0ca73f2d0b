"""Upload the finished part of a build to the store while the build runs, and download it where the build is resumed.

One small object lists all of it (units by their records, other files by digest). It is written after the files that it
lists, so that a list describes the build at one moment. Checkpoints are listed as groups, whole or not at all. A
builder that lost its lease may still write its own list: each list is consistent and names its writer."""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from model.checksummed_json import find_sealed, write_sealed
from model.digests import digest_file
from model.errors import BessemerError
from model.files import link_or_copy
from tasks.artifacts.remote.artifacts import check_names, part_key, put_parts
from tasks.artifacts.remote.attach import temporary_folder
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.workspace import FileEntry, UnitRecord, read_record, write_record

log = logging.getLogger(__name__)

UNFINISHED, CHECKPOINTS = "unfinished", "checkpoints"

WRITERS = "store.json"
"""File of a work folder: the writers whose lists it includes."""

STAGING = "held"
"""Folder inside of a work folder: links to the files that are being uploaded."""

PAUSE_SECONDS = float(os.environ.get("BESSEMER_STORE_PAUSE", "5"))
"""Pause between two checks for finished files."""

Group = Sequence[Path]

ResumeFiles = Callable[[Path], Iterable[Group]]
"""Given a build's scratch folder, returns the files that another machine needs to resume, in groups that belong
together, in the order in which they may be read while the build runs. No file is in two groups."""


def unfinished_key(stage: str, identity: str) -> str:
    """Return the key of the list of an unfinished build."""
    return f"{UNFINISHED}/{stage}/{identity}.json"


def checkpoints_prefix(stage: str, identity: str) -> str:
    """Return the prefix of the keys of an unfinished build's files that belong to no artifact."""
    return f"{CHECKPOINTS}/{stage}/{identity}"


def forget(store: ObjectStore, stage: str, identity: str) -> None:
    """Delete what the store has of an unfinished build, except files that may belong to an artifact."""
    store.delete([unfinished_key(stage, identity)])
    store.delete(store.list_objects(checkpoints_prefix(stage, identity)))


def download_partial_build(root: Path, store: ObjectStore, stage: str, identity: str, folder: Path, writer: str) -> int:
    """Download what the store has of the build to the work folder, unless that is as new; return the number of files.

    If another machine has continued the build, the files here are removed first: two histories of a build are never
    mixed. A file that the store lost is left out with its group or unit, as if it had not been finished.
    """
    kept: PartialBuild | None = store.find(unfinished_key(stage, identity))
    known = find_sealed(folder / WRITERS, "Then the files of the build are downloaded again.")
    writers: list[str] = [] if known is None else known["writers"]
    fetched = 0
    if kept is not None and kept["writer"] not in writers:
        _empty(folder)
        fetched = _download(root, store, stage, identity, folder, kept)
        writers = [kept["writer"]]
    write_sealed(folder / WRITERS, {"writers": [*writers, writer]})
    return fetched


class ListedFile(TypedDict):
    """A file of an unfinished build that belongs to no unit."""

    digest: str
    bytes: int


ListedGroup = dict[str, ListedFile]
"""Name in the work folder -> file."""


class PartialBuild(TypedDict):
    """The list of an unfinished build: units by name, groups of other files, and the token of its writer."""

    units: dict[str, UnitRecord]
    groups: list[ListedGroup]
    writer: str


@dataclass(frozen=True)
class Finished:
    """What a build had finished at one moment."""

    units: dict[str, UnitRecord]
    """By name."""
    groups: list[tuple[str, ...]]
    """Names in the work folder of the files of each group; STAGING holds links of the same names."""


class PartialBuildUploader:
    """Uploads what a build finishes while it runs; use as a context manager around the work.

    A failed upload is repeated at the next check and does not disturb the build, whose end uploads everything. A check
    holds the files that it found by hard links until all are uploaded, also across errors: a trainer removes a
    checkpoint sooner than a slow store receives it, and checks that each began with the newest checkpoint would never
    complete one.
    """

    def __init__(
        self,
        store: ObjectStore,
        stage: str,
        identity: str,
        folder: Path,
        resume_files: ResumeFiles,
        *,
        writer: str,
        is_lost: Callable[[], bool],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._store, self._stage, self._identity = store, stage, identity
        self._folder, self._resume_files, self._writer = folder, resume_files, writer
        self._is_lost = is_lost
        self._pause_seconds = pause_seconds
        self._done = threading.Event()
        self._build_ended = False
        self._listed: PartialBuild | None = None
        """The list that the store has."""
        self._staged: Finished | None = None
        self._uploaded: set[str] = set()
        self._digests: dict[tuple[str, int, int], str] = {}
        self._thread = threading.Thread(target=self._run, name="store-uploader", daemon=True)

    def __enter__(self) -> "PartialBuildUploader":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A successful build uploads its files itself; after an error, a pause or a signal they are needed to resume.
        self._build_ended = kind is None
        self._done.set()
        self._thread.join()
        self._unstage()
        if not self._build_ended:
            # In a context of its own, in which nothing waits long for a store that is down: Ctrl-C ends soon, and what
            # the store lacks is on this machine.
            Context().run(self._check)
            self._unstage()

    def _run(self) -> None:
        while not self._done.wait(self._pause_seconds):
            self._check()

    def _check(self) -> None:
        if self._is_lost():
            return
        try:
            self.upload_finished()
        except (BessemerError, OSError) as error:
            log.warning("%s: finished files are not in the store yet: %s", self._stage, error)

    def upload_finished(self) -> None:
        """Upload what is finished now, or what an earlier check found and could not upload, and its list if it
        changed."""
        if self._staged is None:
            self._staged = self._stage_files()
        units = self._staged.units
        groups = [{name: self._digest_of(name) for name in group} for group in self._staged.groups]
        self._upload_groups(groups)
        if self._build_ended:
            return
        listed: PartialBuild = {"units": units, "groups": groups, "writer": self._writer}
        if listed != self._listed and (units or groups):
            self._write_list(listed)
        self._unstage()

    def _write_list(self, listed: PartialBuild) -> None:
        listed_units = self._listed["units"] if self._listed else {}
        files = {
            file["digest"]: (self._folder / "files" / file["name"], file["bytes"])
            for name, record in listed["units"].items()
            if listed_units.get(name) != record
            for file in record["files"]
        }
        if files:
            put_parts(self._store, self._stage, self._identity, files)
        self._store.write(unfinished_key(self._stage, self._identity), listed)
        self._listed = listed
        needed = {file["digest"] for group in listed["groups"] for file in group.values()}
        if unneeded := self._uploaded - needed:
            prefix = checkpoints_prefix(self._stage, self._identity)
            self._store.delete(f"{prefix}/{digest}" for digest in sorted(unneeded))
            self._uploaded &= needed

    def _stage_files(self) -> Finished:
        self._unstage()  # of a killed build
        units = {path.stem: read_record(path) for path in sorted((self._folder / "units").glob("*.json"))}
        groups: list[tuple[str, ...]] = []
        for group in self._resume_files(self._folder / "scratch"):
            try:
                groups.append(tuple(self._linked(path) for path in group))
            except FileNotFoundError:
                # A checkpoint that was removed meanwhile: a newer one exists.
                continue
        return Finished(units, groups)

    def _linked(self, path: Path) -> str:
        name = path.relative_to(self._folder).as_posix()
        link = self._folder / STAGING / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, link)
        return name

    def _unstage(self) -> None:
        self._staged = None
        if (self._folder / STAGING).exists():
            shutil.rmtree(self._folder / STAGING)

    def _digest_of(self, name: str) -> ListedFile:
        staged = self._folder / STAGING / name
        status = staged.stat()
        mark = (name, status.st_size, status.st_mtime_ns)
        if mark not in self._digests:
            self._digests[mark] = digest_file(staged)
        return {"digest": self._digests[mark], "bytes": status.st_size}

    def _upload_groups(self, groups: list[ListedGroup]) -> None:
        prefix = checkpoints_prefix(self._stage, self._identity)
        names = {file["digest"]: name for group in groups for name, file in group.items()}

        def put(digest: str, name: str) -> Callable[[], None]:
            def request() -> None:
                if self._build_ended:
                    return
                self._store.put_file(f"{prefix}/{digest}", self._folder / STAGING / name, digest)
                self._uploaded.add(digest)

            return request

        self._store.run_all([put(digest, name) for digest, name in names.items() if digest not in self._uploaded])


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _download(root: Path, store: ObjectStore, stage: str, identity: str, folder: Path, kept: PartialBuild) -> int:
    via = temporary_folder(root)
    prefix = checkpoints_prefix(stage, identity)
    fetched = 0

    def request(key: str, target: Path, file: ListedFile | FileEntry) -> Callable[[], None]:
        return lambda: store.fetch(key, target, file["bytes"], file["digest"], via)

    where = f"{store.address}/{unfinished_key(stage, identity)}"
    for name, record in sorted(kept["units"].items()):
        check_names(where, name, *(file["name"] for file in record["files"]))
        (folder / "files").mkdir(exist_ok=True)
        (folder / "units").mkdir(exist_ok=True)
        targets = [
            (part_key(stage, identity, file["digest"]), folder / "files" / file["name"], file)
            for file in record["files"]
        ]
        if _all_fetched(store, [request(*target) for target in targets], f"unit {name}"):
            write_record(folder / "units" / f"{name}.json", record)
            fetched += len(targets)
    for group in kept["groups"]:
        check_names(where, *(part for name in group for part in name.split("/")))
        targets = [(f"{prefix}/{file['digest']}", folder / name, file) for name, file in sorted(group.items())]
        for _, target, _ in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        if _all_fetched(store, [request(*target) for target in targets], ", ".join(sorted(group)[:1])):
            fetched += len(targets)
            continue
        for _, target, _ in targets:
            target.unlink(missing_ok=True)
        for emptied in {target.parent for _, target, _ in targets}:
            if not os.listdir(emptied):
                emptied.rmdir()
    return fetched


def _all_fetched(store: ObjectStore, requests: list[Callable[[], None]], what: str) -> bool:
    try:
        store.run_all(requests)
    except (FileNotFoundError, BessemerError) as error:
        if isinstance(error, BessemerError) and error.retryable:
            raise
        log.warning("%s is left out and rebuilt: %s", what, error)
        return False
    return True
