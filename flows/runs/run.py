"""One run of the pipeline: which stages it may build, and the record of each."""

import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from prefect.client.schemas.objects import State

from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES, StageLimitReached, select_stages
from flows.runs.guards import check_gate, raise_if_interrupted
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.record import (
    CURRENT_LISTENER,
    HOUR_PRICE,
    INTERRUPTED,
    PAUSED,
    RunRecord,
    check_run_id,
    check_writable,
    new_run_id,
    same_artifacts,
    stage_entry,
    write_recipe,
)
from flows.runs.roots import put_record
from model.environment import describe_left_out
from model.errors import Paused
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.artifacts.identity import PYTHON, git_state, library_versions
from tasks.common.code_fingerprint import PROJECT

log = logging.getLogger(__name__)

VERSIONS_SHOWN = (PYTHON, "bessemer", "prefect", "pyarrow", "numba", "sentencepiece", "torch")


def existing_run(
    recipe: Recipe,
    root: Path,
    *,
    from_stage: str | None = None,
    until: str | None = None,
    only: str | None = None,
    force: bool = False,
) -> dict[str, Any] | None:
    """Return the record, never written, of a run whose artifacts all exist; None where it would build something."""
    selection = {"from_stage": from_stage, "until": until, "only": only, "force": force}
    context, entries = RunContext(root, run_id="", dry=True), list[dict[str, Any]]()
    last = select_stages(from_stage, until, only)[-1]

    def step(stage: str, *inputs: Any) -> Artifact:
        if entries and entries[-1]["stage"] == last:
            raise StageLimitReached
        artifact = BUILDERS[stage](context, *inputs)
        entries.append(stage_entry(stage, artifact, 0.0))
        if stage == "evaluate":
            check_gate(artifact, recipe.evaluate.gate)
        return artifact

    if force:
        return None
    try:
        run_stages(recipe, step)
    except StageLimitReached:
        pass
    except WouldBuild:
        return None
    record = {**_head(recipe, root, new_run_id(), selection), "state": "completed", "stages": entries, "notes": []}
    earlier = same_artifacts(root, record)
    return {**record, "finished": time.time(), "page": earlier["page"] if earlier is not None else None}


def _head(recipe: Recipe, root: Path, run_id: str, selection: dict[str, Any]) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "recipe_name": recipe.name,
        "command": recipe.command,
        "root": str(root),
        "started": time.time(),
        "asked": selection,
        "max_rise": recipe.evaluate.gate.max_rise if recipe.evaluate.gate else None,
        "hour_price": HOUR_PRICE.get(),
        "host": platform.node(),
        "machine": {"cores": os.cpu_count() or 1, "memory_bytes": psutil.virtual_memory().total},
        "versions": library_versions(VERSIONS_SHOWN),
        "git": git_state(PROJECT),
    }


class Run:
    """A run of the pipeline or a range of its stages. Use as a context manager; call `step` for each stage in order."""

    def __init__(
        self,
        recipe: Recipe,
        root: Path,
        *,
        from_stage: str | None = None,
        until: str | None = None,
        only: str | None = None,
        force: bool = False,
        run_id: str | None = None,
    ) -> None:
        buildable = select_stages(from_stage, until, only)
        self.run_id = run_id or new_run_id()
        check_run_id(self.run_id)
        check_writable(root)
        self.folder = root / "runs" / self.run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        self._last = buildable[-1]
        self._gate = recipe.evaluate.gate
        self._stage = ""
        self.failed = False
        write_recipe(self.folder, recipe)
        selection = {"from_stage": from_stage, "until": until, "only": only, "force": force}
        self.record = RunRecord(self.folder, _head(recipe, root, self.run_id, selection), CURRENT_LISTENER.get())
        self.context = RunContext(
            root=root,
            run_id=self.run_id,
            buildable=None if len(buildable) == len(STAGES) else frozenset(buildable),
            forced=frozenset(buildable) if force else frozenset(),
            listener=self.record,
        )

    def step(self, task: Callable[..., Any], *inputs: Any) -> Artifact:
        """Run one stage's task on its inputs; raise StageLimitReached after the last stage that was requested."""
        if self._stage == self._last:
            raise StageLimitReached
        raise_if_interrupted()
        begins = not self._stage
        self._stage = str(task.name)  # pyright: ignore[reportFunctionMemberAccess]  # a Prefect task
        for sentence in describe_left_out(os.environ) if begins else ():
            self.record.note(self._stage, sentence)
        done = task(self.context, *inputs)
        # A task that names its own state ("Reused") hands that state back instead of its value.
        artifact = done.result() if isinstance(done, State) else done
        if isinstance(artifact, Paused):
            raise artifact
        put_record(self.context.root, self.run_id)
        if self._stage == "evaluate":
            check_gate(artifact, self._gate)
        return artifact

    def __enter__(self) -> "Run":
        put_record(self.context.root, self.run_id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        paused = isinstance(error, Paused)
        ended = kind is None or issubclass(kind, StageLimitReached) or paused
        stopped = error is not None and not isinstance(error, Exception)
        self.failed = not ended
        self.record.data["state"] = PAUSED if paused else "completed" if ended else INTERRUPTED if stopped else "failed"
        self.record.data["finished"] = time.time()
        try:
            if isinstance(error, Paused):
                self.record.paused(self._stage, error)
            elif error is not None and not ended:
                self.record.failed(self._stage, error)
            self.record.save()
            put_record(self.context.root, self.run_id)
        except OSError as unsaved:
            if ended:
                raise
            # What stopped the run, such as a full disk, may keep its record from being written too.
            log.error("the record of run %s could not be written: %s", self.run_id, unsaved)
        return ended
