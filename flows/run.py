"""One run: which stages it may build, what became of each, written to `runs/RUN_ID/run.json` as it happens."""

import json
import platform
import secrets
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

from flows.recipe import STAGES, Recipe
from model.errors import RecipeError
from tasks.artifact import Artifact
from tasks.build import RunContext, Watcher
from tasks.code import PROJECT
from tasks.durable import write_atomically
from tasks.identity import library_versions
from tasks.provenance import git_state

RECORD = "run.json"
VERSIONS_SHOWN = ("bessemer", "prefect", "pyarrow", "numba", "sentencepiece", "torch")


ONLOOKER: ContextVar[Watcher] = ContextVar("ONLOOKER", default=Watcher())  # noqa: B039  # a Watcher has no state
"""Who watches the runs of this context; the command puts its progress bars here."""


class EndOfRoad(Exception):
    """The last stage that this run was asked for has finished; `Run` ends quietly on it."""


class RunRecord(Watcher):
    """Keeps `run.json` true while stages finish, and passes what it hears on to another watcher."""

    def __init__(self, folder: Path, head: dict[str, Any], onlooker: Watcher) -> None:
        self._path = folder / RECORD
        self._onlooker = onlooker
        self.data: dict[str, Any] = {**head, "state": "running", "finished": None, "stages": [], "notes": []}
        self.save()

    def save(self) -> None:
        """Write the record."""
        write_atomically(self._path, json.dumps(self.data, indent=1).encode())

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        self._onlooker.progress(stage, done, total, unit)

    def note(self, stage: str, sentence: str) -> None:
        self.data["notes"].append({"time": time.time(), "stage": stage, "note": sentence})
        self._onlooker.note(stage, sentence)

    def finished(self, stage: str, artifact: Artifact, outcome: str, cause: str, seconds: float) -> None:
        self._entry(
            {
                "stage": stage,
                "identity": artifact.identity,
                "content": artifact.content,
                "path": str(artifact.path),
                "outcome": outcome,
                "cause": cause,
                "seconds": seconds,
                "started": time.time() - seconds,
            }
        )
        self._onlooker.finished(stage, artifact, outcome, cause, seconds)

    def failed(self, stage: str, error: BaseException) -> None:
        """A stage ended in an error."""
        self._entry({"stage": stage, "outcome": "failed", "error": f"{type(error).__name__}: {error}"})

    def _entry(self, entry: dict[str, Any]) -> None:
        self.data["stages"] = [old for old in self.data["stages"] if old["stage"] != entry["stage"]] + [entry]
        self.save()


class Run:
    """A run of the road, or of a stretch of it. Use as a context manager; call `step` for each stage in order."""

    def __init__(
        self,
        recipe: Recipe,
        root: Path,
        *,
        from_stage: str | None = None,
        only: str | None = None,
        force: bool = False,
        run_id: str | None = None,
    ) -> None:
        buildable = stretch(from_stage, only)
        self.run_id = run_id or new_run_id()
        self.folder = root / "runs" / self.run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        self._last = only
        self._stage = ""
        write_atomically(self.folder / "recipe.json", recipe.model_dump_json(indent=1).encode())
        head = {
            "run_id": self.run_id,
            "recipe_name": recipe.name,
            "root": str(root),
            "started": time.time(),
            "asked": {"from_stage": from_stage, "only": only, "force": force},
            "host": platform.node(),
            "versions": library_versions(VERSIONS_SHOWN),
            "git": git_state(PROJECT),
        }
        self.record = RunRecord(self.folder, head, ONLOOKER.get())
        self.context = RunContext(
            root=root,
            run_id=self.run_id,
            buildable=None if len(buildable) == len(STAGES) else frozenset(buildable),
            forced=frozenset(buildable) if force else frozenset(),
            watcher=self.record,
        )

    def step(self, task: Callable[..., Any], *inputs: Any) -> Artifact:
        """Run one stage's task on its inputs; ends the run after the last stage that was asked for."""
        if self._last is not None and self._stage == self._last:
            raise EndOfRoad
        self._stage = str(task.name)  # pyright: ignore[reportFunctionMemberAccess]  # a Prefect task
        return task(self.context, *inputs)

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        ended = kind is None or issubclass(kind, EndOfRoad)
        if error is not None and not ended:
            self.record.failed(self._stage, error)
        self.record.data["state"] = "completed" if ended else "failed"
        self.record.data["finished"] = time.time()
        self.record.save()
        return ended


def stretch(from_stage: str | None, only: str | None) -> Sequence[str]:
    """The stages that a run may build, in order; RecipeError for unknown names or for both words at once."""
    for word, name in (("--from", from_stage), ("--only", only)):
        if name is not None and name not in STAGES:
            raise RecipeError(f"{word} {name}: there is no such stage; the road is {' -> '.join(STAGES)}")
    if from_stage is not None and only is not None:
        raise RecipeError(f"--from {from_stage} and --only {only} exclude each other; give one of them")
    if only is not None:
        return (only,)
    return STAGES[STAGES.index(from_stage) :] if from_stage is not None else STAGES


def new_run_id() -> str:
    """UTC time and six hexadecimal digits: sorts by time, never in an identity."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"


def list_runs(root: Path) -> list[dict[str, Any]]:
    """The records of all runs under a root, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((root / "runs").glob(f"*/{RECORD}"))]
