"""Name the files of a training's folder. Imports nothing, for the supervisor, which may load no PyTorch."""

from pathlib import Path

RUN_FILE = "run.json"
"""The run that the trainer was given (`TrainerRun`)."""

HEARTBEAT = "heartbeat"
"""Touched while the trainer or its supervisor works, for the launcher."""

RESULT = "result"
"""Folder of the trained model."""

DESCRIPTION = "model.json"
"""File that describes a trained model."""
WEIGHTS = "model.safetensors"
"""File of its weights."""

MICRO_BATCH = "micro_batch.json"
"""The size of a micro-batch that was found for `micro_batch_rows = "auto"`."""

REPLAY, EARLIER = "replay", "earlier.json"
"""Folder with the checkpoints of an earlier training, and the file in it that names the data of that training."""

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, each in a folder of its own."""

PREFIX = "step-"
"""Prefix of a checkpoint's name; the number of steps before it follows."""

NAMES = PREFIX + "[0-9]" * 9
"""Pattern of the names of checkpoints: copies that somebody made under other names are none."""

COMPLETE = "COMPLETE"
"""Last file written of a checkpoint, a result or a decision; holds the digests of the others."""


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step` steps; names sort by step."""
    return checkpoints / f"{PREFIX}{step:09d}"


def steps_before(checkpoint: Path) -> int:
    """Return the number of steps before the checkpoint in this folder."""
    return int(checkpoint.name.removeprefix(PREFIX))


def complete_markers(out: Path) -> list[Path]:
    """Return the path of every checkpoint's `COMPLETE`; digests are not checked."""
    return list((out / CHECKPOINTS).glob(f"{NAMES}/{COMPLETE}"))


def lasting_steps(count: int, steps: int) -> list[int]:
    """Return the steps before each of `count` checkpoints that divide `steps` steps into equal parts, ascending."""
    return sorted({steps * nth // (count + 1) for nth in range(1, count + 1)} - {0})
