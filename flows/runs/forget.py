"""Train a model as if documents had never been there: what saw them, the recipe without them, and what is deleted.

The recipe without them names their ids (`sample.exclude_documents`), keeps what the run decided over all documents
(`keep`), and leaves their places in a stable order empty (`chunk.tombstones`). So it can be run anywhere, and the run
here differs in one point only: it continues a checkpoint of the run before, where the rows read up to there are equal
(`model/train/replay.py`).
"""

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.recipe.schema import Recipe
from flows.recipe.stages import StageLimitReached
from flows.runs.forget_certificate import FOLDER, Certificate, commitment, write_certificate
from flows.runs.gc import REMOVED_PREFIX
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.record import RECIPE, RECORD, RunData, list_runs, new_run_id, recipe_of
from flows.runs.run_documents import find_documents, parts_of
from model.checkpoint.metrics import final_steps
from model.checkpoint.run_folder import PREFIX
from model.checksummed_json import read_sealed, write_sealed
from model.data.dataset import SequenceReader
from model.errors import InputError
from model.files import sync_directory
from tasks.artifacts.aggregates import digest_of_table
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.manifest import MANIFEST, read_manifest
from tasks.artifacts.reuse import now
from tasks.chunk.config import SEATS
from tasks.chunk.tombstones import tombstones
from tasks.decontaminate.config import HELDOUT_DRAW, RARITY

KEEPING = ("sample", "clean", "decontaminate", "vocab", "chunk")
"""Stages that keep what the run before decided over all documents."""
BATCH_POSITIONS = 4096


@dataclass(frozen=True)
class Request:
    """Which documents leave: by id or path, by source, by file, by the licence of their source."""

    documents: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    promote: bool = False
    """Whether near-duplicates that were dropped in favour of a document take its place; by default they leave, too."""
    refill: bool = False
    """Whether other rows take the seats that become free; by default they stay empty, and no other position changes."""


@dataclass(frozen=True)
class Leaving:
    """The documents of one run that leave, and what saw them."""

    requested: tuple[str, ...]
    """Ids, sorted."""
    duplicates: tuple[str, ...]
    """Ids of documents that dedup dropped in favour of one of them."""
    copies_of: dict[str, str] = field(default_factory=dict)
    """Id of a requested document that dedup dropped -> id of the document that was kept instead, which stays."""
    heldout: int = 0
    leaks: int = 0
    """Benchmark items that were found in them."""
    other_runs: tuple[str, ...] = ()
    """Other runs under the root that sampled one of them."""
    made: tuple[str, ...] = ()
    """Artifacts made from the run's model (fine-tuned ones, exports), and later documents compared with its own."""


def find_leaving(
    root: Path, run_id: str, artifacts: Mapping[str, Artifact], recipe: Recipe, request: Request
) -> Leaving:
    """Return the documents that a request of the run `run_id` names, and what saw them; InputError where it names
    none."""
    ids = _requested(artifacts, recipe, request)
    wanted = pa.array(sorted(ids), pa.binary(16))
    duplicates: set[bytes] = set()
    copies: dict[str, str] = {}
    hexes = {one.hex() for one in ids}
    for rows in parts_of(artifacts["dedup"], "ledger", ["doc_id", "action", "evidence"]):
        for row in rows.filter(pc.equal(rows.column("action"), "drop")).to_pylist():
            survivor = _survivor(row["evidence"])
            if row["doc_id"] in ids and survivor is not None and survivor not in hexes:
                copies[row["doc_id"].hex()] = survivor
            elif survivor in hexes and row["doc_id"] not in ids:
                duplicates.add(row["doc_id"])
    all_ids = ids if request.promote else ids | duplicates
    return Leaving(
        requested=tuple(sorted(hexes)),
        duplicates=tuple(sorted(one.hex() for one in duplicates)),
        copies_of=copies,
        heldout=_count(artifacts["decontaminate"], "heldout", all_ids),
        leaks=sum(
            pc.sum(pc.is_in(rows.column("doc_id"), value_set=wanted)).as_py() or 0
            for rows in parts_of(artifacts["decontaminate"], "leaks", ["doc_id"])
        ),
        other_runs=tuple(
            run["run_id"]
            for run in list_runs(root)
            if run["run_id"] != run_id and _sampled(run, artifacts["sample"], all_ids)
        ),
        made=tuple(_made_from(root, artifacts)),
    )


