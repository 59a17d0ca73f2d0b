"""Overwrite and remove what a run holds and no other run needs, in a root's folder and in the object store behind it.

In the store an artifact's manifest goes first and its files follow, so that nobody finds an artifact without its files.
The record of the run, which lists what is to go, stays, so that a killed call is repeated and finds the rest. Caches of
other machines give the same up when a command opens the root there: the certificate of the removal names it.
"""

import logging
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flows.runs.object_store import Place, erase_stored, keys_of
from flows.runs.record import RECIPE, RECORD, RunData, damaged_runs, list_runs, read_run
from model.checksummed_json import read_sealed, write_sealed
from model.errors import IntegrityError
from model.files import sync_directory
from tasks.artifacts.lease import is_held
from tasks.artifacts.published import REMOVED_PREFIX
from tasks.artifacts.remote.artifacts import check_names, manifest_key
from tasks.artifacts.remote.attach import FOLDER, store_of
from tasks.artifacts.remote.erasure import erase, present_keys
from tasks.artifacts.remote.metadata import (
    CERTIFICATE_LOST,
    FORGOTTEN,
    FROM_STORE,
    PAGES,
    PENDING,
    RUNS,
    put_file,
    put_run,
    replace_run,
)
from tasks.artifacts.remote.object_store import ObjectStore

log = logging.getLogger(__name__)

PILOTS = "pilots"
"""The folder of a root with the artifacts of pilots (`flows.planning.pilot`): copies of documents that no run names."""


@dataclass(frozen=True)
class Shredded:
    """What a run gave up, as `STAGE/IDENTITY` and paths below the root."""

    removed: tuple[str, ...]
    shared: tuple[str, ...]
    """Artifacts that stay, each with a run that uses them, too."""
    stays: tuple[str, ...] = ()
    """What the object store did not delete, as sentences."""


def shred(root: Path, before: RunData, after: RunData, unnamed: Iterable[Path] = ()) -> Shredded:
    """Overwrite and remove the `unnamed` artifacts, which no run has, in their order, those of a run that neither the
    run after it nor another one has, the run's pages and logs, and all pilots of the root, which are made again when
    they are needed.

    A killed call is repeated: what is gone is left out. Raises IntegrityError where a damaged record may name what it
    would remove.
    """
    store = store_of(root)
    _check_records(root, store)
    used = {entry["identity"] for entry in after["stages"] if "identity" in entry}
    others = users(root, {before["run_id"], after["run_id"]})
    removed: list[str] = []
    shared: list[str] = []
    stays: list[str] = []
    stages: set[str] = set()

    def give_up(artifact: Path) -> None:
        stage, identity = artifact.parent.name, artifact.name
        if store is not None:
            stays.extend(erase_stored(store, stage, identity))
        _overwrite_artifact(root, artifact)
        removed.append(f"{stage}/{identity}")

    for artifact in unnamed:
        give_up(artifact)
    for entry in before["stages"]:
        if "path" not in entry or "identity" not in entry or entry["identity"] in used:
            continue
        name = f"{entry['stage']}/{entry['identity']}"
        stages.add(entry["stage"])
        if entry["identity"] in others:
            shared.append(f"{name} (run {others[entry['identity']]})")
            continue
        give_up(Path(entry["path"]))
    run_id = before["run_id"]
    pages = f"{PAGES}/{run_id}"
    if store is not None:
        removed += store.list_objects(pages)
        stays += erase(store, [f"{pages}/"])
    removed += _empty_run(root / RUNS / run_id)
    for pilots in (root / f"{REMOVED_PREFIX}{PILOTS}", root / PILOTS):
        if pilots.exists():
            _overwrite(pilots)
            removed.append(PILOTS)
    record: RunData = {**before, "notes": [], "collected": {"when": after["run_id"], "stages": sorted(stages)}}
    write_sealed(root / RUNS / run_id / RECORD, record)
    if store is not None:
        put_run(root, store, run_id)
        stays += erase(store, [f"{RUNS}/{run_id}.json"], earlier_only=True)
    return Shredded(tuple(removed), tuple(shared), tuple(dict.fromkeys(stays)))


def give_up_forgotten(root: Path, store: ObjectStore) -> None:
    """Overwrite and remove what this machine's folder of a store still holds of the runs that certificates name; what
    the store has again, since somebody built it again, stays."""
    for path in certificates_under(root):
        try:
            _give_up(root, store, path)
        except (IntegrityError, FileNotFoundError) as error:
            log.warning("%s", error)  # `store verify` reports a damaged one; a record may be gone from the store.


def _give_up(root: Path, store: ObjectStore, path: Path) -> None:
    certificate = read_sealed(path, CERTIFICATE_LOST)
    for stage, identity in artifacts_of(certificate["removed"]):
        check_names(str(path), stage, identity)
        artifact = root / "artifacts" / stage / identity
        if _traces(root, artifact) and not store.exists(manifest_key(stage, identity)):
            _overwrite_artifact(root, artifact)
    for pilot in sorted({*root.glob(f"{PILOTS}/artifacts/*/*"), *root.glob(f"{PILOTS}/work/*")}):
        if pilot.stat().st_mtime < path.stat().st_mtime:
            _overwrite(pilot)
    check_names(str(path), certificate["before"])
    run = root / RUNS / certificate["before"]
    if (run / RECORD).exists():
        _empty_run(run)
        record = read_run(run)
        if record["notes"] or "collected" not in record:
            replace_run(root, store, record["run_id"])


