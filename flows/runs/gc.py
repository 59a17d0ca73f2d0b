"""Removing what no kept run needs: artifacts of older runs, and what killed builders left.

A run needs what it ended with, and what that was made from, to the first source. Trained models are told apart: with
them goes the record of how they were made, so they are only removed on a word of their own.
"""

import calendar
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flows.runs.model_registry import CURRENT, current_run, needed_runs
from flows.runs.object_store import list_leftovers, remove_leftovers, remove_stored
from flows.runs.record import RECORD, RUNNING, damaged_runs, list_runs, read_recipe, warn_once
from flows.runs.roots import put_record
from model.checksummed_json import write_sealed
from model.errors import InputError, IntegrityError
from tasks.artifacts.lease import LEASE_SECONDS, is_alive, is_held
from tasks.artifacts.manifest import MANIFEST, read_manifest
from tasks.artifacts.published import is_set_aside, upgraded_identity
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.leases import held_identities, is_alive_in_store
from tasks.artifacts.remote.metadata import read_record

MODEL_STAGE = "train"

FRESH_SECONDS = 3600.0
"""Artifacts younger than this are never removed: a run that is under way may have made them, and not said so yet."""

MOST_LOOKS = 64

REMOVED_PREFIX = ".removed-"

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class StoredArtifact:
    """An artifact by what its manifest says."""

    path: Path
    stage: str
    identity: str
    bytes: int
    parents: tuple[tuple[str, str], ...]
    """Stage and identity of each."""
    run_id: str | None = None
    """The run that made it."""


@dataclass(frozen=True)
class Plan:
    """What would be removed, and how many runs and artifacts stay."""

    kept_runs: tuple[str, ...]
    dropped_runs: tuple[str, ...]
    artifacts: tuple[StoredArtifact, ...]
    kept_models: tuple[StoredArtifact, ...]
    """Of dropped runs, kept since nobody said otherwise."""
    kept: int
    """Artifacts that stay."""
    fresh: int
    """Of these, those that no kept run needs, and that are younger than FRESH_SECONDS."""
    works: tuple[Path, ...]
    """Folders of unfinished builds that nobody has worked at for long."""
    left: tuple[tuple[str, str], ...] = ()
    """Stage and identity of what such builds left in the object store that the root stands before."""

    @property
    def bytes(self) -> int:
        """What the artifacts take on disk."""
        return sum(one.bytes for one in self.artifacts)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return json.loads(json.dumps(asdict(self), default=str)) | {"bytes": self.bytes}


def plan(
    root: Path,
    *,
    keep_last: int,
    keep: Collection[str] = (),
    models: bool = False,
    unfinished_days: float = 7.0,
    now: float | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    lease_seconds: float = LEASE_SECONDS,
) -> Plan:
    """What can go: all that neither the `keep_last` latest runs need, nor those named in `keep` by id or its beginning,
    nor the current model and those that undoing its promotions leads back to.

    What a run with a damaged record made stays, and no model goes while there is one: its end is unknown.
    A run that came to no end counts as kept for `unfinished_days`, and so does what an unfinished build left. `models`:
    trained models of dropped runs go too. Raises InputError for a name of no run, or while anything is being built
    under the root; of a builder whose machine went down only its silence for `lease_seconds` tells, and `say` hears of
    the wait.
    """
    now = time.time() if now is None else now
    if busy := _busy(root, say, lease_seconds):
        raise InputError(
            f"gc: {busy} is being built under {root} right now, and may be about to read what nobody kept. Wait until"
            f" it is done, or stop it."
        )
    runs = list_runs(root)
    named = {_named(runs, current_run(root) if name == CURRENT else name) for name in keep}
    latest = [run["run_id"] for run in runs][max(0, len(runs) - keep_last) :]
    since = now - unfinished_days * SECONDS_PER_DAY
    unfinished = [run["run_id"] for run in runs if run["state"] == RUNNING and _began(run["run_id"]) > since]
    of_current = needed_runs(root)
    kept_runs = [run for run in runs if run["run_id"] in {*named, *latest, *unfinished, *of_current}]
    kept_ids = {run["run_id"] for run in kept_runs}
    standing = {(one.stage, one.identity): one for one in _standing(root)}
    bases = {base for run in kept_runs for base in _bases(root, run["run_id"])}
    damaged = damaged_runs(root)
    made_there = {place for place, one in standing.items() if one.run_id in damaged}
    needed = _needed(kept_runs, standing, made_there) | {
        place for place, one in standing.items() if one.path.resolve() in bases
    }
    unneeded = [one for place, one in standing.items() if place not in needed]
    others = [one for one in unneeded if not _is_fresh(one.path, now)]
    kept_models = [one for one in others if one.stage == MODEL_STAGE and not (models and not damaged)]
    # What a kept model was made from may go: its record names every digest of it.
    doomed = [one for one in others if one not in kept_models]
    works = [path for path in (root / "work").glob("*.*") if _is_left(path, since)]
    store = store_of(root)
    left = list_leftovers(store, standing.keys(), since) if store is not None else []
    return Plan(
        kept_runs=tuple(run["run_id"] for run in kept_runs),
        dropped_runs=tuple(run["run_id"] for run in runs if run["run_id"] not in kept_ids),
        artifacts=tuple(sorted(doomed, key=lambda one: (one.stage, one.identity))),
        kept_models=tuple(kept_models),
        kept=len(standing) - len(doomed),
        fresh=len(unneeded) - len(others),
        works=tuple(sorted(works)),
        left=tuple(left),
    )


