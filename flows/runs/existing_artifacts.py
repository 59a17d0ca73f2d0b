"""Find what exists for a recipe, all of a run or one stage, by a dry run of the builds themselves."""

import logging
import time
from pathlib import Path
from typing import Any, Unpack

from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.runs.guards import check_gate
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.record import Asked, RunData, new_run_id, record_head, same_artifacts, stage_entry, stages_of
from model.errors import BessemerError, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.artifacts.published import artifacts_under
from tasks.artifacts.remote.metadata import StageEntry
from tasks.artifacts.remote.mirror import RemoteMirror

log = logging.getLogger(__name__)


def existing_run(recipe: Recipe, root: Path, **asked: Unpack[Asked]) -> RunData | None:
    """Return the record, not written, of a run whose artifacts all exist; None for one that would build something, or
    end in an error.

    `same_as` is the latest run with the same artifacts and a `page`; both are None where there is none.
    """
    # Without an artifact of sample, no digests need to be computed.
    if asked.get("force") or not artifacts_under(root, STAGES[0]):
        return None
    context, entries = RunContext(root, run_id="", dry=True), list[StageEntry]()
    last = stages_of(asked)[-1]

    def step(stage: str, *inputs: Any) -> Artifact:
        began = time.monotonic()
        artifact = BUILDERS[stage](context, *inputs)
        if RemoteMirror.of(root).reupload(artifact):
            log.warning("%s: %s was missing in the store and was uploaded again", stage, artifact.identity)
        entries.append(stage_entry(stage, artifact, time.monotonic() - began))
        if stage == "evaluate":
            check_gate(artifact, recipe.evaluate.gate)
        return artifact

    started = time.time()
    try:
        run_stages(recipe, step, until=last)
    except (WouldBuild, BessemerError):
        return None
    head = record_head(recipe.name, root, new_run_id(), asked, recipe)
    record: RunData = {
        **head,
        "started": started,
        "finished": time.time(),
        "state": "completed",
        "stages": entries,
        "notes": [],
    }
    earlier = same_artifacts(root, record)
    record["same_as"] = earlier["run_id"] if earlier else None
    record["page"] = earlier.get("page") if earlier else None
    return record


def existing_artifact(recipe: Recipe, root: Path, stage: str, request: str, hint: str) -> Artifact | WouldBuild:
    """Return the artifact that exists for a stage of the recipe, or why it would be built.

    Raises InputError where a stage before it would be built; `request` and `hint` begin and end the message.
    """
    context = RunContext(root, run_id="", dry=True)

    def step(name: str, *inputs: Any) -> Artifact:
        try:
            return BUILDERS[name](context, *inputs)
        except WouldBuild as would:
            if name == stage:
                raise
            raise InputError(
                f"{request}: `{name}`, which comes before it, would be built first ({would.miss.cause}). {hint}"
            ) from would

    try:
        return run_stages(recipe, step, until=stage)[stage]
    except WouldBuild as would:
        return would
