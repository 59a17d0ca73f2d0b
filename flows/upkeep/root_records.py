"""The records of a root, each of which holds its own digest: find them, check them, set damaged ones aside, and
rebuild the record of a run from manifests.

Records are what runs, builds, leases, accepted artifacts and studies leave besides artifacts. Pages, logs and files of
other programs (Prefect's database, exported models) are not among them.
"""

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from flows.recipe.stages import AFTERWARDS, STAGES
from flows.runs.record import INTERRUPTED, RECORD, RunData, read_recipe
from model.checkpoint.complete_marker import find_damage
from model.checkpoint.run_folder import CHECKPOINTS, COMPLETE, PREFIX, RESULT
from model.checksummed_json import read_optionally_sealed, read_sealed_lines, read_sealed_text, write_sealed
from model.digests import digest_file, read_bytes
from model.errors import IntegrityError
from model.files import sync_directory
from model.guard.decisions import ATTEMPTS
from tasks.artifacts.lease import is_alive, problem_of
from tasks.artifacts.manifest import Manifest, read_manifest
from tasks.artifacts.published import artifacts_under
from tasks.artifacts.remote.metadata import StageEntry, read_record
from tasks.artifacts.remote.partial_builds import STAGING
from tasks.artifacts.workspace import read_record as read_unit

RECORD_FOLDERS = (
    "runs",
    "aliases",
    "locks",
    "work",
    "promotions",
    "nights",
    "measurements",
    "searches",
    "mixtures",
    "ablations",
    "ladders",
    "forgotten",
)

FLAT_FOLDERS = ("service", ".store")
"""Folders that hold records and folders of other programs."""

LEASE = ".lease"

UNITS = "units"

DAMAGED = "damaged"

LOST = ""


def records_under(root: Path) -> list[Path]:
    """Return all records under a root: files, and folders marked COMPLETE; those set aside are left out."""
    found = [root / "inputs.json"]
    for name in FLAT_FOLDERS:
        found += (root / name).glob("*.json")
    for name in RECORD_FOLDERS:
        found += _below(root / name)
    return sorted(path for path in found if path.exists() and not path.name.startswith("."))


def _below(folder: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(folder):
        here = Path(above)
        whole = [name for name in folders if _is_whole_folder(here / name)]
        yield from (here / name for name in whole)
        folders[:] = [name for name in folders if name not in whole and not _is_left_out(here / name)]
        yield from (here / name for name in files if Path(name).suffix in (".json", ".jsonl", LEASE))


def _is_left_out(folder: Path) -> bool:
    """Return whether a folder was set aside, is unfinished, or holds links to files being uploaded."""
    if folder.name == STAGING and folder.parent.parent.name == "work":
        return True
    return folder.name.startswith((".", "tmp", "publish-", f"{DAMAGED}-")) or f".{DAMAGED}-" in folder.name


def _is_whole_folder(folder: Path) -> bool:
    name, above = folder.name, folder.parent.name
    return (
        (above == CHECKPOINTS and name.startswith(PREFIX))
        or (above == ATTEMPTS and name.isdigit())
        or (name == RESULT and (folder / COMPLETE).exists())
    )


def record_problem(path: Path) -> str | None:
    """Return what is wrong with a record, or None."""
    try:
        if path.is_dir():
            return find_damage(path)
        if path.suffix == LEASE:
            return problem_of(read_bytes(path))
        if path.suffix == ".jsonl":
            read_sealed_lines(path, LOST)
        elif path.parent.name == UNITS:
            return _problem_of_unit(path)
        elif path.name == RECORD and path.parent.parent.name == "runs":
            read_record(path)
        elif path.name == "weights.json":
            read_optionally_sealed(path, LOST)
        else:
            read_sealed_text(path, LOST)
    except IntegrityError as error:
        return str(error).removeprefix(f"{path} ").strip()
    except FileNotFoundError:
        return None  # Removed since it was listed.
    return None


def _problem_of_unit(path: Path) -> str | None:
    for file in read_unit(path)["files"]:
        here = path.parent.parent / "files" / file["name"]
        if not here.exists() or digest_file(here) != file["digest"]:
            return f"its file {here} is missing or has other bytes"
    return None


def set_aside_record(path: Path) -> str:
    """Rename a damaged record, or the training that a damaged decision belongs to; return what was done, as a sentence.

    The record of a run is rebuilt from manifests. A damaged lease is removed, unless its build is still running.
    """
    if not path.exists():
        return f"{path} was removed together with its folder"
    if path.suffix == LEASE:
        if path == max(path.parent.glob(f"*{LEASE}"), key=lambda one: int(one.stem)) and is_alive(path.parent):
            return f"{path} belongs to a running build, and is removed at its end"
        path.unlink(missing_ok=True)
        return f"{path} was released and removed"
    if path.parent.name == ATTEMPTS:
        path = path.parent.parent
    aside = path.with_name(f"{path.name}.{DAMAGED}-{uuid.uuid4().hex[:8]}")
    if path.parent.name == CHECKPOINTS:
        # The trainer uses the same name and records it in EVENTS.
        aside = path.with_name(f"{DAMAGED}-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
    os.rename(path, aside)
    sync_directory(path.parent)
    if path.name == RECORD and path.parent.parent.name == "runs" and (record := rebuild_run_record(path.parent)):
        write_sealed(path, record)
        stages = ", ".join(entry["stage"] for entry in record["stages"])
        return f"{aside}; {path} was rebuilt from manifests ({stages})"
    return str(aside)


def rebuild_run_record(folder: Path) -> RunData | None:
    """Return the record of a run rebuilt from the manifests of what it built, and of all that this was made from; None
    where it built nothing."""
    root, run_id = folder.parent.parent, folder.name
    manifests: dict[tuple[str, str], Manifest] = {}
    for artifact in artifacts_under(root):
        try:
            manifest = read_manifest(artifact)
        except IntegrityError:
            continue
        manifests[manifest["stage"], manifest["identity"]] = manifest
    waiting = [place for place, manifest in manifests.items() if manifest["run"] == run_id]
    built, found = set(waiting), dict[str, Manifest]()
    while waiting:
        place = waiting.pop()
        if place in manifests and place[0] not in found:
            found[place[0]] = manifests[place]
            parents = manifests[place]["parents"].values()
            waiting += [(parent["stage"], parent["identity"]) for parent in parents]
    if not found:
        return None
    try:
        recipe = read_recipe(folder)
    except IntegrityError:
        recipe = {}
    stages = [
        _entry(root, found[stage], (stage, found[stage]["identity"]) in built)
        for stage in (*STAGES, *AFTERWARDS)
        if stage in found
    ]
    note = "this record was damaged, and made again from the manifests of what the run built"
    return {
        "run_id": run_id,
        "recipe_name": recipe.get("name", "?"),
        "root": str(root),
        "started": min(found[stage]["timings"]["started"] for stage, _ in built),
        "state": "completed" if not found.keys().isdisjoint((STAGES[-1], *AFTERWARDS)) else INTERRUPTED,
        "finished": None,
        "stages": stages,
        "notes": [{"time": time.time(), "stage": stages[-1]["stage"], "note": note}],
    }


def _entry(root: Path, manifest: Manifest, built: bool) -> StageEntry:
    stage, identity = manifest["stage"], manifest["identity"]
    return {
        "stage": stage,
        "identity": identity,
        "content": manifest["content"],
        "path": str(root / "artifacts" / stage / identity),
        "outcome": "built" if built else "reused",
        "cause": "",
        "seconds": manifest["timings"]["seconds"] if built else 0.0,
        "started": manifest["timings"]["started"],
    }
