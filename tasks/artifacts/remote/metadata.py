"""Synchronise the metadata of a root with its object store: manifests, aliases, and records of runs, nightly runs and
promotions; not the files of artifacts.

After `pull_metadata` a command that lists or searches the root sees the manifests and records of other machines.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from model.checksummed_json import find_sealed, read_sealed, write_sealed
from model.errors import IntegrityError
from model.files import write_atomically
from tasks.artifacts.manifest import Manifest, read_manifest
from tasks.artifacts.published import remove_folder
from tasks.artifacts.remote.artifacts import MANIFESTS, check_names, create_stub, manifest_key
from tasks.artifacts.remote.attach import FOLDER, check_store
from tasks.artifacts.remote.object_store import Listed, ObjectStore
from tasks.artifacts.reuse import HINT as ALIAS_LOST

log = logging.getLogger(__name__)

ALIASES, RUNS, PAGES, NIGHTS, PROMOTIONS = "aliases", "runs", "pages", "nights", "promotions"

FORGOTTEN = "forgotten"
"""Certificates of removals, and `PENDING`."""

PENDING = "pending.json"
"""A removal that was decided and has not ended."""

RECORD, RECIPE, PROMOTION = "run.json", "recipe.json", "promotion.json"

RECIPE_LOST = "Restore it from a copy, or remove it: the run is then known by its record alone."
"""Hint for a damaged recipe next to a run's record."""

NIGHT_LOST = "Restore it from a copy, or remove it: then the files that this nightly run read count as new again."

CERTIFICATE_LOST = (
    "Restore it from a copy; with an object store, `bessemer store verify --set-aside` makes the next command fetch it."
)

PENDING_LOST = "Decide again what to remove, and delete this file first."

PROMOTION_LOST = "Restore it, or remove its folder; this step of the history is then lost."

FROM_STORE = "from-the-store"
"""Marker in the folder of a run that was fetched from the store; runs of this machine are never overwritten."""

SEEN = "seen.json"
"""File with the ETags of the fetched objects, so that only changed objects are read again."""


class StageEntry(TypedDict):
    """What a run's record says of a stage; one that failed, was interrupted or paused has no artifact."""

    stage: str
    outcome: str
    identity: NotRequired[str]
    content: NotRequired[str]
    path: NotRequired[str]
    cause: NotRequired[str]
    error: NotRequired[str]
    seconds: NotRequired[float]
    started: NotRequired[float]
    step: NotRequired[int]
    steps: NotRequired[int]
    loss: NotRequired[float | None]


class BuiltRun(TypedDict):
    """What the record of a run says of its artifacts; the flows know the rest."""

    run_id: str
    recipe_name: str
    root: str
    started: float
    stages: list[StageEntry]
    page: NotRequired[str | None]


class StoredRun(TypedDict):
    """A run in the store."""

    record: BuiltRun
    recipe: dict[str, object] | None


class StoredPromotion(TypedDict):
    """What counts here of a promotion."""

    number: int


