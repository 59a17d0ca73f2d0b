"""What a root tells of itself besides its artifacts' files, brought from the store and put there: manifests, accepted
artifacts, runs, nights, promotions.

After `bring` a command that lists or searches the root sees what other machines did, by their manifests and records.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model.checksummed_json import read_sealed, write_sealed
from model.errors import IntegrityError
from model.files import write_atomically
from tasks.artifacts.manifest import read_manifest
from tasks.artifacts.remote.artifacts import MANIFESTS, check_names, manifest_key, stand
from tasks.artifacts.remote.attach import FOLDER, check_store
from tasks.artifacts.remote.object_store import Listed, ObjectStore
from tasks.artifacts.reuse import CURE as ALIAS_LOST

log = logging.getLogger(__name__)

ALIASES, RUNS, PAGES, NIGHTS, PROMOTIONS = "aliases", "runs", "pages", "nights", "promotions"

RECORD, RECIPE, PROMOTION = "run.json", "recipe.json", "promotion.json"

RECIPE_LOST = "Restore it from a copy, or remove it: the run is then known by its record alone."
"""What to do about a damaged recipe beside a run's record."""

NIGHT_LOST = "Restore it from a copy, or remove it: the files that this night took are then new once more."

PROMOTION_LOST = "Restore it, or remove its folder, with which this step of the history is lost."

OF_ANOTHER = "from-the-store"
"""File of a run's folder that came from the store; a run of this machine is never overwritten."""

SEEN = "seen.json"
"""Marks of the objects that were brought, so that only what changed is read again."""


def bring(root: Path, store: ObjectStore) -> None:
    """Bring manifests, aliases, and records of runs, nights and promotions that are not here, or changed since.

    Raises what `check_store` raises, and IntegrityError where the store and this folder hold different contents of one
    identity, or different promotions under one number.
    """
    check_store(root, store)
    seen = _seen(root)
    kinds = (MANIFESTS, ALIASES, RUNS, NIGHTS, PROMOTIONS)
    listed: dict[str, Listed] = {}
    for found in store.many([lambda kind=kind: store.under(kind) for kind in kinds]):
        listed |= found
    new = [key for key, entry in listed.items() if entry.mark is None or seen.get(key) != entry.mark]

    def take(key: str) -> Callable[[], str]:
        def one() -> str:
            check_names(f"{store.address}/{key}", *key.split("/"))
            try:
                value = store.read(key)
            except FileNotFoundError:
                return ""  # Somebody deleted it since it was listed.
            except IntegrityError as error:
                log.warning("%s", error)  # What is damaged counts as not there; `verify` names it.
                return ""
            _place(root, store, key, value)
            return key

        return one

    taken = {key for key in store.many([take(key) for key in new]) if key}
    for key in seen.keys() - listed.keys():
        if key.startswith(f"{ALIASES}/"):
            # The word was taken back on another machine.
            (root / key).unlink(missing_ok=True)
    for alias in (root / ALIASES).glob("*/*.json"):
        key = alias.relative_to(root).as_posix()
        if key not in listed and key not in seen:
            _put(lambda alias=alias: put_alias(root, store, alias))
    for record in (root / RUNS).glob(f"*/{RECORD}"):
        run_id = record.parent.name
        if f"{RUNS}/{run_id}.json" not in listed and not (record.parent / OF_ANOTHER).exists():
            _put(lambda run_id=run_id: put_run(root, store, run_id))
    for night in (root / NIGHTS).glob("*.json"):
        if f"{NIGHTS}/{night.name}" not in listed:
            _put(lambda night=night: put_night(root, store, night.stem))
    known = {key: entry.mark for key, entry in listed.items() if key in taken or seen.get(key) == entry.mark}
    if known != seen:
        write_sealed(root / FOLDER / SEEN, known, sort_keys=True, indent=None)


