"""Find the documents that a request names and what saw them, and make the recipe without them.

The recipe without them names their ids (`sample.exclude_documents`), keeps what the run decided over all documents
(`keep`), and leaves their places in a stable order empty (`chunk.tombstones`), so that it can be run anywhere.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.recipe.schema import Recipe
from flows.runs.object_store import list_leftovers
from flows.runs.record import RunData, list_runs, stage_paths
from flows.runs.run_documents import dropped_copies, find_documents, parts_of
from flows.runs.shredding import users
from model.checkpoint.run_folder import DESCRIPTION
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.manifest import MANIFEST, Manifest, read_manifest
from tasks.artifacts.published import artifacts_under, is_set_aside
from tasks.artifacts.remote.attach import store_of
from tasks.chunk.tombstones import tombstones
from tasks.common.text import as_stored

KEEPING = ("sample", "clean", "decontaminate", "vocab", "chunk")
"""Stages that keep what the run before decided over all documents."""

MOST_NAMED = 10


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
    """Whether other rows take the slots that become free; by default they stay empty, and no other position changes."""


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
    """Artifacts made from the run's model (fine-tuned ones, exports, trainings that went on from it, and what was made
    from these), and later documents compared with its own."""
    unfinished: tuple[str, ...] = ()
    """Builds that have not ended, in the root's folder or its object store, and artifacts of other runs that were set
    aside, which may hold one of them."""

    def ids(self, request: Request) -> set[str]:
        """Return the ids of all documents that leave by this request."""
        return {*self.requested, *(() if request.promote else self.duplicates)}


def find_leaving(
    root: Path, run_id: str, artifacts: Mapping[str, Artifact], recipe: Recipe, request: Request
) -> Leaving:
    """Return the documents that a request of the run `run_id` names, and what saw them; InputError where it names
    none."""
    ids = requested_ids(root, run_id, artifacts, recipe, request)
    duplicates: set[bytes] = set()
    copies: dict[str, str] = {}
    for doc_id, kept in dropped_copies(artifacts["dedup"]):
        if doc_id in ids and kept not in ids:
            copies[doc_id.hex()] = kept.hex()
        elif kept in ids and doc_id not in ids:
            duplicates.add(doc_id)
    all_ids = ids if request.promote else ids | duplicates
    return Leaving(
        requested=tuple(sorted(one.hex() for one in ids)),
        duplicates=tuple(sorted(one.hex() for one in duplicates)),
        copies_of=copies,
        heldout=_count(artifacts["decontaminate"], "heldout", all_ids),
        leaks=_count(artifacts["decontaminate"], "leaks", ids),
        other_runs=tuple(
            run["run_id"]
            for run in list_runs(root)
            if run["run_id"] != run_id and _sampled(run, artifacts["sample"], all_ids)
        ),
        made=tuple(_made_from(root, artifacts)),
        unfinished=(*_unfinished(root), *_set_aside(root, artifacts)),
    )


def requested_ids(
    root: Path, run_id: str, artifacts: Mapping[str, Artifact], recipe: Recipe, request: Request
) -> set[bytes]:
    """Return the ids of the documents of the run `run_id` that a request names; InputError where a part of it names
    none."""
    if not (request.documents or request.files or request.sources or request.licences):
        raise InputError(
            f"data forget: no removal under {root} is unfinished. Name documents to remove, by their ids or parts of"
            " their paths, or give --file, --source or --licence"
        )
    sources = set(request.sources)
    for licence in request.licences:
        of_licence = {source.name for source in recipe.sample.sources if source.licence == licence}
        if not of_licence:
            raise InputError(f"data forget --licence {licence}: no source of the recipe has this licence")
        sources |= of_licence
    if unknown := sources - {source.name for source in recipe.sample.sources}:
        names = ", ".join(source.name for source in recipe.sample.sources)
        raise InputError(f"data forget --source {min(unknown)}: the recipe has no such source; it has {names}")
    ids: set[bytes] = set()
    for wanted in request.documents:
        found = find_documents(dict(artifacts), wanted)
        if not found:
            elsewhere = _elsewhere(root, run_id, recipe, wanted)
            raise InputError(f"data forget {wanted}: run {run_id} sampled no document of this id or path; {elsewhere}")
        ids |= set(found)
    files = pa.array(sorted(map(as_stored, request.files)), pa.string())
    unseen = set(files.to_pylist())
    for rows in parts_of(artifacts["sample"], "documents", ["doc_id", "source", "origin"]):
        path = pc.struct_field(rows.column("origin").combine_chunks(), "path")
        of_file = pc.is_in(path, value_set=files)
        of_source = pc.is_in(rows.column("source").cast(pa.string()), value_set=pa.array(sorted(sources), pa.string()))
        unseen -= set(path.filter(of_file).to_pylist())
        ids |= set(rows.column("doc_id").filter(pc.or_(of_source, of_file)).to_pylist())
    if unseen:
        raise InputError(
            f"data forget --file {min(unseen)}: run {run_id} sampled no document of this file; name it by its path"
            f" within its source, as `bessemer data history` shows it; {_elsewhere(root, run_id, recipe, min(unseen))}"
        )
    if not ids:
        raise InputError("data forget: no sampled document is of these sources; `bessemer data history` finds others")
    return ids


def _elsewhere(root: Path, run_id: str, recipe: Recipe, wanted: str) -> str:
    """Return which other runs sampled a document that the run `run_id` did not, those first whose models its own went
    on from: it has learnt the document all the same."""
    found: dict[Path, bool] = {}
    others: list[str] = []
    for run in list_runs(root):
        if run["run_id"] == run_id or (sample := _sample_of(run)) is None:
            continue
        if sample.path not in found:
            found[sample.path] = bool(find_documents({"sample": sample}, wanted))
        if found[sample.path]:
            others.append(run["run_id"])
    learnt = [other for other in others if other in recipe.evaluate.earlier]
    if learnt:
        return (
            f"its model went on from that of {', '.join(learnt)}, which did, and has learnt it: with"
            f" `--run {learnt[0]}` it is forgotten there, and the plan names the models made from that one"
        )
    if others:
        return f"{', '.join(others[:MOST_NAMED])} did: name one with --run"
    return f"nor did another run under {root}. `bessemer data history` shows whether a file was read and not selected"


def _count(artifact: Artifact, table: str, ids: Iterable[bytes]) -> int:
    wanted = pa.array(sorted(ids), pa.binary(16))
    return sum(
        pc.sum(pc.is_in(rows.column("doc_id"), value_set=wanted)).as_py() or 0
        for rows in parts_of(artifact, table, ["doc_id"])
    )


def _sampled(run: RunData, sample: Artifact, ids: set[bytes]) -> bool:
    """Return whether a run sampled one of the documents, if its artifact exists."""
    other = _sample_of(run)
    return other is not None and (other.identity == sample.identity or _count(other, "documents", ids) > 0)


def _sample_of(run: RunData) -> Artifact | None:
    """Return the documents that a run sampled; None where their artifact is gone."""
    path = stage_paths(run).get("sample")
    return Artifact.open(path) if path is not None and (path / MANIFEST).exists() else None


def _made_from(root: Path, artifacts: Mapping[str, Artifact]) -> Iterator[str]:
    """Yield stage and identity of the artifacts that were made from a model, or from one made from it, other than
    scores, and of those of dedup that were compared with this run's documents."""
    model = artifacts["train"]
    identities, descriptions = {model.identity}, {one.digest for one in model.records if one.name == DESCRIPTION}
    left: dict[str, Manifest] = {}
    for folder in artifacts_under(root):
        place = f"{folder.parent.name}/{folder.name}"
        if place.startswith("evaluate/"):
            continue
        manifest = read_manifest(folder)
        if not place.startswith("dedup/"):
            left[place] = manifest
        elif any(parent["identity"] == artifacts["dedup"].identity for parent in manifest["parents"].values()):
            yield place

    def is_made(manifest: Manifest) -> bool:
        # A training names the model that it went on from by the digest of its description, wherever the folder is.
        base = manifest["identity_parts"].get("parents", {}).get("base_model")
        parents = {parent["identity"] for parent in manifest["parents"].values()}
        return base in descriptions or not parents.isdisjoint(identities)

    while made := [place for place, manifest in left.items() if is_made(manifest)]:
        yield from made
        for manifest in map(left.pop, made):
            identities.add(manifest["identity"])
            descriptions |= {file["digest"] for file in manifest["files"] if file["name"] == DESCRIPTION}


