"""Garbage collection: remove what no kept run needs, artifacts of older runs and leftovers of killed builds.

A run needs the artifacts that it ended with and all that these were made from. Trained models are only removed when
asked for explicitly, since the record of how they were made would go with them.
"""

import shutil
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flows.runs.model_registry import CURRENT, current_run, needed_runs
from flows.runs.object_store import list_leftovers, remove_leftovers, remove_stored
from flows.runs.record import (
    RECORD,
    RUNNING,
    RunData,
    damaged_runs,
    list_history,
    list_runs,
    read_recipe,
    read_run,
    time_of,
    warn_once,
)
from flows.runs.roots import put_record
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError, IntegrityError, RecipeError
from tasks.artifacts.lease import LEASE_SECONDS, is_alive, is_held
from tasks.artifacts.manifest import MANIFEST, read_manifest
from tasks.artifacts.published import REMOVED_PREFIX, artifacts_under, remove_folder
from tasks.artifacts.references import kept_artifact
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.leases import held_identities, is_alive_in_store
from tasks.artifacts.remote.metadata import FORGOTTEN, PENDING, PENDING_LOST

MODEL_STAGES = ("train", "finetune")

FRESH_SECONDS = 3600.0
"""Artifacts younger than this are never removed: a running run may have made them and not recorded them yet."""

MAX_THREADS = 64

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class StoredArtifact:
    """An artifact as its manifest describes it."""

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
    """What would be removed, and how many runs and artifacts are kept."""

    kept_runs: tuple[str, ...]
    dropped_runs: tuple[str, ...]
    artifacts: tuple[StoredArtifact, ...]
    kept_models: tuple[StoredArtifact, ...]
    """Models of dropped runs, kept since their removal was not asked for."""
    kept: int
    """Artifacts that are kept."""
    fresh: int
    """Of these, those that no kept run needs but that are younger than FRESH_SECONDS."""
    works: tuple[Path, ...]
    """Folders of unfinished builds that were not written to for long."""
    left: tuple[tuple[str, str], ...] = ()
    """Stage and identity of what such builds left in the object store behind the root."""

    @property
    def bytes(self) -> int:
        """Bytes of the artifacts on disk."""
        return sum(one.bytes for one in self.artifacts)

    def within(self, later: "Plan") -> "Plan":
        """Return a later plan without what this one does not remove."""
        pairs = ((getattr(self, name), getattr(later, name)) for name in ("artifacts", "works", "left"))
        artifacts, works, left = (tuple(one for one in new if one in old) for old, new in pairs)
        return replace(later, artifacts=artifacts, works=works, left=left)


