"""Whether a run got as far as somebody asks, and which run did where it has not."""

from pathlib import Path
from typing import Any

from flows.lineage import run_artifacts
from flows.record import list_runs
from model.errors import InputError
from tasks.artifact import Artifact


def artifacts_reaching(stage: str, run: dict[str, Any], root: Path) -> dict[str, Artifact]:
    """The artifacts of a run that has one of `stage`; InputError with the latest run under `root` that has one."""
    if _reaches(run, stage):
        return run_artifacts(run)
    others = [other["run_id"] for other in list_runs(root) if _reaches(other, stage)]
    cure = f"the latest that got so far is {others[-1]}: --run {others[-1]}" if others else "no run got so far"
    raise InputError(
        f"the run {run['run_id']} has no artifact of the stage `{stage}`; it ended before it (`bessemer ls`)."
        f" Under {root} {cure}"
    )


def _reaches(run: dict[str, Any], stage: str) -> bool:
    return any(entry["stage"] == stage and "path" in entry for entry in run["stages"])