def pull_metadata(root: Path, store: ObjectStore) -> None:
    """Fetch manifests, aliases, certificates, and records of runs, nightly runs and promotions that are new or changed
    in the store, and upload those that it lacks. Artifacts without their files here go with their manifests there.

    Raises what `check_store` raises, and IntegrityError if the store and the root hold different contents of one
    identity, or different promotions of one number.
    """
    check_store(root, store)
    seen: dict[str, str | None] = (
        find_sealed(root / FOLDER / SEEN, "Then all metadata is read from the store again.") or {}
    )
    kinds = (MANIFESTS, ALIASES, RUNS, NIGHTS, PROMOTIONS, FORGOTTEN)
    listed: dict[str, Listed] = {}
    for found in store.run_all([lambda kind=kind: store.list_objects(kind) for kind in kinds]):
        listed |= {key: entry for key, entry in found.items() if key.endswith(".json")}
    new = [
        key
        for key, entry in listed.items()
        if entry.mark is None
        or seen.get(key) != entry.mark
        or (key.startswith(f"{FORGOTTEN}/") and not (root / key).exists())
    ]

    def request(key: str) -> Callable[[], str]:
        def fetch() -> str:
            check_names(f"{store.address}/{key}", *key.split("/"))
            try:
                value = store.read(key)
            except FileNotFoundError:
                return ""  # deleted since it was listed
            except IntegrityError as error:
                log.warning("%s", error)  # A damaged object counts as missing; `store verify` reports it.
                return ""
            _place(root, store, key, value)
            return key

        return fetch

    taken = {key for key in store.run_all([request(key) for key in new]) if key}
    for key in seen.keys() - listed.keys():
        if key.startswith(f"{ALIASES}/"):  # The acceptance was revoked on another machine.
            (root / key).unlink(missing_ok=True)
        elif key.startswith(f"{MANIFESTS}/"):
            _remove_stub((root / "artifacts" / key.partition("/")[2]).with_suffix(""))
    if f"{FORGOTTEN}/{PENDING}" not in listed:  # The removal, which is in the store first, ended on another machine.
        (root / FORGOTTEN / PENDING).unlink(missing_ok=True)
    for path in (*(root / ALIASES).glob("*/*.json"), *(root / FORGOTTEN).glob("*.json")):
        key = path.relative_to(root).as_posix()
        if key not in listed and (key not in seen or key.startswith(f"{FORGOTTEN}/")):
            _put(lambda path=path: put_file(root, store, path))
    for record in (root / RUNS).glob(f"*/{RECORD}"):
        run_id = record.parent.name
        if f"{RUNS}/{run_id}.json" not in listed and not (record.parent / FROM_STORE).exists():
            _put(lambda run_id=run_id: put_run(root, store, run_id))
    for night in (root / NIGHTS).glob("*.json"):
        if f"{NIGHTS}/{night.name}" not in listed:
            _put(lambda night=night: put_night(root, store, night.stem))
    known = {key: entry.mark for key, entry in listed.items() if key in taken or seen.get(key) == entry.mark}
    if known != seen:
        write_sealed(root / FOLDER / SEEN, known, sort_keys=True, indent=None)


def _put(upload: Callable[[], None]) -> None:
    """Upload a record; a damaged one is only logged."""
    try:
        upload()
    except IntegrityError as error:
        log.warning("%s", error)


def read_record(path: Path) -> BuiltRun:
    """Return the record of a run; one in `ROOT/runs/RUN_ID/` with its paths under that root, wherever the run was made.

    Raises FileNotFoundError if there is none, IntegrityError if it is damaged.
    """
    hint = f"Restore it from a copy, or remove {path.parent}: the run's artifacts stay, and the next run reuses them."
    record = read_sealed(path, hint)
    stages = record.get("stages")
    if not isinstance(stages, list) or not all(isinstance(entry, dict) and "stage" in entry for entry in stages):
        raise IntegrityError(f"{path} is damaged (it holds no stages). {hint}")
    record = cast(BuiltRun, record)
    runs = path.absolute().parent.parent
    # A run's folder may have been copied alone, and a root may be reached by another name.
    if runs.name != RUNS or "root" not in record or Path(record["root"]).resolve() == runs.parent.resolve():
        return record
    return _relocated(record, runs.parent)


def put_file(root: Path, store: ObjectStore, path: Path) -> None:
    """Upload an alias or a certificate, or delete it from the store if it was deleted here."""
    key = path.relative_to(root).as_posix()
    if path.exists():
        store.write(key, read_sealed(path, ALIAS_LOST if key.startswith(ALIASES) else CERTIFICATE_LOST))
    else:
        store.delete([key])


def put_run(root: Path, store: ObjectStore, run_id: str) -> None:
    """Upload the present record and recipe of a run."""
    folder = root / RUNS / run_id
    recipe = folder / RECIPE
    run: StoredRun = {
        "record": read_record(folder / RECORD),
        "recipe": read_sealed(recipe, RECIPE_LOST) if recipe.exists() else None,
    }
    store.write(f"{RUNS}/{run_id}.json", run)


def put_night(root: Path, store: ObjectStore, run_id: str) -> None:
    """Upload the present record of a nightly run."""
    store.write(f"{NIGHTS}/{run_id}.json", read_sealed(root / NIGHTS / f"{run_id}.json", NIGHT_LOST))


def create_promotion(store: ObjectStore, number: int, promotion: Mapping[str, object]) -> bool:
    """Upload a promotion if none has this number; return whether this one has it."""
    return store.create(f"{PROMOTIONS}/{number:06d}.json", promotion)


