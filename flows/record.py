"""What is known of a run, written to `runs/RUN_ID/run.json` as it happens, and found again later."""

import json
import re
import secrets
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from model.durable import write_atomically
from model.errors import InputError
from model.pause import Paused
from tasks.artifact import ACCEPTED, REUSED, Artifact
from tasks.build import Watcher

RECORD = "run.json"
RECIPE = "recipe.json"
"""The recipe as it was run, complete, beside the record."""
INTERRUPTED = "interrupted"
PAUSED = "paused"
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")

ONLOOKER: ContextVar[Watcher] = ContextVar("ONLOOKER", default=Watcher())  # noqa: B039  # a Watcher has no state
"""Who watches the runs of this context; the command puts its progress bars here."""


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
        self.save()
        self._onlooker.note(stage, sentence)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        self._entry(
            {
                "stage": stage,
                "identity": artifact.identity,
                "content": artifact.content,
                "path": str(artifact.path),
                "outcome": artifact.outcome,
                "cause": artifact.cause,
                "seconds": seconds,
                "started": time.time() - seconds,
            }
        )
        self._onlooker.finished(stage, artifact, seconds)

    def failed(self, stage: str, error: BaseException) -> None:
        """A stage ended in an error, or was interrupted by a person or a signal."""
        if isinstance(error, Exception):
            self._entry({"stage": stage, "outcome": "failed", "error": f"{type(error).__name__}: {error}"})
        else:
            kept = "finished parts and checkpoints are kept; run again to go on"
            self._entry({"stage": stage, "outcome": INTERRUPTED, "error": kept})

    def paused(self, stage: str, pause: Paused) -> None:
        """A stage came as far as it was asked to, and goes on when it is run again."""
        at = {"step": pause.step, "steps": pause.steps, "loss": pause.loss}
        self._entry({"stage": stage, "outcome": PAUSED, "cause": str(pause), **at})

    def _entry(self, entry: dict[str, Any]) -> None:
        self.data["stages"] = [old for old in self.data["stages"] if old["stage"] != entry["stage"]] + [entry]
        self.save()


def check_writable(root: Path) -> None:
    """Raise InputError where the root of all artifacts cannot be made or written."""
    probe = root / f".writable-{secrets.token_hex(4)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"--root {root}: cannot be written ({error.strerror}); choose a folder of yours with --root"
        ) from error


def same_artifacts(root: Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """The latest earlier run that ended with the very artifacts of a run that built nothing, and has a page."""
    stages = record["stages"]
    if not stages or any(entry["outcome"] not in (REUSED, ACCEPTED) for entry in stages):
        return None
    mine = {entry["stage"]: entry["content"] for entry in stages}
    for earlier in reversed(list_runs(root)):
        theirs = {entry["stage"]: entry.get("content") for entry in earlier["stages"]}
        if theirs == mine and earlier.get("page") and Path(earlier["page"]).is_file():
            return earlier
    return None


def new_run_id() -> str:
    """UTC time and six hexadecimal digits: sorts by time, never in an identity."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"


def check_run_id(run_id: str) -> None:
    """Raise InputError for a run id that could not be the name of a folder under `runs/`."""
    if not RUN_ID.fullmatch(run_id):
        raise InputError(
            f"run id {run_id!r}: it names a folder under runs/, so it is made of letters, digits, `.`, `_` and `-`,"
            f" 80 at most, and begins with a letter or digit. Leave it empty, and one is made from the time."
        )


def list_runs(root: Path) -> list[dict[str, Any]]:
    """The records of all runs under a root, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((root / "runs").glob(f"*/{RECORD}"))]