def _requested(artifacts: Mapping[str, Artifact], recipe: Recipe, request: Request) -> set[bytes]:
    sources = set(request.sources)
    for licence in request.licences:
        of_licence = {source.name for source in recipe.sample.sources if source.licence == licence}
        if not of_licence:
            raise InputError(f"data forget --licence {licence}: no source of the recipe has this licence")
        sources |= of_licence
    if unknown := sources - {source.name for source in recipe.sample.sources}:
        names = ", ".join(source.name for source in recipe.sample.sources)
        raise InputError(f"data forget --source {min(unknown)}: the recipe has the sources {names}")
    ids: set[bytes] = set()
    for wanted in request.documents:
        found = find_documents(dict(artifacts), wanted)
        if not found:
            raise InputError(f"data forget {wanted}: the run sampled no document of this id or path")
        ids |= set(found)
    files = pa.array(sorted(request.files), pa.string())
    for rows in parts_of(artifacts["sample"], "documents", ["doc_id", "source", "origin"]):
        path = pc.struct_field(rows.column("origin").combine_chunks(), "path")
        chosen = pc.or_(
            pc.is_in(rows.column("source").cast(pa.string()), value_set=pa.array(sorted(sources), pa.string())),
            pc.is_in(path, value_set=files),
        )
        ids |= set(rows.column("doc_id").filter(chosen).to_pylist())
    if not ids:
        raise InputError("data forget: no sampled document is of these sources or files; `bessemer data history` finds")
    return ids


def _survivor(evidence: str | None) -> str | None:
    try:
        found = json.loads(evidence or "null")
    except json.JSONDecodeError:
        return None
    return found.get("survivor") if isinstance(found, dict) else None


def _count(artifact: Artifact, table: str, ids: Iterable[bytes]) -> int:
    wanted = pa.array(sorted(ids), pa.binary(16))
    return sum(
        pc.sum(pc.is_in(rows.column("doc_id"), value_set=wanted)).as_py() or 0
        for rows in parts_of(artifact, table, ["doc_id"])
    )


def _sampled(run: RunData, sample: Artifact, ids: set[bytes]) -> bool:
    """Return whether a run sampled one of the documents, if its artifact exists."""
    paths = [Path(entry["path"]) for entry in run["stages"] if entry["stage"] == "sample" and "path" in entry]
    return any(
        (path / MANIFEST).exists() and (path.name == sample.identity or _count(Artifact.open(path), "documents", ids))
        for path in paths
    )


def _made_from(root: Path, artifacts: Mapping[str, Artifact]) -> Iterator[str]:
    """Yield stage and identity of the artifacts that were made from a model, other than scores, and of those of dedup
    that were compared with this run's documents."""
    for manifest in sorted(root.glob(f"artifacts/*/*/{MANIFEST}")):
        stage = manifest.parent.parent.name
        source = artifacts["dedup" if stage == "dedup" else "train"].identity
        parents = read_manifest(manifest.parent)["parents"].values() if stage != "evaluate" else ()
        if any(parent["identity"] == source for parent in parents):
            yield f"{stage}/{manifest.parent.name}"


