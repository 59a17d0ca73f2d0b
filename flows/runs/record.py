"""The record of a run, `runs/RUN_ID/run.json`: written while stages finish, and read again later."""

import functools
import getpass
import logging
import os
import platform
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

from flows.recipe.stages import select_stages
from flows.runs.context import HOUR_PRICE
from model.checksummed_json import append_sealed_line, read_sealed, read_sealed_lines, read_sealed_text, write_sealed
from model.errors import Infra, InputError, IntegrityError, Paused
from model.files import DISK_FULL
from tasks.artifacts.artifact import ACCEPTED, REUSED, Artifact
from tasks.artifacts.build import ProgressListener
from tasks.artifacts.identity import GitState
from tasks.artifacts.lease import Process, is_known_dead, is_of_an_earlier_boot, this_process
from tasks.artifacts.remote.metadata import RECIPE_LOST, BuiltRun, StageEntry, read_record

if TYPE_CHECKING:
    from flows.recipe.schema import Recipe


log = logging.getLogger(__name__)

RECORD = "run.json"
PAGE = "page.html"

RECIPE = "recipe.json"
"""The complete recipe as it was run, in the folder of the record."""

RUNNING = "running"

INTERRUPTED = "interrupted"

PAUSED = "paused"


class Asked(TypedDict, total=False):
    """The part of the pipeline that a run was asked for."""

    from_stage: str | None
    until: str | None
    only: str | None
    force: bool


EVERYTHING: Asked = {"from_stage": None, "until": None, "only": None, "force": False}
"""What a run of a recipe is asked for by default."""


def stages_of(asked: Asked) -> Sequence[str]:
    """Return the stages that a run may build; RecipeError where they contradict each other."""
    return select_stages(asked.get("from_stage"), asked.get("until"), asked.get("only"))


class Machine(TypedDict):
    """The machine of a run."""

    cores: int
    memory_bytes: int


class Note(TypedDict):
    """A sentence of a stage, and the Unix time at which it was noted."""

    time: float
    stage: str
    note: str


class Collected(TypedDict):
    """Stages whose artifacts were removed; when, or for which run that replaced this one."""

    when: str
    stages: list[str]


class RunHead(TypedDict):
    """What a record says of a run before its first stage; a record rebuilt from manifests lacks the optional part."""

    run_id: str
    recipe_name: str
    root: str
    started: float
    command: NotRequired[str | None]
    asked: NotRequired[Asked]
    max_rise: NotRequired[float | None]
    hour_price: NotRequired[float | None]
    host: NotRequired[str]
    machine: NotRequired[Machine]
    versions: NotRequired[dict[str, str]]
    git: NotRequired[GitState]


class RunData(RunHead, BuiltRun):
    """The content of `run.json`."""

    state: str
    finished: float | None
    notes: list[Note]
    process: NotRequired[Process]
    same_as: NotRequired[str | None]
    """The run whose page this one shares, since it built nothing."""
    collected: NotRequired[Collected]
    """What `bessemer store gc` removed of the run."""


RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")

_TIME = "%Y%m%dT%H%M%SZ"

_OF_TIME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
"""Ids that `new_run_id` makes."""

HISTORY = "history.jsonl"
"""In the folder of all runs: a line for each run that built nothing, with the id of the run whose page it shares."""

HISTORY_LOST = "It only lists runs that built nothing; `bessemer store verify --set-aside` begins another."


def list_history(root: Path) -> list[RunData]:
    """Return the records of the runs that built nothing, oldest first; none, with a warning, where a line is
    damaged."""
    try:
        return cast(list[RunData], read_sealed_lines(root / "runs" / HISTORY, HISTORY_LOST))
    except IntegrityError as error:
        warn_once(str(error))
        return []


def add_to_history(root: Path, record: RunData) -> None:
    """Append the record of a run that built nothing, `same_as` the run whose id it names."""
    append_sealed_line(root / "runs" / HISTORY, record)