def plan(
    root: Path,
    *,
    keep_last: int,
    keep: Collection[str] = (),
    models: bool = False,
    unfinished_days: float = 7.0,
    now: float | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Plan:
    """Return what can be removed.

    Kept are the artifacts that these runs need: the `keep_last` latest, those named in `keep` by id or its beginning,
    those of the current model and of the models that undoing its promotions would restore, and the one from which
    documents are being removed: the removal goes on from what it holds, and overwrites it. A run without an end counts
    as kept for `unfinished_days`, as do the leftovers of an unfinished build. Artifacts of a run with a damaged record
    are kept, and while there is one, all models are. `models`: trained models of dropped runs are removed too.

    Raises InputError for an unknown run, or while anything is being built under the root. A builder whose machine died
    shows only by its silence for LEASE_SECONDS; `say` is called before this wait.
    """
    now = time.time() if now is None else now
    if busy := _busy(root, say):
        raise InputError(
            f"gc: {busy} is being built under {root} right now, and may read artifacts that would be removed. Wait"
            f" until it is done, or stop it."
        )
    runs = list_runs(root)
    named = {_named(runs, current_run(root) if name == CURRENT else name) for name in keep}
    latest = _latest(runs, list_history(root), keep_last)
    since = now - unfinished_days * SECONDS_PER_DAY
    unfinished = [run["run_id"] for run in runs if run["state"] == RUNNING and run["started"] > since]
    needed_ids = {*named, *latest, *unfinished, *needed_runs(root), *_removal_under_way(root)}
    kept_runs = [run for run in runs if run["run_id"] in needed_ids]
    kept_ids = {run["run_id"] for run in kept_runs}
    stored = {(one.stage, one.identity): one for one in _stored_artifacts(root)}
    bases = {base for run in kept_runs for base in _bases(root, run["run_id"])}
    damaged = damaged_runs(root)
    made_there = {place for place, one in stored.items() if one.run_id in damaged}
    needed = _needed(kept_runs, stored, made_there) | {
        place for place, one in stored.items() if one.path.resolve() in bases
    }
    unneeded = [one for place, one in stored.items() if place not in needed]
    others = [one for one in unneeded if now - (one.path / MANIFEST).stat().st_mtime >= FRESH_SECONDS]
    kept_models = [one for one in others if one.stage in MODEL_STAGES and not (models and not damaged)]
    # The inputs of a kept model may be removed: its record names their digests.
    doomed = [one for one in others if one not in kept_models]
    works = [path for path in (root / "work").glob("*.*") if _is_left(path, since)]
    store = store_of(root)
    left = list_leftovers(store, stored.keys(), since) if store is not None else []
    return Plan(
        kept_runs=tuple(run["run_id"] for run in kept_runs),
        dropped_runs=tuple(run["run_id"] for run in runs if run["run_id"] not in kept_ids),
        artifacts=tuple(sorted(doomed, key=lambda one: (one.stage, one.identity))),
        kept_models=tuple(kept_models),
        kept=len(stored) - len(doomed),
        fresh=len(unneeded) - len(others),
        works=tuple(sorted(works)),
        left=tuple(left),
    )


def _latest(runs: list[RunData], history: list[RunData], count: int) -> set[str]:
    """Return the ids of the runs that were used last; one that built nothing used the run that it is the same as."""
    used = {run["run_id"]: time_of(run) for run in runs}
    for line in history:
        if (same := line.get("same_as")) in used:
            used[same] = max(used[same], line["run_id"])
    return set(sorted(used, key=lambda run_id: used[run_id])[max(0, len(used) - count) :])


def delete(root: Path, plan: Plan) -> int:
    """Remove what the plan names, and return the bytes of the artifacts removed.

    What a killed collection left of its folders is removed, too.
    """
    for left in root.glob(f"artifacts/*/{REMOVED_PREFIX}*"):
        shutil.rmtree(left)
    for folder in (*(one.path for one in plan.artifacts), *plan.works):
        remove_folder(folder)
    store = store_of(root)
    if store is not None:
        remove_stored(store, [(one.stage, one.identity) for one in plan.artifacts])
        remove_leftovers(store, plan.left)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    removed = {(one.stage, one.identity) for one in plan.artifacts}
    for run_id in plan.dropped_runs:
        record = read_run(root / "runs" / run_id)
        lost = [entry["stage"] for entry in record["stages"] if (entry["stage"], entry.get("identity")) in removed]
        if lost:
            stages = sorted({*lost, *record.get("collected", {}).get("stages", ())})
            record["collected"] = {"when": when, "stages": stages}
            write_sealed(root / "runs" / run_id / RECORD, record)
            put_record(root, run_id)
    return plan.bytes


def _busy(root: Path, say: Callable[[str], None]) -> str | None:
    """Return a stage or identity that is being built right now, here or on another machine with the same store."""
    store = store_of(root)
    locks = (root / "locks").glob("*")
    looks = {lock.name: partial(is_alive, lock, LEASE_SECONDS) for lock in locks if is_held(lock)}
    if store is not None:
        looks |= {held: partial(is_alive_in_store, store, held, LEASE_SECONDS) for held in held_identities(store)}
    if not looks:
        return None
    say(f"unfinished builds: {len(looks)}; checking for up to {LEASE_SECONDS:g} s whether they are still running")
    with ThreadPoolExecutor(min(len(looks), MAX_THREADS)) as pool:
        lives = dict(zip(looks, pool.map(lambda look: look(), looks.values()), strict=True))
    return next((name[:12] for name, builds in lives.items() if builds), None)


def _named(runs: Iterable[RunData], name: str) -> str:
    ids = [run["run_id"] for run in runs]
    found = [name] if name in ids else [run_id for run_id in ids if run_id.startswith(name)]
    if len(found) != 1:
        problem = "no run has this id" if not found else f"{len(found)} runs have such an id: {', '.join(found)}"
        raise InputError(f"gc --keep {name}: {problem}. `bessemer runs list` lists them.")
    return found[0]


def _removal_under_way(root: Path) -> list[str]:
    """Return the run of a removal that has not ended, if there is one; IntegrityError where its record is damaged."""
    try:
        return [read_sealed(root / FORGOTTEN / PENDING, PENDING_LOST)["before"]]
    except FileNotFoundError:
        return []


def _bases(root: Path, run_id: str) -> list[Path]:
    """Return the folders of models that a run started from or was compared with, of the vocabulary that it took over or
    extended, and of the artifacts that its recipe keeps or compares with; IntegrityError where one cannot be known."""
    recipe = read_recipe(root / "runs" / run_id)
    if not recipe:
        return []
    named = (recipe["train"].get("base_model"), (recipe["evaluate"].get("gate") or {}).get("base_model"))
    found = [Path(name).resolve() for name in named if name]
    if vocabulary := recipe.get("vocab", {}).get("base"):
        found.append(Path(vocabulary).resolve().parent)
    tables = {stage: table for stage, table in recipe.items() if isinstance(table, dict)}
    references = [(stage, table.get(key)) for stage, table in tables.items() for key in ("keep", "keep_heldout")]
    references += [("dedup", name) for name in tables.get("dedup", {}).get("against", ())]
    references += [("decontaminate", name) for name in recipe["evaluate"].get("earlier", ())]
    for stage, reference in references:
        with suppress(InputError, RecipeError):  # It is gone already.
            if (artifact := kept_artifact(reference, root, stage)) is not None:
                found.append(artifact.path.resolve())
    return found


def _stored_artifacts(root: Path) -> list[StoredArtifact]:
    """Return all artifacts that a run could use, from their manifests alone."""
    found: list[StoredArtifact] = []
    for folder in artifacts_under(root):
        try:
            data = read_manifest(folder)
        except IntegrityError as error:
            warn_once(f"{error} Until then it is kept.")
            continue
        parents = tuple((parent["stage"], parent["identity"]) for parent in data["parents"].values())
        found.append(StoredArtifact(folder, data["stage"], data["identity"], data["bytes"], parents, data.get("run")))
    return found


def _needed(
    runs: Iterable[RunData], stored: dict[tuple[str, str], StoredArtifact], more: Iterable[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return stage and identity of all that runs ended with, of `more`, and of all that these were made from."""
    waiting = [(entry["stage"], entry["identity"]) for run in runs for entry in run["stages"] if "identity" in entry]
    waiting += more
    needed: set[tuple[str, str]] = set()
    while waiting:
        place = waiting.pop()
        if place not in needed and place in stored:
            needed.add(place)
            waiting += stored[place].parents
    return needed


def _is_left(work: Path, before: float) -> bool:
    """Return whether nothing in an unfinished build's folder, scratch included, was written since `before`."""
    places = [work, *work.glob("*"), *work.glob("scratch/*"), *work.glob("scratch/*/*")]
    return max((place.lstat().st_mtime for place in places), default=0.0) < before
