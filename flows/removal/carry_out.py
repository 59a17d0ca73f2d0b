"""Write down a removal, delete what the run before held once a run without the documents has ended, and certify it."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from flows.recipe.schema import Recipe
from flows.removal.affected import Leaving, Request, unnamed_artifacts
from flows.removal.certificate import Certificate, commitment, write_certificate
from flows.removal.replay import ReplayPlan, carried_out
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import RunData, recipe_of, stage_paths
from flows.runs.roots import refresh
from flows.runs.run_documents import parts_of
from flows.runs.shredding import shred
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.references import digest_of_table
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.erasure import describe_retention, erase
from tasks.artifacts.remote.metadata import FORGOTTEN, PENDING, PENDING_LOST
from tasks.artifacts.reuse import now
from tasks.chunk.config import SLOTS
from tasks.common.digests import INPUTS, InputDigests
from tasks.decontaminate.config import HELDOUT_DRAW, RARITY


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
    after: str | None = None
    """The run without the documents, once it has ended."""


_PENDING = TypeAdapter(Pending)


def decide(
    root: Path, before: str, recipe: Recipe, sample: Artifact, leaving: Leaving, request: Request, plan: ReplayPlan
) -> Pending:
    """Write down a removal, so that it can be carried out to its end, by any machine of a store, and return it.

    Raises InputError where another machine was first to decide one.
    """
    salt = secrets.token_hex(16)
    wanted = pa.array(sorted(bytes.fromhex(one) for one in leaving.ids(request)), pa.binary(16))
    texts: list[str] = []
    for rows in parts_of(sample, "documents", ["doc_id", "text"]):
        texts += rows.filter(pc.is_in(rows.column("doc_id"), value_set=wanted)).column("text").to_pylist()
    commitments = tuple(sorted(commitment(salt, text) for text in texts))
    pending = Pending(before, recipe, salt, commitments, leaving, request, plan)
    written = _PENDING.dump_python(pending, mode="json")
    store = store_of(root)
    if store is not None and not store.create(f"{FORGOTTEN}/{PENDING}", written):
        raise InputError(
            f"data forget: another machine has begun a removal in {store.address}. Run `bessemer data forget` without"
            " arguments to end it, then ask again."
        )
    write_sealed(root / FORGOTTEN / PENDING, written)
    return pending


def read_pending(root: Path) -> Pending | None:
    """Return the removal that has not ended, None where there is none."""
    try:
        return _PENDING.validate_python(read_sealed(root / FORGOTTEN / PENDING, PENDING_LOST))
    except FileNotFoundError:
        return None


def note_end(root: Path, pending: Pending, after: str) -> Pending:
    """Write down that the run `after` has ended, and return the removal. What it kept of the run before is deleted
    next, so that its recipe cannot be run again."""
    noted = replace(pending, after=after)
    written = _PENDING.dump_python(noted, mode="json")
    if (store := store_of(root)) is not None:
        store.write(f"{FORGOTTEN}/{PENDING}", written)
    write_sealed(root / FORGOTTEN / PENDING, written)
    return noted


def finish(root: Path, pending: Pending, after: RunData) -> Path:
    """Delete what the run before holds, write the certificate of a removal whose run `after` has ended, and return its
    page."""
    recipe = recipe_of(root / "runs" / after["run_id"])
    artifacts = run_artifacts(after)
    refresh(root)  # Other machines may have begun runs that use the same artifacts.
    leaving, store, before = pending.leaving, store_of(root), open_run(root, pending.before)
    unnamed = unnamed_artifacts(root, stage_paths(before)["sample"].name, leaving.ids(pending.request))
    given_up = shred(root, before, after, unnamed)
    plan = carried_out(pending.plan, artifacts["train"])
    certificate = Certificate(
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
        unfinished=leaving.unfinished,
        store=None if store is None else store.address,
        retention=() if store is None else tuple(describe_retention(store)),
        stays=given_up.stays,
    )
    page = write_certificate(root, certificate)
    if store is not None and (stays := erase(store, [f"{FORGOTTEN}/{PENDING}"])):
        write_certificate(root, replace(certificate, stays=tuple(dict.fromkeys((*given_up.stays, *stays)))))
    digests = InputDigests(root / INPUTS)
    digests.forget_missing()
    digests.save()
    (root / FORGOTTEN / PENDING).unlink()
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
        found["slots of the order"] = digest_of_table(artifacts["chunk"], SLOTS)
    return found