def _unfinished(root: Path) -> Iterator[str]:
    """Yield the folders of builds that have not ended, and what such builds left in the object store."""
    yield from sorted(f"work/{folder.name}" for folder in (root / "work").glob("*.*"))
    if (store := store_of(root)) is not None:
        known = [(folder.parent.name, folder.name) for folder in artifacts_under(root)]
        for stage, identity in list_leftovers(store, known, time.time()):
            yield f"{stage}/{identity} in {store.address}"


def _set_aside(root: Path, artifacts: Mapping[str, Artifact]) -> Iterator[str]:
    """Yield the artifacts that were set aside, of other identities than the run's own, which are removed with them."""
    own = {artifact.identity for artifact in artifacts.values()}
    for folder in sorted(root.glob("artifacts/*/*")):
        if is_set_aside(folder) and not any(identity in folder.name for identity in own):
            yield f"artifacts/{folder.parent.name}/{folder.name}"


def unnamed_artifacts(root: Path, sample: str, ids: Iterable[str]) -> list[Path]:
    """Return the artifacts up to chunk that no run has and that hold one of the documents, those first that were made
    from others: earlier plans of removals made them, or runs whose records are gone. `sample` is the identity of the
    documents of the run that they leave."""
    named, wanted = users(root), {bytes.fromhex(one) for one in ids}
    made: list[Path] = []
    for folder in artifacts_under(root, "sample"):
        if folder.name not in named and _count(Artifact.open(folder), "documents", wanted):
            made.append(folder)
    holding = {sample, *(folder.name for folder in made)}
    for stage in ("clean", "dedup", "decontaminate", "vocab", "chunk"):
        for folder in artifacts_under(root, stage):
            parents = {parent["identity"] for parent in read_manifest(folder)["parents"].values()}
            if not parents.isdisjoint(holding):
                holding.add(folder.name)
                made += [] if folder.name in named else [folder]
    return made[::-1]


