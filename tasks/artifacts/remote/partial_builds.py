"""What an unfinished build has finished so far, kept in the store while it goes on, and fetched where it is taken over.

One small object lists all of it (units by their records, other files by digest) and is put after the files that it
lists, so that what is read there was true of the build at one moment. Checkpoints are told as groups, which are
listed whole or not at all. A builder that was passed over may still write its own list: each list is true, and says
whose it is.
"""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.checksummed_json import read_sealed, write_sealed
from model.digests import digest_file
from model.errors import BessemerError, IntegrityError
from model.files import link_or_copy
from tasks.artifacts.remote.artifacts import check_names, part_key, put_parts
from tasks.artifacts.remote.attach import temporary_folder
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.workspace import read_record, write_record

log = logging.getLogger(__name__)

UNFINISHED, CHECKPOINTS = "unfinished", "checkpoints"

WRITERS = "store.json"
"""File of a work folder: the writers whose lists it is at least as new as."""

HELD = "held"
"""Folder of a work folder: links to what is being put."""

PAUSE_SECONDS = float(os.environ.get("BESSEMER_STORE_PAUSE", "5"))
"""Between two looks at what has been finished."""

Group = Sequence[Path]

Kept = Callable[[Path], Iterable[Group]]
"""Given a build's scratch folder: its files that another machine needs to go on, in groups that belong together, in the
order in which they may be read while the build goes on."""


def unfinished_key(stage: str, identity: str) -> str:
    """The key of the list of an unfinished build."""
    return f"{UNFINISHED}/{stage}/{identity}.json"


def checkpoints_prefix(stage: str, identity: str) -> str:
    """What the keys of its files begin with that become part of no artifact."""
    return f"{CHECKPOINTS}/{stage}/{identity}"


def forget(store: ObjectStore, stage: str, identity: str) -> None:
    """Delete what the store keeps of an unfinished build, except files that may be an artifact's."""
    store.delete([unfinished_key(stage, identity)])
    store.delete(store.under(checkpoints_prefix(stage, identity)))


def take_from_store(root: Path, store: ObjectStore, stage: str, identity: str, folder: Path, writer: str) -> int:
    """Bring to the work folder what the store keeps of the build, unless it is as new itself; how many files came.

    What a machine that went on elsewhere has left here is removed first: two histories of a build are never mixed. A
    file that the store has lost is left out with its group or unit, as if the build had not come so far.
    """
    try:
        kept = store.read(unfinished_key(stage, identity))
    except FileNotFoundError:
        kept = None
    writers = _writers(folder)
    came = 0
    if kept is not None and kept["writer"] not in writers:
        _empty(folder)
        came = _bring(root, store, stage, identity, folder, kept)
        writers = [kept["writer"]]
    write_sealed(folder / WRITERS, {"writers": [*writers, writer]})
    return came


@dataclass(frozen=True)
class Finished:
    """What was finished at one moment."""

    units: dict[str, Any]
    """Records of units, by name."""
    groups: list[tuple[str, ...]]
    """Names in the work folder of the files of each group; links of the same names stand in HELD."""


