"""Inspect and resume an interrupted training, and join a training of several hosts from this machine."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flows.recipe.load import parse_setting
from flows.recipe.schema import Recipe
from flows.runs.existing_artifacts import existing_artifact
from flows.runs.lineage import open_run
from flows.runs.record import recipe_of
from model.checkpoint.complete_marker import find_damage
from model.checkpoint.run_folder import RESULT, RUN_FILE
from model.config.train import TrainerRun, read_run
from model.errors import InputError, RecipeError
from model.guard.decisions import Decision, read_decisions
from tasks.artifacts.build import WouldBuild
from tasks.artifacts.identity import Identity
from tasks.artifacts.lease import is_alive
from tasks.artifacts.reuse import OtherVersion, adopt, other_version
from tasks.train.launcher import environment

if TYPE_CHECKING:
    from model.train.intervention import Parity

TRAINING = Path("scratch") / "train"

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Unfinished:
    """An interrupted training."""

    run_id: str
    recipe: Recipe
    identity: Identity
    work: Path
    """The build's folder."""
    other: OtherVersion | None = None
    """The build, where other code or libraries started it."""

    @property
    def training(self) -> Path:
        """The trainer's folder: checkpoints, decisions, `run.json`."""
        return self.work / TRAINING

    @property
    def checkpoints(self) -> list[int]:
        """Steps of the complete checkpoints from which it can resume, ascending."""
        from model.train.intervention import resumable_steps

        return resumable_steps(self.training)

    @property
    def decisions(self) -> list[Decision]:
        """Decisions so far, of the divergence guard and of manual interventions."""
        return read_decisions(self.training)


def unfinished(root: Path, run_id: str | None) -> Unfinished:
    """Return the interrupted training of a run, the latest run by default.

    Raises InputError where the training is complete, never started, or is running.
    """
    record = open_run(root, run_id, needs="chunk")
    recipe = recipe_of(root / "runs" / record["run_id"])
    training = f"the training of run {record['run_id']}"
    cure = "Run the recipe with `--until chunk`, then ask again."
    would = existing_artifact(recipe, root, "train", training, cure)
    if not isinstance(would, WouldBuild):
        raise InputError(f"{training} has ended; there is nothing to resume")
    identity = would.identity
    if is_alive(root / "locks" / identity.key):
        raise InputError(
            f"{training} goes on right now. Stop it first (Ctrl-C, or cancel it in the Prefect UI): it leaves a"
            f" checkpoint"
        )
    works = sorted((root / "work").glob(f"{identity.key}.[0-9]*"))
    if works and (works[-1] / TRAINING).is_dir():
        return Unfinished(record["run_id"], recipe, identity, works[-1])
    other = other_version(root, identity)
    if other is None or not (other.folder / TRAINING).is_dir():
        raise InputError(
            f"run {record['run_id']} left no training of these rows and settings ({would.miss.cause}). Begin it with"
            f" `bessemer run`"
        )
    return Unfinished(record["run_id"], recipe, identity, other.folder, other)


def resume(
    found: Unfinished, root: Path, settings: Mapping[str, Any], from_step: int | None, cause: str
) -> tuple[Decision, "Parity | None"]:
    """Resume a training under changed settings.

    A training that another version of the program or of a library started resumes only after 20 steps are reproduced.
    Raises RecipeError for settings that cannot change, InputError where it cannot resume from the step, GuardError
    where the steps differ.
    """
    from model.train.intervention import change_versions, intervene

    if found.other is None:
        return intervene(found.training, settings, from_step, cause), None
    if from_step is not None:
        raise RecipeError(
            "--from-step: under another version, training resumes from the newest checkpoint. Leave --from-step out;"
            " after it has resumed, stop it and use --from-step"
        )
    done = change_versions(found.training, found.other.changed, settings, cause)
    # Moved last, so that `bessemer run` does not find it before the steps are reproduced.
    adopt(root, found.other, found.identity)
    return done


def without_pause(recipe: Recipe) -> Recipe:
    """Return the recipe without `train.pause_share`, at which the training has paused already and would again."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"pause_share": None})})


def changes(settings: Sequence[str]) -> dict[str, Any]:
    """Parse settings such as `train.optimizer.kind=sgd` to the trainer's paths; `train.model.X` becomes `model.X`."""
    named: dict[str, Any] = {}
    for setting in settings:
        path, value = parse_setting(setting)
        if not path.startswith("train."):
            raise RecipeError(f"--set {setting}: write it as train.KEY=VALUE, such as train.schedule.peak_lr=1e-4")
        named[path.removeprefix("train.") if path.startswith("train.model.") else path] = value
    return named


def wait_for_multi_host_training(root: Path, wait_seconds: float) -> tuple[Path, TrainerRun]:
    """Return the run file and settings of the latest unfinished training of several hosts under `root`.

    Waits up to `wait_seconds` for one to start; raises InputError where none did.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        files = (root / "work").glob(f"*/{TRAINING}/{RUN_FILE}")
        found = sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in found:
            run = read_run(path)
            if run.train.hosts.count > 1 and find_damage(run.out / RESULT) is not None:
                return path, run
        if time.monotonic() > deadline:
            problem = "no training is running" if not found else "no training is for several hosts"
            raise InputError(
                f"{problem} under {root}, and none began within {wait_seconds:.0f} seconds. Start the run on the"
                f" machine with the address (train.hosts.count, train.hosts.address), and give the same --root here: a"
                f" folder that all machines see under the same name."
            )
        time.sleep(POLL_SECONDS)


def exec_supervisor(run_file: Path, given: Mapping[str, str]) -> NoReturn:
    """Replace this process by the supervisor of this machine's ranks, with the environment variables `given`.

    The supervisor gets this process's signals, and its exit code is the command's.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "model.train", str(run_file)], environment(given))