def certificate_problems(root: Path) -> dict[Path, str]:
    """Return what is wrong with certificates in the object store behind a root, by their paths in the root: other bytes
    than here, or objects of an artifact that they name as removed and that nobody built again."""
    store = store_of(root)
    if store is None:
        return {}
    paths = {root / key for key in present_keys(store, f"{FORGOTTEN}/") if key.endswith(".json")}
    found = {path: _certificate_problem(root, store, path) for path in sorted({*paths, *certificates_under(root)})}
    return {path: problem for path, problem in found.items() if problem is not None}


def _certificate_problem(root: Path, store: ObjectStore, path: Path) -> str | None:
    try:
        there = store.read(path.relative_to(root).as_posix())
        here = read_sealed(path, CERTIFICATE_LOST)
    except FileNotFoundError:
        return f"is missing in {store.address}, or here"
    except IntegrityError as error:
        return str(error)
    if there != here:
        return f"is another one in {store.address}"
    for (stage, identity), key in _come_back(store, here.get("removed", ())).items():
        return f"names {stage}/{identity} as removed, and {store.address}/{key} is there"
    return None


def _come_back(store: ObjectStore, removed: Iterable[str]) -> dict[Place, str]:
    """Return the artifacts that a certificate names as removed, and of which the store has an object and no manifest
    -> the key of that object. One with a manifest was built again."""

    def look(place: Place) -> str | None:
        manifest, *others = keys_of(*place)
        if store.exists(manifest):
            return None
        return next((key for prefix in others for key in present_keys(store, prefix)), None)

    places = artifacts_of(removed)
    found = store.run_all([partial(look, place) for place in places])
    return {place: key for place, key in zip(places, found, strict=True) if key is not None}


def repair_certificate(root: Path, path: Path) -> str:
    """Upload a certificate again, and delete what is there of the artifacts that it names as removed; return what was
    done, as a sentence."""
    store = store_of(root)
    assert store is not None, "only certificates of a store are damaged there"
    try:
        here = read_sealed(path, CERTIFICATE_LOST)
    except (FileNotFoundError, IntegrityError):
        return f"{path} cannot be uploaded again: this machine has no whole copy of it; another one may"
    put_file(root, store, path)
    for place in _come_back(store, here.get("removed", ())):
        erase_stored(store, *place)
    return f"{path} uploaded to {store.address} again, and what it names as removed deleted there"


def certificates_under(root: Path) -> list[Path]:
    """Return the certificates of the removals that have ended under a root."""
    return sorted(path for path in (root / FORGOTTEN).glob("*.json") if path.name != PENDING)


def artifacts_of(removed: Iterable[str]) -> list[Place]:
    """Return stage and identity of the artifacts that a certificate names as removed."""
    pairs = [name.split("/") for name in removed]
    return [(names[0], names[1]) for names in pairs if len(names) == 2]


def _check_records(root: Path, store: ObjectStore | None) -> None:
    damaged = damaged_runs(root)
    if store is not None:
        known = {run["run_id"] for run in list_runs(root)}
        there = {key.rpartition("/")[2].removesuffix(".json") for key in store.list_objects(RUNS)}
        damaged += sorted(there - known)
    if damaged:
        raise IntegrityError(
            f"the record of run {damaged[0]} is damaged, and may name artifacts that would be deleted. `bessemer store"
            f" verify --set-aside` rebuilds it; in a store, restore or delete {RUNS}/{damaged[0]}.json. Then run"
            " `bessemer data forget` without arguments to go on."
        )


def users(root: Path, without: Collection[str] = ()) -> dict[str, str]:
    """Return identity -> a run that has the artifact and did not give it up."""
    return {
        entry["identity"]: run["run_id"]
        for run in list_runs(root)
        if run["run_id"] not in without
        for entry in run["stages"]
        if "identity" in entry and entry["stage"] not in run.get("collected", {}).get("stages", ())
    }


def _empty_run(folder: Path) -> list[str]:
    """Overwrite and remove the files of a run besides its record and recipe; return their paths below the root."""
    removed: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name not in (RECORD, RECIPE, FROM_STORE):
            _overwrite(path)
            removed.append(f"{RUNS}/{folder.name}/{path.name}")
    return removed


def _overwrite_artifact(root: Path, artifact: Path) -> None:
    for trace in _traces(root, artifact):
        _overwrite(trace)


def _traces(root: Path, artifact: Path) -> list[Path]:
    """Return the folder of an artifact, those set aside or half removed, and what a killed build or fetch left."""
    name = artifact.name
    places = [f"artifacts/{artifact.parent.name}/*{name}*", f"{FOLDER}/tmp/*{name}*"]
    if not is_held(root / "locks" / name):
        places.append(f"work/{name}.*")
    return [path for place in places for path in sorted(root.glob(place))]  # Half removed ones first.


def _overwrite(path: Path) -> None:
    """Write zeros over a file, or over all files of a folder that have no other name, and remove it."""
    if path.is_dir() and not path.is_symlink():
        doomed = path if path.name.startswith(REMOVED_PREFIX) else path.with_name(f"{REMOVED_PREFIX}{path.name}")
        os.rename(path, doomed)
        for child in sorted(doomed.iterdir()):
            _overwrite(child)
        doomed.rmdir()
        sync_directory(doomed.parent)
        return
    if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
        with path.open("r+b") as file:
            left = path.stat().st_size
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 20)))
            file.flush()
            os.fsync(file.fileno())
    path.unlink(missing_ok=True)