def _put(one: Callable[[], None]) -> None:
    """Put a record; a damaged one stays here alone, and is named."""
    try:
        one()
    except IntegrityError as error:
        log.warning("%s", error)


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a run; from `ROOT/runs/RUN_ID/` with its paths under that root, wherever the run was made.

    Raises FileNotFoundError where there is none, IntegrityError where it is damaged.
    """
    cure = f"Restore it from a copy, or remove {path.parent}: the run's artifacts stay, and the next run reuses them."
    record = read_sealed(path, cure)
    stages = record.get("stages")
    if not isinstance(stages, list) or not all(isinstance(entry, dict) and "stage" in entry for entry in stages):
        raise IntegrityError(f"{path} is damaged (it holds no stages). {cure}")
    runs = path.absolute().parent.parent
    # A run's folder may have been copied alone, and a root may be reached by another name.
    if runs.name != RUNS or "root" not in record or Path(record["root"]).resolve() == runs.parent.resolve():
        return record
    return _relocated(record, runs.parent)


def put_alias(root: Path, store: ObjectStore, alias: Path) -> None:
    """Put the file of an accepted artifact, or take it out of the store where it is gone here."""
    key = alias.relative_to(root).as_posix()
    if alias.exists():
        store.write(key, read_sealed(alias, ALIAS_LOST))
    else:
        store.delete([key])


def put_run(root: Path, store: ObjectStore, run_id: str) -> None:
    """Put the record and the recipe of a run as they are now."""
    folder = root / RUNS / run_id
    recipe = folder / RECIPE
    told = {
        "record": read_record(folder / RECORD),
        "recipe": read_sealed(recipe, RECIPE_LOST) if recipe.exists() else None,
    }
    store.write(f"{RUNS}/{run_id}.json", told)


def put_night(root: Path, store: ObjectStore, run_id: str) -> None:
    """Put the record of a night as it is now."""
    store.write(f"{NIGHTS}/{run_id}.json", read_sealed(root / NIGHTS / f"{run_id}.json", NIGHT_LOST))


def create_promotion(store: ObjectStore, number: int, told: dict[str, Any]) -> bool:
    """Put a promotion if none has this number; whether it is this one that has it now."""
    return store.create(f"{PROMOTIONS}/{number:06d}.json", told)


def put_pages(root: Path, store: ObjectStore, run_id: str) -> None:
    """Put what a run left for people to read: its page and logs."""
    folder = root / RUNS / run_id
    for path in sorted(folder.glob("*.html")) + sorted(folder.glob("*.log")):
        store.put(f"{PAGES}/{run_id}/{path.name}", path.read_bytes())


def _place(root: Path, store: ObjectStore, key: str, value: Any) -> None:
    kind, *_ = key.split("/")
    if kind == MANIFESTS:
        _place_manifest(root, store, key, value)
    elif kind == ALIASES:
        write_sealed(root / key, value)
    elif kind == NIGHTS:
        _place_night(root, key, value)
    elif kind == PROMOTIONS:
        _place_promotion(root, store, key, value)
    else:
        _place_run(root, store, key, value)


def _place_manifest(root: Path, store: ObjectStore, key: str, manifest: dict[str, Any]) -> None:
    if key != manifest_key(manifest["stage"], manifest["identity"]):
        raise _misplaced(store, key, f"the manifest of {manifest['stage']}/{manifest['identity']}")
    stand(root, manifest)
    folder = root / "artifacts" / manifest["stage"] / manifest["identity"]
    mine = read_manifest(folder)
    if mine["content"] != manifest["content"]:
        raise IntegrityError(
            f"{store.address}/{key} and {folder} are other contents of the same identity: one of them was built outside"
            f" the store. The one in the store counts: remove {folder} and run again."
        )


def _misplaced(store: ObjectStore, key: str, what: str) -> IntegrityError:
    return IntegrityError(f"{store.address}/{key} holds {what}: somebody moved it. Delete it and run again.")


def _place_run(root: Path, store: ObjectStore, key: str, told: dict[str, Any]) -> None:
    record = _relocated(told["record"], root)
    if key != f"{RUNS}/{record['run_id']}.json":
        raise _misplaced(store, key, f"the record of run {record['run_id']}")
    folder = root / RUNS / record["run_id"]
    if _is_of_this_machine(folder):
        return
    write_atomically(folder / OF_ANOTHER, b"")
    if told["recipe"] is not None:
        write_sealed(folder / RECIPE, told["recipe"])
    write_sealed(folder / RECORD, record)


def _place_night(root: Path, key: str, told: dict[str, Any]) -> None:
    if not _is_of_this_machine(root / RUNS / told["run_id"]):
        write_sealed(root / key, told)


def _place_promotion(root: Path, store: ObjectStore, key: str, told: dict[str, Any]) -> None:
    if key != f"{PROMOTIONS}/{told['number']:06d}.json":
        raise _misplaced(store, key, f"the promotion {told['number']}")
    path = root / PROMOTIONS / f"{told['number']:06d}" / PROMOTION
    if path.exists() and read_sealed(path, PROMOTION_LOST) != told:
        raise IntegrityError(
            f"{store.address}/{key} and {path} are other promotions of the same number. The one in the store counts:"
            f" remove {path.parent} and ask again."
        )
    write_sealed(path, told)


def _is_of_this_machine(run: Path) -> bool:
    return run.exists() and not (run / OF_ANOTHER).exists()


def _relocated(record: dict[str, Any], root: Path) -> dict[str, Any]:
    """A record with the paths that it would have if its run had been made under this root."""
    there = Path(record["root"])

    def here(path: str) -> str:
        moved = Path(path)
        return str(root / moved.relative_to(there)) if moved.is_relative_to(there) else path

    stages = [{**entry, "path": here(entry["path"])} if "path" in entry else entry for entry in record["stages"]]
    page = {"page": here(record["page"])} if record.get("page") else {}
    return {**record, **page, "stages": stages, "root": str(root)}


def _seen(root: Path) -> dict[str, str | None]:
    try:
        return read_sealed(root / FOLDER / SEEN, "All is read from the store again.")
    except FileNotFoundError:
        return {}
    except IntegrityError as error:
        log.warning("%s", error)
        return {}
