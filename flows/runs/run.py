"""One run of the pipeline: which stages it may build, and the record of each."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from prefect.client.schemas.objects import State

from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES, StageLimitReached
from flows.runs.context import CURRENT_LISTENER, REPLAY_OF
from flows.runs.guards import check_base_vocabulary, check_gate, raise_if_interrupted
from flows.runs.record import (
    INTERRUPTED,
    PAUSED,
    Asked,
    RunHead,
    RunRecord,
    check_run_id,
    check_writable,
    new_run_id,
    record_head,
    stages_of,
    write_recipe,
)
from flows.runs.roots import put_record
from model.environment import describe_left_out
from model.errors import Paused
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext

log = logging.getLogger(__name__)


class StageRun:
    """A run of stages. Use as a context manager; call `step` for each stage in order."""

    def __init__(
        self,
        root: Path,
        run_id: str,
        stages: Sequence[str],
        head: RunHead,
        *,
        recipe: Recipe | None = None,
        force: bool = False,
    ) -> None:
        self.run_id = run_id
        self.folder = root / "runs" / run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        self._last = stages[-1]
        self._gate = recipe.evaluate.gate if recipe is not None else None
        self._base_model = recipe.train.base_model if recipe is not None and "train" in stages else None
        self._stage = ""
        self.failed = False
        if recipe is not None:
            write_recipe(self.folder, recipe)
        self.record = RunRecord(self.folder, head, CURRENT_LISTENER.get())
        self.context = RunContext(
            root=root,
            run_id=run_id,
            buildable=None if len(stages) == len(STAGES) else frozenset(stages),
            forced=frozenset(stages) if force else frozenset(),
            listener=self.record,
            replay_of=REPLAY_OF.get(),
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
        if self._stage == "vocab":
            check_base_vocabulary(artifact, self._base_model)
        if self._stage == "evaluate":
            check_gate(artifact, self._gate)
        return artifact

    def __enter__(self) -> "StageRun":
        put_record(self.context.root, self.run_id)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> bool:
        paused = isinstance(error, Paused)
        ended = error is None or paused or isinstance(error, StageLimitReached)
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


class Run(StageRun):
    """A run of the pipeline, or of a range of its stages."""

    def __init__(self, recipe: Recipe, root: Path, *, run_id: str | None = None, **asked: Unpack[Asked]) -> None:
        buildable = stages_of(asked)
        run_id = checked_run_id(run_id, root)
        head = record_head(recipe.name, root, run_id, asked, recipe)
        super().__init__(root, run_id, buildable, head, recipe=recipe, force=asked.get("force", False))


def checked_run_id(run_id: str | None, root: Path) -> str:
    """Return the id of a run that begins, a new one by default; InputError for one that cannot be, or where the root
    cannot be written."""
    run_id = run_id or new_run_id()
    check_run_id(run_id)
    check_writable(root)
    return run_id
