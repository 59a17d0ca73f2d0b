"""Write down a removal, delete what the run before held once a run without the documents has ended, and certify it."""

import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from flows.recipe.schema import Recipe
from flows.removal.affected import Leaving, Request
from flows.removal.certificate import FOLDER, Certificate, commitment, write_certificate
from flows.removal.replay import ReplayPlan
from flows.runs.gc import REMOVED_PREFIX
from flows.runs.lineage import run_artifacts
from flows.runs.record import RECIPE, RECORD, RunData, list_runs, recipe_of
from flows.runs.run_documents import parts_of
from model.checksummed_json import read_sealed, write_sealed
from model.files import sync_directory
from tasks.artifacts.aggregates import digest_of_table
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.reuse import now
from tasks.chunk.config import SEATS
from tasks.decontaminate.config import HELDOUT_DRAW, RARITY

PENDING = "pending.json"
"""In the folder of certificates: a removal that was decided and has not ended."""
PENDING_LOST = "Decide again what to remove, and delete this file first."


@dataclass(frozen=True)
class Pending:
    """A removal that goes on until its certificate is written, whatever is killed in between."""

    before: str
    recipe: Recipe
    salt: str
    commitments: tuple[str, ...]
    leaving: Leaving
    request: Request
    plan: ReplayPlan


_PENDING = TypeAdapter(Pending)


def decide(
    root: Path, before: str, recipe: Recipe, sample: Artifact, leaving: Leaving, request: Request, plan: ReplayPlan
) -> Pending:
    """Write down a removal, so that it can be carried out to its end, and return it."""
    salt = secrets.token_hex(16)
    wanted = pa.array(sorted(bytes.fromhex(one) for one in leaving.ids(request)), pa.binary(16))
    texts: list[str] = []
    for rows in parts_of(sample, "documents", ["doc_id", "text"]):
        texts += rows.filter(pc.is_in(rows.column("doc_id"), value_set=wanted)).column("text").to_pylist()
    commitments = tuple(sorted(commitment(salt, text) for text in texts))
    pending = Pending(before, recipe, salt, commitments, leaving, request, plan)
    (root / FOLDER).mkdir(exist_ok=True)
    write_sealed(root / FOLDER / PENDING, _PENDING.dump_python(pending, mode="json"))
    return pending


def read_pending(root: Path) -> Pending | None:
    """Return the removal that has not ended, None where there is none."""
    try:
        return _PENDING.validate_python(read_sealed(root / FOLDER / PENDING, PENDING_LOST))
    except FileNotFoundError:
        return None


def finish(root: Path, pending: Pending, after: RunData) -> Path:
    """Delete what the run before holds, write the certificate of a removal whose run `after` has ended, and return its
    page."""
    recipe = recipe_of(root / "runs" / after["run_id"])
    artifacts = run_artifacts(after)
    record = next(run for run in list_runs(root) if run["run_id"] == pending.before)
    given_up = shred(root, record, after)
    leaving, plan = pending.leaving, pending.plan
    page = write_certificate(
        root,
        Certificate(
            before=pending.before,
            after=after["run_id"],
            when=now(),
            commitments=pending.commitments,
            duplicates=0 if pending.request.promote else len(leaving.duplicates),
            promoted=len(leaving.duplicates) if pending.request.promote else 0,
            heldout=leaving.heldout,
            leaks=leaving.leaks,
            step=plan.step,
            steps=plan.steps,
            tokens=plan.tokens,
            positions=plan.positions,
            kept=kept_aggregates(artifacts, recipe),
            tombstones=len(recipe.chunk.tombstones),
            model=artifacts["train"].content,
            removed=given_up.removed,
            shared=given_up.shared,
            other_runs=leaving.other_runs,
            made=leaving.made,
        ),
    )
    (root / FOLDER / PENDING).unlink()
    return page


def kept_aggregates(artifacts: Mapping[str, Artifact], recipe: Recipe) -> dict[str, str]:
    """Return what a recipe keeps of the run before -> its digest."""
    inputs = manifest_of(artifacts["sample"])["identity_parts"]["parents"]
    found = {"sizes of sources": inputs["kept/sizes"]} if "kept/sizes" in inputs else {}
    found["vocabulary"] = artifacts["vocab"].content
    found["counts of common words"] = digest_of_table(artifacts["decontaminate"], RARITY)
    found["held-out draw"] = digest_of_table(artifacts["decontaminate"], HELDOUT_DRAW)
    if recipe.clean.quality is not None:
        found["quality classifier"] = digest_of_table(artifacts["clean"], "quality")
    if recipe.chunk.packing == "stable":
        found["seats of the order"] = digest_of_table(artifacts["chunk"], SEATS)
    return found


@dataclass(frozen=True)
class Shredded:
    """What a run gave up, as `STAGE/IDENTITY` and paths below the root."""

    removed: tuple[str, ...]
    shared: tuple[str, ...]
    """Artifacts that stay, each with a run that uses them, too."""


def shred(root: Path, before: RunData, after: RunData) -> Shredded:
    """Overwrite and remove the artifacts of a run that neither the run after it nor another one has, and the run's
    pages and logs.

    A killed call is repeated: what is gone is left out.
    """
    used = {entry["identity"] for entry in after["stages"] if "identity" in entry}
    others = _users(root, {before["run_id"], after["run_id"]})
    removed: list[str] = []
    shared: list[str] = []
    stages: set[str] = set()
    for entry in before["stages"]:
        if "path" not in entry or "identity" not in entry or entry["identity"] in used:
            continue
        name = f"{entry['stage']}/{entry['identity']}"
        stages.add(entry["stage"])
        if entry["identity"] in others:
            shared.append(f"{name} (run {others[entry['identity']]})")
            continue
        path = Path(entry["path"])
        _overwrite(path)
        _overwrite(path.with_name(f"{REMOVED_PREFIX}{path.name}"))  # Left by a call that was killed.
        removed.append(name)
    folder = root / "runs" / before["run_id"]
    for path in sorted(folder.iterdir()):
        if path.name in (RECORD, RECIPE):
            continue
        _overwrite(path)
        removed.append(f"runs/{before['run_id']}/{path.name}")
    record = {**before, "notes": [], "collected": {"when": after["run_id"], "stages": sorted(stages)}}
    write_sealed(folder / RECORD, record)
    return Shredded(tuple(removed), tuple(shared))


def _users(root: Path, without: Collection[str]) -> dict[str, str]:
    """Return identity -> a run that has the artifact and did not give it up."""
    return {
        entry["identity"]: run["run_id"]
        for run in list_runs(root)
        if run["run_id"] not in without
        for entry in run["stages"]
        if "identity" in entry and entry["stage"] not in run.get("collected", {}).get("stages", ())
    }


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
