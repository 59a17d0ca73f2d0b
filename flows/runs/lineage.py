"""Find runs and their artifacts, and which network a run trains, without loading pyarrow.

`flows.runs.run_documents` reads the documents of one run, `flows.runs.document_history` follows one through the stages.
"""

import json
import math
import shlex
from pathlib import Path
from typing import TypedDict

from flows.runs.model_registry import CURRENT, current_run
from flows.runs.record import (
    RECORD,
    RunData,
    list_history,
    list_runs,
    read_recipe,
    read_run,
    stage_paths,
    time_of,
    warn_once,
)
from model.checkpoint.run_folder import DESCRIPTION, WEIGHTS
from model.errors import InputError, IntegrityError
from model.model_files import check_header
from tasks.artifacts.artifact import Artifact

LATEST = "latest"

MOST_NAMED = 5


def open_run(root: Path, run_id: str | None, needs: str = "sample") -> RunData:
    """Return the record of a run by its id or a unique beginning of it.

    Without an id, or for `latest`, it is the latest run that has the stage `needs`; for `current` that of the current
    model. Raises InputError where there is none.
    """
    if run_id == CURRENT:
        run_id = current_run(root)
    runs = _runs_by_use(root)
    run_id = None if run_id == LATEST else run_id
    if run_id is None:
        runs = [(name, run) for name, run in runs if _has_stage(run, needs)]
    if not runs:
        raise InputError(
            f"{root} holds no run that got past the stage `{needs}` yet; start one with"
            f" `bessemer run RECIPE --root {shlex.quote(str(root))}`, or name the root of your runs with --root"
        )
    if run_id is None:
        return runs[-1][1]
    found = [pair for pair in runs if pair[0] == run_id] or [pair for pair in runs if pair[0].startswith(run_id)]
    if not found and (root / "runs" / run_id / RECORD).is_file():
        return read_run(root / "runs" / run_id)
    begins = f"under {root} with an id that begins `{run_id}`"
    if not found:
        # Where a model is asked for: runs that made one, not exports and failed ones.
        stages = {needs, "finetune"} if needs == "train" else {needs}
        having = [name for name, run in runs if stages & stage_paths(run).keys()]
        known = having or [name for name, _ in runs]
        only = f"the only one{f' with the stage `{needs}`' if having and len(runs) > 1 else ''} is"
        latest = "the latest are" if len(known) > 1 else only
        raise InputError(f"no run {begins}; {latest} {', '.join(known[-MOST_NAMED:])}")
    if len(found) > 1:
        latest = "; the latest are" if len(found) > MOST_NAMED else ":"
        raise InputError(f"{len(found)} runs {begins}{latest} {', '.join(name for name, _ in found[-MOST_NAMED:])}")
    return found[0][1]


def _runs_by_use(root: Path) -> list[tuple[str, RunData]]:
    """Return id and record of every run, the latest last; one that built nothing has the record of the run with the
    same artifacts, whose folder holds its page and recipe."""
    runs = {run["run_id"]: run for run in list_runs(root)}
    again = [(line["run_id"], runs[same]) for line in list_history(root) if (same := line.get("same_as")) in runs]
    times = {run_id: time_of(run) for run_id, run in runs.items()}
    return sorted([*runs.items(), *again], key=lambda pair: times.get(pair[0], pair[0]))


def run_that_trained(root: Path, record: RunData) -> str | None:
    """Return the id of the latest run that trained, where the run of `record` did not; else None."""
    if _has_stage(record, "train"):
        return None
    return next((run["run_id"] for run in reversed(list_runs(root)) if _has_stage(run, "train")), None)


def _has_stage(record: RunData, stage: str) -> bool:
    return stage in stage_paths(record)


def run_artifacts(run: RunData) -> dict[str, Artifact]:
    """Return the artifacts of a run by stage, for the stages that have one."""
    return {stage: Artifact.open(path) for stage, path in stage_paths(run).items()}


def need_stage(artifacts: dict[str, Artifact], stage: str) -> Artifact:
    """Return the artifact of a stage; raise InputError where the run has none."""
    if stage not in artifacts:
        raise InputError(
            f"this run has no artifact of the stage `{stage}`; it ended before it, or has not reached it yet"
            f" (`bessemer runs list`)"
        )
    return artifacts[stage]


def artifacts_with_stage(stage: str, run: RunData, root: Path) -> dict[str, Artifact]:
    """Return the artifacts of a run that has one of `stage`; else raise InputError, which names the latest that has."""
    if _has_stage(run, stage):
        return run_artifacts(run)
    others = [other["run_id"] for other in list_runs(root) if _has_stage(other, stage)]
    hint = f"the latest that has one is {others[-1]}: --run {others[-1]}" if others else "no run has one"
    raise InputError(
        f"the run {run['run_id']} has no artifact of the stage `{stage}`; it ended before it, or has not reached it yet"
        f" (`bessemer runs list`). Under {root} {hint}"
    )


class NetworkLine(TypedDict):
    """The network of a run; None for what is not known yet, or no longer exists."""

    architecture: str | None
    parameters: int | None


def model_of(record: RunData, root: Path) -> NetworkLine:
    """Return what is known of a run's network."""
    path = stage_paths(record).get("train", Path())
    if (path / DESCRIPTION).is_file() and (path / WEIGHTS).is_file():
        try:
            config = json.loads((path / DESCRIPTION).read_text())["config"]
            return {"architecture": config.get("architecture", "gpt"), "parameters": count_parameters(path / WEIGHTS)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError) as error:
            warn_once(f"{path} is damaged ({error}); `bessemer store verify` names the damage and how to set it aside")
    try:
        network = read_recipe(root / "runs" / record["run_id"]).get("train", {}).get("model", {})
    except IntegrityError as error:
        warn_once(str(error))
        network = {}
    return {"architecture": network.get("architecture"), "parameters": None}


def count_parameters(path: Path) -> int:
    """Return the number of parameters in a file of safetensors; InputError or ValueError where it is truncated."""
    # The library would import NumPy to read shapes, a fifth of the time of `runs list`.
    check_header(path)
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        end = file.tell() + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if end != path.stat().st_size:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes of {end:,}")
    return sum(math.prod(tensor["shape"]) for tensor in header.values())