class RunRecord(ProgressListener):
    """Keeps `run.json` up to date while stages finish, and passes all calls on to another listener."""

    def __init__(self, folder: Path, head: RunHead, listener: ProgressListener) -> None:
        self._path = folder / RECORD
        self._listener = listener
        self.data: RunData = {
            **head,
            "process": this_process(),
            "state": RUNNING,
            "finished": None,
            "stages": [],
            "notes": [],
        }
        self.save()

    def save(self) -> None:
        """Write the record."""
        write_sealed(self._path, self.data)

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        self._listener.progress(stage, done, total, unit)

    def note(self, stage: str, sentence: str) -> None:
        self.data["notes"].append({"time": time.time(), "stage": stage, "note": sentence})
        self.save()
        self._listener.note(stage, sentence)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        self._entry(stage_entry(stage, artifact, seconds))
        self._listener.finished(stage, artifact, seconds)

    def failed(self, stage: str, error: BaseException) -> None:
        """Record that a stage ended in an error, or was interrupted by the user or a signal."""
        if isinstance(error, Exception):
            self._entry({"stage": stage, "outcome": "failed", "error": f"{type(error).__name__}: {error}"})
        else:
            kept = "finished parts and checkpoints are kept; run again to go on"
            self._entry({"stage": stage, "outcome": INTERRUPTED, "error": kept})

    def paused(self, stage: str, pause: Paused) -> None:
        """Record that training paused at the requested step, from which the next run continues."""
        self._entry(
            {
                "stage": stage,
                "outcome": PAUSED,
                "cause": str(pause),
                "step": pause.step,
                "steps": pause.steps,
                "loss": pause.loss,
            }
        )

    def _entry(self, entry: StageEntry) -> None:
        self.data["stages"] = [old for old in self.data["stages"] if old["stage"] != entry["stage"]] + [entry]
        self.save()


def stage_entry(stage: str, artifact: Artifact, seconds: float) -> StageEntry:
    """Return the entry of a finished stage in a run's record."""
    return {
        "stage": stage,
        "identity": artifact.identity,
        "content": artifact.content,
        "path": str(artifact.path),
        "outcome": artifact.outcome,
        "cause": artifact.cause,
        "seconds": seconds,
        "started": time.time() - seconds,
    }


def stage_paths(record: RunData) -> dict[str, Path]:
    """Return the folder of each artifact that a run ended with, by stage."""
    return {entry["stage"]: Path(entry["path"]) for entry in record["stages"] if "path" in entry}


def record_head(name: str, root: Path, run_id: str, asked: Asked, recipe: "Recipe | None" = None) -> RunHead:
    """Return the head of a run's record; `name` is that of the recipe, or of what a run without one does."""
    import psutil

    from tasks.artifacts.identity import PYTHON, git_state, library_versions
    from tasks.common.code_fingerprint import PROJECT

    shown = (PYTHON, "bessemer", "prefect", "pyarrow", "numba", "sentencepiece", "torch")
    return {
        "run_id": run_id,
        "recipe_name": name,
        "command": recipe.command if recipe is not None else None,
        "root": str(root),
        "started": time.time(),
        "asked": asked if recipe is None else {**EVERYTHING, **asked},
        "max_rise": recipe.evaluate.gate.max_rise if recipe is not None and recipe.evaluate.gate else None,
        "hour_price": HOUR_PRICE.get(),
        "host": platform.node(),
        "machine": {"cores": os.cpu_count() or 1, "memory_bytes": psutil.virtual_memory().total},
        "versions": library_versions(shown),
        "git": git_state(PROJECT),
    }


def root_option(root: Path) -> str:
    """Return the words ` --root ROOT` that a command needs; none for the root that commands take by themselves."""
    return "" if root == Path("bessemer-data").resolve() else f" --root {shlex.quote(str(root))}"


def check_writable(root: Path) -> None:
    """Raise InputError where the root of all artifacts cannot be made or written, Infra where its disk is full."""
    probe = root / f".writable-{secrets.token_hex(4)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(4096))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise Infra(f"--root {root}: no space left on its disk; free some and run again") from error
        raise InputError(
            f"--root {root}: cannot be written ({error.strerror}); choose a folder of yours with --root"
        ) from error


def same_artifacts(root: Path, record: RunData) -> RunData | None:
    """Return the latest earlier run with the same artifacts, the same gate, a page, and its price of an hour if
    it has one; None for a run that built anything."""
    stages = record["stages"]
    if not stages or any(entry["outcome"] not in (REUSED, ACCEPTED) for entry in stages):
        return None
    mine = {entry["stage"]: entry.get("content") for entry in stages}
    for earlier in reversed(list_runs(root)):
        theirs = {entry["stage"]: entry.get("content") for entry in earlier["stages"]}
        same = theirs == mine and earlier.get("max_rise") == record.get("max_rise")
        same = same and record.get("hour_price") in (None, earlier.get("hour_price"))
        if same and (page := earlier.get("page")) and Path(page).is_file():
            return earlier
    return None


