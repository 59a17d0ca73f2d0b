"""What `bessemer data forget` prints and runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.commands.common import console, print_found
from flows.commands.run import run_recipe
from flows.metrics.formatting import format_duration
from flows.planning.explain import aggregates
from flows.recipe.schema import Recipe
from flows.removal.affected import MOST_NAMED, Leaving, Request
from flows.removal.carry_out import Pending, finish, note_end
from flows.removal.certificate import BEYOND_A_STORE, certified
from flows.removal.replay import ReplayPlan
from flows.runs.context import REPLAY_OF, given
from flows.runs.lineage import open_run
from flows.runs.model_registry import current_promotion
from flows.runs.record import list_runs, stage_paths
from model.errors import InputError
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.erasure import describe_retention


def plan_values(
    root: Path, leaving: Leaving, replay: ReplayPlan, recipe: Recipe, changed: Sequence[str]
) -> dict[str, Any]:
    """Return the plan of a removal for --json; `changed` are the sources whose files are not those of the run."""
    retention = [] if (store := store_of(root)) is None else describe_retention(store)
    tombstones = len(recipe.chunk.tombstones)
    return {
        "leaving": vars(leaving),
        "replay": vars(replay),
        "changed_sources": list(changed),
        "tombstones": tombstones,
        "retention": retention,
    }


def print_plan(
    root: Path, leaving: Leaving, request: Request, replay: ReplayPlan, recipe: Recipe, changed: Sequence[str]
) -> None:
    """Print what leaves, what saw it, what keeps it, and from where training is repeated; `changed` are the sources
    whose files are not those of the run."""
    store, tombstones = store_of(root), len(recipe.chunk.tombstones)
    leave = "document leaves" if len(leaving.requested) == 1 else "documents leave"
    lines = [f"{len(leaving.requested):,} {leave}: {_some(leaving.requested)}"]
    if leaving.duplicates:
        what = "take their place, since they were dropped" if request.promote else "leave, too: they were dropped"
        lines.append(
            f"{len(leaving.duplicates):,} near-duplicates {what} in favour of one: {_some(leaving.duplicates)}"
        )
    for copy, kept in leaving.copies_of.items():
        lines.append(
            f"{copy} was dropped as a duplicate of {kept}, which stays; name that one, too, to remove the text"
        )
    if leaving.heldout:
        lines.append(f"{leaving.heldout:,} of them were held out for evaluation; none takes their place")
    if leaving.leaks:
        lines.append(f"{leaving.leaks:,} passages of benchmarks were found in them")
    lines.append(f"kept as they were decided with them: {', '.join(aggregates(recipe).values())}, held-out draw")
    lines += [f"also sampled by the run {run}, which is not changed" for run in leaving.other_runs[:MOST_NAMED]]
    if changed:
        lines.append(
            f"warning: files of {', '.join(changed)} are not those that the run read: some are new, gone or changed,"
            " and the model would learn from what is there now. To change nothing but the documents that leave, put the"
            " files back as they were, and newer ones elsewhere"
        )
    runs = _runs_by_artifact(root)
    lines += [
        f"made from this model or compared with its documents, and not changed: {name}"
        f"{''.join(f', of run {run}' for run in runs.get(name, ())[:MOST_NAMED])}"
        for name in leaving.made
    ]
    if leaving.unfinished:
        lines.append(
            "a build that has not ended, or an artifact that was set aside, may hold them and is not changed:"
            f" {', '.join(leaving.unfinished)}; `bessemer store gc --unfinished-days 0` removes such builds"
        )
    if store is not None:
        lines += [*describe_retention(store), *(sentence.format(store=store.address) for sentence in BEYOND_A_STORE)]
    first = "" if replay.first_position is None else f", the first at {replay.first_position:,}"
    lines.append(f"{replay.positions:,} positions of the order change{first}; {tombstones:,} tombstones")
    share = replay.tokens / replay.tokens_in_all if replay.tokens_in_all else 0.0
    again = (
        f"training again from step {replay.step:,} of {replay.steps:,}: {replay.tokens:,} of {replay.tokens_in_all:,}"
        f" tokens ({share:.0%}), {format_duration(replay.seconds)} at the speed of before"
        f"{replay.obstacle and f': {replay.obstacle}'}"
    )
    lines.append(again if replay.tokens else "no row that training read changes, so that no training is needed")
    if recipe.chunk.packing != "stable" and replay.positions:
        lines.append('with chunk.packing = "stable" in the recipe fewer positions would have changed (docs/forget.md)')
    if replay.step == 0 and not recipe.train.lasting_checkpoints:
        lines.append("with train.lasting_checkpoints training could begin behind the start (docs/forget.md)")
    console().print("\n".join(lines), markup=False)


def _runs_by_artifact(root: Path) -> dict[str, list[str]]:
    """Return `STAGE/IDENTITY` -> ids of the runs that have the artifact; of the current model's run it says so."""
    promotion = current_promotion(root)
    runs: dict[str, list[str]] = {}
    for run in list_runs(root):
        name = run["run_id"]
        if promotion is not None and promotion.run_id == name:
            name += " (the current model's)"
        for stage, path in stage_paths(run).items():
            runs.setdefault(f"{stage}/{path.name}", []).append(name)
    return runs


def _some(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - MOST_NAMED:,} more" if len(ids) > MOST_NAMED else ""
    return ", ".join(ids[:MOST_NAMED]) + more


def carry_out(root: Path, pending: Pending, as_json: bool, verbose: bool, plan: dict[str, Any] | None = None) -> None:
    """Train by the recipe of a removal, delete what the run before holds, and write the certificate.

    With `as_json` one document is printed: the plan, unless an earlier call made it, the record of the run, unless an
    earlier call ended it, the certificate and its salt.
    """
    ended = None
    if pending.after is None:
        trained = stage_paths(open_run(root, pending.before))["train"]
        with given(REPLAY_OF, trained if trained.exists() else None):
            ended = run_recipe(pending.recipe, root, {}, as_json, verbose, shows_end=not as_json)
        # A call that was killed may have left no more to do than the certificate of an earlier run.
        pending = note_end(root, pending, ended.get("same_as") or ended["run_id"])
    page = finish(root, pending, open_run(root, pending.after, needs="evaluate"))
    values = {"plan": plan, "run": ended, "certificate": str(page.with_suffix(".json")), "salt": pending.salt}
    sentences = f"certificate: {page.as_uri()}\nsalt of its commitments, which is not kept: {pending.salt}"
    print_found(values, as_json, lambda shown: shown.print(sentences, markup=False))


def print_certified(certificate: Path, salt: str, texts: list[Path], as_json: bool) -> None:
    """Print which files hold a text that a certificate names; InputError unless all do."""
    found = certified(certificate, salt, texts)
    print_found({str(text): text in found for text in texts}, as_json)
    for text in texts:
        said = "named by the certificate" if text in found else "NOT named by the certificate"
        console(as_json).print(f"{text}: {said}", markup=False)
    if len(found) < len(texts):
        raise InputError(
            "data forget: a text that is not named may differ by a character from the one that was read, or the salt"
            " may be of another certificate; `bessemer data peek sample` shows texts as they were read"
        )