def recipe_without(
    recipe: Recipe, run_id: str, artifacts: Mapping[str, Artifact], leaving: Leaving, request: Request
) -> Recipe:
    """Return the recipe of the run `run_id` without the documents that leave."""
    ids = {*leaving.requested, *(() if request.promote else leaving.duplicates)}
    changes: dict[str, dict[str, Any]] = {stage: {"keep": run_id} for stage in KEEPING}
    changes["sample"]["exclude_documents"] = tuple(sorted({*recipe.sample.exclude_documents, *ids}))
    changes["decontaminate"]["keep_heldout"] = run_id
    if recipe.chunk.packing == "stable" and not request.refill:
        new = tombstones(artifacts["decontaminate"], artifacts["vocab"], {bytes.fromhex(one) for one in ids})
        changes["chunk"]["tombstones"] = (*recipe.chunk.tombstones, *new)
    return recipe.model_copy(
        update={stage: getattr(recipe, stage).model_copy(update=values) for stage, values in changes.items()}
    )


@dataclass(frozen=True)
class ReplayPlan:
    """From where training goes on, and how much it computes again."""

    step: int
    steps: int
    tokens: int
    """Tokens that are read again."""
    tokens_in_all: int
    positions: int
    """Positions of the order whose rows change."""
    first_position: int | None
    """The first of them; None where no row that training read changes."""
    seconds: float
    """Time of the repeated steps at the speed of the training before."""


def plan_replay(before: Mapping[str, Artifact], chunk: Artifact) -> ReplayPlan:
    """Return from which step training would go on with the sequences of `chunk`, by the rows of both orders.

    The trainer compares again, and takes no checkpoint whose settings or libraries are others."""
    mine, theirs = (SequenceReader(of.files("sequences"), of.files("order")[0]) for of in (before["chunk"], chunk))
    steps = final_steps(before["train"].table("steps"))
    tokens = before["train"].table("metrics").column("tokens").to_numpy()
    total = int(tokens[-1]) if len(tokens) else 0
    walls = before["train"].table("perf").column("wall_s").to_numpy()
    pace = float(np.median(walls)) if len(walls) else 0.0
    if mine.positions != theirs.positions or mine.row_length != theirs.row_length:
        everything = max(mine.positions, theirs.positions)
        return ReplayPlan(0, steps.num_rows, total, total, everything, 0, steps.num_rows * pace)
    changed = _changed_positions(mine, theirs)
    ends = steps.column("pos_end").to_numpy()
    kept = sorted({int(record.name[len(PREFIX) :].partition(".")[0]) for record in _lasting(before["train"])})
    first = int(changed[0]) if len(changed) else None
    usable = [step for step in kept if first is None or ends[step - 1] <= first]
    if _validation_rows(before["chunk"]) != _validation_rows(chunk):
        usable = [step for step in usable if not _validated_by(before["train"], step)]
    step = usable[-1] if usable else 0
    read = int(tokens[step - 1]) if step else 0
    seconds = (steps.num_rows - step) * pace
    return ReplayPlan(step, steps.num_rows, total - read, total, len(changed), first, seconds)


def _changed_positions(mine: SequenceReader, theirs: SequenceReader) -> np.ndarray:
    found = [np.zeros(0, np.int64)]
    for begin in range(0, mine.positions, BATCH_POSITIONS):
        end = min(begin + BATCH_POSITIONS, mine.positions)
        differ = (mine.rows(begin, end).tokens_BL != theirs.rows(begin, end).tokens_BL).any(axis=1)
        found.append(begin + np.flatnonzero(differ))
    return np.concatenate(found)


def _lasting(trained: Artifact) -> list[Any]:
    return [record for record in trained.records if record.name.startswith(PREFIX)]


def _validation_rows(chunk: Artifact) -> list[str]:
    return [record.digest for record in chunk.records if record.table == "heldout_rows"]


def _validated_by(trained: Artifact, step: int) -> bool:
    rows = trained.table("validation").column("step").to_numpy() if trained.names("validation") else np.zeros(0)
    return bool(len(rows)) and int(rows.min()) < step