def with_files(recipe: Recipe, files: Mapping[str, Collection[str]]) -> Recipe:
    """Return a recipe whose sources read the files `files` (source -> root-relative paths) alone; sources without such
    an entry are unchanged."""
    sources = tuple(
        source.model_copy(update={"only": tuple(sorted(files[source.name]))}) if files.get(source.name) else source
        for source in recipe.sample.sources
    )
    return recipe.model_copy(update={"sample": recipe.sample.model_copy(update={"sources": sources})})


def recipe_without(
    recipe: Recipe, run_id: str, artifacts: Mapping[str, Artifact], leaving: Leaving, request: Request
) -> Recipe:
    """Return the recipe of the run `run_id` without the documents that leave; InputError where the model that its
    training went on from no longer exists."""
    base = recipe.train.base_model
    if base is not None and not base.exists():
        raise InputError(
            f"data forget: run {run_id} went on from the model in {base}, which no longer exists, so that its training"
            f" cannot be repeated. Put the folder back. Where that model had to leave too, take the documents out of"
            f" their files and make a nightly run anew: `bessemer nightly RECIPE --again {run_id}`"
        )
    ids = leaving.ids(request)
    changes: dict[str, dict[str, Any]] = {stage: {"keep": run_id} for stage in KEEPING}
    changes["sample"]["exclude_documents"] = tuple(sorted({*recipe.sample.exclude_documents, *ids}))
    changes["decontaminate"]["keep_heldout"] = run_id
    if recipe.chunk.packing == "stable" and not request.refill:
        leaving_ids, objective = {bytes.fromhex(one) for one in ids}, recipe.chunk.objective
        new = tombstones(artifacts["decontaminate"], artifacts["vocab"], leaving_ids, objective)
        changes["chunk"]["tombstones"] = (*recipe.chunk.tombstones, *new)
    return recipe.model_copy(
        update={stage: getattr(recipe, stage).model_copy(update=values) for stage, values in changes.items()}
    )