def delete(root: Path, asked: Plan) -> int:
    """Remove what the plan names; returns how many bytes of artifacts went.

    Each folder is renamed first, so that what a kill leaves is no half artifact; the next collection removes it.
    """
    for left in root.glob(f"artifacts/*/{REMOVED_PREFIX}*"):
        shutil.rmtree(left)
    for one in asked.artifacts:
        _remove(one.path)
    for work in asked.works:
        _remove(work)
    store = store_of(root)
    if store is not None:
        remove_stored(store, [(one.stage, one.identity) for one in asked.artifacts])
        remove_leftovers(store, asked.left)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    gone = {(one.stage, one.identity) for one in asked.artifacts}
    for run_id in asked.dropped_runs:
        file = root / "runs" / run_id / RECORD
        record = read_record(file)
        lost = [entry["stage"] for entry in record["stages"] if (entry["stage"], entry.get("identity")) in gone]
        if lost:
            record["collected"] = {
                "when": when,
                "stages": sorted({*lost, *record.get("collected", {}).get("stages", ())}),
            }
            write_sealed(file, record)
            put_record(root, run_id)
    return asked.bytes


def _remove(folder: Path) -> None:
    doomed = folder.with_name(f"{REMOVED_PREFIX}{uuid.uuid4().hex[:8]}-{folder.name}")
    try:
        os.rename(folder, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed)


def _busy(root: Path, say: Callable[[str], None], seconds: float) -> str | None:
    """A stage or identity that somebody builds right now, here or on another machine before the same store."""
    store = store_of(root)
    looks = {lock.name: partial(is_alive, lock, seconds) for lock in (root / "locks").glob("*") if is_held(lock)}
    if store is not None:
        looks |= {held: partial(is_alive_in_store, store, held, seconds) for held in held_identities(store)}
    if not looks:
        return None
    say(f"builds that were begun and not ended: {len(looks)}; whether they go on is known within {seconds:g} s")
    with ThreadPoolExecutor(min(len(looks), MOST_LOOKS)) as pool:
        lives = dict(zip(looks, pool.map(lambda look: look(), looks.values()), strict=True))
    return next((name[:12] for name, builds in lives.items() if builds), None)


def _named(runs: Iterable[dict[str, Any]], name: str) -> str:
    found = [run["run_id"] for run in runs if run["run_id"].startswith(name)]
    if len(found) != 1:
        told = "no run has this id" if not found else f"{len(found)} runs begin so: {', '.join(found)}"
        raise InputError(f"gc --keep {name}: {told}. `bessemer ls` lists them.")
    return found[0]


def _began(run_id: str) -> float:
    """Seconds since 1970, from a run's id."""
    return calendar.timegm(time.strptime(run_id.partition("-")[0], "%Y%m%dT%H%M%SZ"))


def _bases(root: Path, run_id: str) -> list[Path]:
    """Folders of models that a run started from, or was held against."""
    told = read_recipe(root / "runs" / run_id)
    if not told:
        return []
    named = (told["train"].get("base_model"), (told["evaluate"].get("gate") or {}).get("base_model"))
    return [Path(name).resolve() for name in named if name]


def _standing(root: Path) -> list[StoredArtifact]:
    """All artifacts that a run could use, from their manifests alone."""
    found: list[StoredArtifact] = []
    for manifest in root.glob(f"artifacts/*/*/{MANIFEST}"):
        folder = manifest.parent
        if is_set_aside(folder) or folder.name.startswith(REMOVED_PREFIX):
            continue
        try:
            data = read_manifest(folder)
        except IntegrityError as error:
            warn_once(f"{error} Until then it stays.")
            continue
        parents = tuple((parent["stage"], parent["identity"]) for parent in data["parents"].values())
        if upgraded := upgraded_identity(folder):  # Whoever needs an artifact needs its copy in this version's format.
            parents += ((data["stage"], upgraded),)
        found.append(StoredArtifact(folder, data["stage"], data["identity"], data["bytes"], parents, data.get("run")))
    return found


def _needed(
    runs: Iterable[dict[str, Any]], standing: dict[tuple[str, str], StoredArtifact], more: Iterable[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Stage and identity of all that runs ended with, of `more`, and of all that these were made from."""
    waiting = [(entry["stage"], entry["identity"]) for run in runs for entry in run["stages"] if "identity" in entry]
    waiting += more
    needed: set[tuple[str, str]] = set()
    while waiting:
        place = waiting.pop()
        if place not in needed and place in standing:
            needed.add(place)
            waiting += standing[place].parents
    return needed


def _is_fresh(path: Path, now: float) -> bool:
    return now - (path / MANIFEST).stat().st_mtime < FRESH_SECONDS


def _is_left(work: Path, before: float) -> bool:
    """Whether nothing in an unfinished build's folder was written since; its own entries, and those of scratch."""
    places = [work, *work.glob("*"), *work.glob("scratch/*"), *work.glob("scratch/*/*")]
    return max((place.lstat().st_mtime for place in places), default=0.0) < before