def build_sequences(recipe: Recipe, root: Path) -> Artifact:
    """Build the stages of a recipe up to chunk, and return the artifact of chunk."""
    context = RunContext(root, run_id=new_run_id())
    last: list[Artifact] = []

    def step(stage: str, *inputs: Any) -> Artifact:
        if stage == "train":
            raise StageLimitReached
        last.append(BUILDERS[stage](context, *inputs))
        return last[-1]

    with contextlib.suppress(StageLimitReached):
        run_stages(recipe, step)
    return last[-1]


PENDING = "pending.json"
"""In the folder of certificates: a removal that was decided and has not ended."""
PENDING_LOST = "Decide again what to remove, and delete this file first."


@dataclass(frozen=True)
class Pending:
    """A removal that goes on until its certificate is written, whatever is killed in between."""

    before: str
    recipe: dict[str, Any]
    salt: str
    commitments: tuple[str, ...]
    leaving: dict[str, Any]
    request: dict[str, Any]
    plan: dict[str, Any]


def decide(
    root: Path, before: str, recipe: Recipe, sample: Artifact, leaving: Leaving, request: Request, plan: ReplayPlan
) -> Pending:
    """Write down a removal, so that it can be carried out to its end, and return it."""
    salt = secrets.token_hex(16)
    ids = {*leaving.requested, *(() if request.promote else leaving.duplicates)}
    wanted = pa.array(sorted(bytes.fromhex(one) for one in ids), pa.binary(16))
    texts: list[str] = []
    for rows in parts_of(sample, "documents", ["doc_id", "text"]):
        texts += rows.filter(pc.is_in(rows.column("doc_id"), value_set=wanted)).column("text").to_pylist()
    commitments = tuple(sorted(commitment(salt, text) for text in texts))
    values = (asdict(leaving), asdict(request), asdict(plan))
    pending = Pending(before, recipe.model_dump(mode="json"), salt, commitments, *values)
    (root / FOLDER).mkdir(exist_ok=True)
    write_sealed(root / FOLDER / PENDING, asdict(pending))
    return pending


def read_pending(root: Path) -> Pending | None:
    """Return the removal that has not ended, None where there is none."""
    try:
        return Pending(**read_sealed(root / FOLDER / PENDING, PENDING_LOST))
    except FileNotFoundError:
        return None


def finish(root: Path, pending: Pending, after: RunData) -> Path:
    """Delete what the run before holds, write the certificate of a removal whose run `after` has ended, and return its
    page."""
    recipe = recipe_of(root / "runs" / after["run_id"])
    paths = {entry["stage"]: Path(entry["path"]) for entry in after["stages"] if "path" in entry}
    artifacts = {stage: Artifact.open(path) for stage, path in paths.items()}
    record = next(run for run in list_runs(root) if run["run_id"] == pending.before)
    given_up = shred(root, record, after)
    leaving, plan = pending.leaving, pending.plan
    page = write_certificate(
        root,
        Certificate(
            before=pending.before,
            after=after["run_id"],
            when=now(),
            commitments=tuple(pending.commitments),
            duplicates=0 if pending.request["promote"] else len(leaving["duplicates"]),
            promoted=len(leaving["duplicates"]) if pending.request["promote"] else 0,
            heldout=leaving["heldout"],
            leaks=leaving["leaks"],
            step=plan["step"],
            steps=plan["steps"],
            tokens=plan["tokens"],
            positions=plan["positions"],
            kept=kept_aggregates(artifacts, recipe),
            tombstones=len(recipe.chunk.tombstones),
            model=artifacts["train"].content,
            removed=given_up.removed,
            shared=given_up.shared,
            other_runs=tuple(leaving["other_runs"]),
            made=tuple(leaving["made"]),
        ),
    )
    (root / FOLDER / PENDING).unlink()
    return page


def kept_aggregates(artifacts: Mapping[str, Artifact], recipe: Recipe) -> dict[str, str]:
    """Return what a recipe keeps of the run before -> its digest."""
    inputs = artifacts["sample"].manifest["identity_parts"]["parents"]
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