def put_pages(root: Path, store: ObjectStore, run_id: str) -> None:
    """Upload the page and logs of a run."""
    folder = root / RUNS / run_id
    for path in sorted(folder.glob("*.html")) + sorted(folder.glob("*.log")):
        store.put(f"{PAGES}/{run_id}/{path.name}", path.read_bytes())


def _place(root: Path, store: ObjectStore, key: str, value: Any) -> None:
    kind, *_ = key.split("/")
    if kind == MANIFESTS:
        _place_manifest(root, store, key, value)
    elif kind in (ALIASES, FORGOTTEN):
        write_sealed(root / key, value)
    elif kind == NIGHTS:
        if not _is_of_this_machine(root / RUNS / value["run_id"]):
            write_sealed(root / key, value)
    elif kind == PROMOTIONS:
        _place_promotion(root, store, key, value)
    else:
        _place_run(root, store, key, value)


def _place_manifest(root: Path, store: ObjectStore, key: str, manifest: Manifest) -> None:
    if key != manifest_key(manifest["stage"], manifest["identity"]):
        raise _misplaced(store, key, f"the manifest of {manifest['stage']}/{manifest['identity']}")
    create_stub(root, manifest)
    folder = root / "artifacts" / manifest["stage"] / manifest["identity"]
    local = read_manifest(folder)
    if local["content"] != manifest["content"]:
        raise IntegrityError(
            f"{store.address}/{key} and {folder} are different contents of the same identity: one of them was built"
            f" outside of the store. The one in the store is valid: remove {folder} and run again."
        )


def _remove_stub(folder: Path) -> None:
    """Remove an artifact that was removed from the store, unless all of its files are here: no run could read it."""
    try:
        names = [file["name"] for file in read_manifest(folder)["files"]]
    except IntegrityError:
        return  # It is not here, or damaged, which `store verify` reports.
    if not all((folder / name).exists() for name in names):
        remove_folder(folder)


def _misplaced(store: ObjectStore, key: str, what: str) -> IntegrityError:
    return IntegrityError(f"{store.address}/{key} holds {what}: somebody moved it. Delete it and run again.")


def _place_run(root: Path, store: ObjectStore, key: str, run: StoredRun) -> None:
    record = _relocated(run["record"], root)
    if key != f"{RUNS}/{record['run_id']}.json":
        raise _misplaced(store, key, f"the record of run {record['run_id']}")
    folder = root / RUNS / record["run_id"]
    if _is_of_this_machine(folder):
        return
    write_atomically(folder / FROM_STORE, b"")
    if run["recipe"] is not None:
        write_sealed(folder / RECIPE, run["recipe"])
    write_sealed(folder / RECORD, record)


def replace_run(root: Path, store: ObjectStore, run_id: str) -> None:
    """Replace the record of a run by the store's, also where this machine made the run."""
    write_atomically(root / RUNS / run_id / FROM_STORE, b"")
    _place_run(root, store, f"{RUNS}/{run_id}.json", store.read(f"{RUNS}/{run_id}.json"))


def _place_promotion(root: Path, store: ObjectStore, key: str, promotion: StoredPromotion) -> None:
    if key != f"{PROMOTIONS}/{promotion['number']:06d}.json":
        raise _misplaced(store, key, f"the promotion {promotion['number']}")
    path = root / PROMOTIONS / f"{promotion['number']:06d}" / PROMOTION
    if path.exists() and read_sealed(path, PROMOTION_LOST) != promotion:
        raise IntegrityError(
            f"{store.address}/{key} and {path} are different promotions of the same number. The one in the store is"
            f" valid: remove {path.parent} and try again."
        )
    write_sealed(path, promotion)


def _is_of_this_machine(run: Path) -> bool:
    return run.exists() and not (run / FROM_STORE).exists()


def _relocated(record: BuiltRun, root: Path) -> BuiltRun:
    """Return a record with the paths that it would have if its run had been made under this root."""
    old_root = Path(record["root"])

    def moved(text: str) -> str:
        path = Path(text)
        return str(root / path.relative_to(old_root)) if path.is_relative_to(old_root) else text

    stages = [
        StageEntry({**entry, "path": moved(entry["path"])}) if "path" in entry else entry for entry in record["stages"]
    ]
    relocated: BuiltRun = {**record, "stages": stages, "root": str(root)}
    if page := record.get("page"):
        relocated["page"] = moved(page)
    return relocated