def this_user() -> str:
    """Return the user and machine that a record names as its author."""
    return f"{getpass.getuser()}@{platform.node()}"


def new_run_id() -> str:
    """Return a new run id, UTC time to the second and six hexadecimal digits of its fraction, 60 ns each.

    It sorts by time and is never in an identity.
    """
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return f"{time.strftime(_TIME, time.gmtime(seconds))}-{nanoseconds * 2**24 // 10**9:06x}"


def time_of(record: RunData) -> str:
    """Return what sorts runs by time: the id, or for a chosen one, which says no time, when the run began."""
    if _OF_TIME.fullmatch(record["run_id"]):
        return record["run_id"]
    began = time.strftime(_TIME, time.gmtime(record.get("started", 0.0)))
    return f"{began}-{record['run_id']}"


def check_run_id(run_id: str) -> None:
    """Raise InputError for a run id that could not be the name of a folder under `runs/`."""
    if not RUN_ID.fullmatch(run_id):
        raise InputError(
            f"run id {run_id!r}: it names a folder under runs/, so it is made of letters, digits, `.`, `_` and `-`,"
            f" 80 at most, and begins with a letter or digit. Leave it empty, and one is made from the time."
        )


def state_of(record: RunData) -> str:
    """Return the state of a run; one whose process or machine died is interrupted, which its record does not say."""
    process = record.get("process")
    is_dead = is_known_dead(process) or is_of_an_earlier_boot(process)
    return INTERRUPTED if record["state"] == RUNNING and is_dead else record["state"]


def settings_of(record: RunData) -> str:
    """Return what `--set` changed in the recipe of a run, such as `seed=3`; empty for the recipe as it is."""
    words = shlex.split(record.get("command") or "")
    return " ".join(value for option, value in pairwise(words) if option == "--set")


def list_runs(root: Path) -> list[RunData]:
    """Return the records of all runs under a root, oldest first; damaged ones are skipped with a warning."""
    return sorted((record for record in map(_readable, _record_files(root)) if record is not None), key=time_of)


def newest_runs(root: Path, most: int) -> tuple[list[RunData], int]:
    """Return the records of the `most` newest runs under a root by their ids, oldest first, and the number of all
    runs. No other record is read, so that runs of chosen names count as newest."""
    files = _record_files(root)
    return [record for record in map(_readable, files[-most:]) if record is not None], len(files)


def damaged_runs(root: Path) -> list[str]:
    """Return the ids of the runs whose records cannot be read, oldest first."""
    return [path.parent.name for path in _record_files(root) if _readable(path) is None]


def read_recipe(folder: Path) -> dict[str, Any]:
    """Return the recipe in a run's folder as JSON values; empty where missing, IntegrityError where damaged."""
    path = folder / RECIPE
    return read_sealed(path, RECIPE_LOST) if path.is_file() else {}


def recipe_of(folder: Path) -> "Recipe":
    """Return the recipe in a run's folder; InputError where it is missing, IntegrityError where it is damaged."""
    from flows.recipe.schema import Recipe

    try:
        return Recipe.model_validate_json(read_sealed_text(folder / RECIPE, RECIPE_LOST))
    except FileNotFoundError as error:
        raise InputError(f"{folder / RECIPE} is missing, so the settings of this run are unknown") from error


def write_recipe(folder: Path, recipe: "Recipe") -> None:
    """Write the recipe of a run into the run's folder."""
    write_sealed(folder / RECIPE, recipe.model_dump(mode="json"))


def read_run(folder: Path) -> RunData:
    """Return the record in a run's folder; FileNotFoundError where there is none, IntegrityError where damaged."""
    return cast(RunData, read_record(folder / RECORD))


def _record_files(root: Path) -> list[Path]:
    return sorted((root / "runs").glob(f"*/{RECORD}"))


def _readable(path: Path) -> RunData | None:
    try:
        return read_run(path.parent)
    except IntegrityError as error:
        warn_once(str(error))
    except FileNotFoundError:
        pass  # Removed since it was listed.
    return None


@functools.cache
def warn_once(sentence: str) -> None:
    """Log a warning the first time that it is given."""
    log.warning("%s", sentence)