class Keeper:
    """Puts what a build finishes into the store while it is built; use as a context manager around the work.

    What cannot be put now is tried again at the next look and does not disturb the build, whose end puts all. A look
    holds what it found by links until all of it is put, over errors too: a trainer removes a checkpoint sooner than a
    slow store takes it, and looks that each began with the newest one would never end with any.
    """

    def __init__(
        self,
        store: ObjectStore,
        stage: str,
        identity: str,
        folder: Path,
        kept: Kept,
        *,
        writer: str,
        is_lost: Callable[[], bool],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._store, self._stage, self._identity = store, stage, identity
        self._folder, self._kept, self._writer = folder, kept, writer
        self._is_lost = is_lost
        self._pause_seconds = pause_seconds
        self._done = threading.Event()
        self._build_ended = False
        self._told: dict[str, Any] = {}
        self._held: Finished | None = None
        self._put: set[str] = set()
        self._digests: dict[tuple[str, int, int], str] = {}
        self._thread = threading.Thread(target=self._keep, name="store-keeper", daemon=True)

    def __enter__(self) -> "Keeper":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The end of a build puts its files itself; an error, a pause or a signal leaves them to whoever goes on.
        self._build_ended = kind is None
        self._done.set()
        self._thread.join()
        self._let_go()
        if not self._build_ended:
            self._look()
            self._let_go()

    def _keep(self) -> None:
        while not self._done.wait(self._pause_seconds):
            self._look()

    def _look(self) -> None:
        if self._is_lost():
            return
        try:
            self.put_finished()
        except (BessemerError, OSError) as error:
            log.warning("%s: what is finished is not in the store yet: %s", self._stage, error)

    def put_finished(self) -> None:
        """Put all that is finished now, or what an earlier look found and could not put, and the list of it if that
        has grown or changed."""
        if self._held is None:
            self._held = self._hold()
        units = self._held.units
        groups = [{name: self._known(name) for name in group} for group in self._held.groups]
        self._put_kept(groups)
        if self._build_ended:
            return
        told = {"units": units, "groups": groups, "writer": self._writer}
        if told != self._told and (units or groups):
            self._tell(told)
        self._let_go()

    def _tell(self, told: dict[str, Any]) -> None:
        told_units = self._told.get("units", {})
        files = {
            file["digest"]: (self._folder / "files" / file["name"], file["bytes"])
            for name, record in told["units"].items()
            if told_units.get(name) != record
            for file in record["files"]
        }
        if files:
            put_parts(self._store, self._stage, self._identity, files)
        self._store.write(unfinished_key(self._stage, self._identity), told)
        self._told = told
        needed = {file["digest"] for group in told["groups"] for file in group.values()}
        if gone := self._put - needed:
            prefix = checkpoints_prefix(self._stage, self._identity)
            self._store.delete(f"{prefix}/{digest}" for digest in sorted(gone))
            self._put &= needed

    def _hold(self) -> Finished:
        self._let_go()  # A killed build may have left links here.
        units = {path.stem: read_record(path) for path in sorted((self._folder / "units").glob("*.json"))}
        groups: list[tuple[str, ...]] = []
        for group in self._kept(self._folder / "scratch"):
            try:
                groups.append(tuple(self._linked(path) for path in group))
            except FileNotFoundError:
                # A checkpoint that was removed in these milliseconds: a newer one stands.
                continue
        return Finished(units, groups)

    def _linked(self, path: Path) -> str:
        name = path.relative_to(self._folder).as_posix()
        link = self._folder / HELD / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, link)
        return name

    def _let_go(self) -> None:
        self._held = None
        if (self._folder / HELD).exists():
            shutil.rmtree(self._folder / HELD)

    def _known(self, name: str) -> dict[str, Any]:
        held = self._folder / HELD / name
        status = held.stat()
        mark = (name, status.st_size, status.st_mtime_ns)
        if mark not in self._digests:
            self._digests[mark] = digest_file(held)
        return {"digest": self._digests[mark], "bytes": status.st_size}

    def _put_kept(self, groups: list[dict[str, dict[str, Any]]]) -> None:
        prefix = checkpoints_prefix(self._stage, self._identity)
        names = {file["digest"]: name for group in groups for name, file in group.items()}

        def put(digest: str, name: str) -> Callable[[], None]:
            def request() -> None:
                if self._build_ended:
                    return
                self._store.put_file(f"{prefix}/{digest}", self._folder / HELD / name, digest)
                self._put.add(digest)

            return request

        self._store.many([put(digest, name) for digest, name in names.items() if digest not in self._put])


def _writers(folder: Path) -> list[str]:
    try:
        return read_sealed(folder / WRITERS, "What the store keeps of the build is brought again.")["writers"]
    except FileNotFoundError:
        return []
    except IntegrityError as error:
        log.warning("%s", error)
        return []


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _bring(root: Path, store: ObjectStore, stage: str, identity: str, folder: Path, kept: dict[str, Any]) -> int:
    via = temporary_folder(root)
    prefix = checkpoints_prefix(stage, identity)
    came = 0

    def bring(key: str, target: Path, file: dict[str, Any]) -> Callable[[], None]:
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
        if _all_came(store, [bring(*target) for target in targets], f"unit {name}"):
            write_record(folder / "units" / f"{name}.json", record)
            came += len(targets)
    for group in kept["groups"]:
        check_names(where, *(part for name in group for part in name.split("/")))
        targets = [(f"{prefix}/{file['digest']}", folder / name, file) for name, file in sorted(group.items())]
        for _, target, _ in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        if _all_came(store, [bring(*target) for target in targets], ", ".join(sorted(group)[:1])):
            came += len(targets)
            continue
        for _, target, _ in targets:
            target.unlink(missing_ok=True)
            if not os.listdir(target.parent):
                target.parent.rmdir()
    return came


def _all_came(store: ObjectStore, requests: list[Callable[[], None]], what: str) -> bool:
    try:
        store.many(requests)
    except (FileNotFoundError, BessemerError) as error:
        if isinstance(error, BessemerError) and error.retryable:
            raise
        log.warning("%s is left out and made again: %s", what, error)
        return False
    return True
