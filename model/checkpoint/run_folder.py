"""Where things stand in a run's folder. Loads nothing, since the supervisor, which may load no PyTorch, asks too."""

from pathlib import Path

RUN_FILE = "run.json"
"""What the trainer was told."""

HEARTBEAT = "heartbeat"
"""Touched by whoever is at work, for the launcher."""

RESULT = "result"
"""Folder of the trained model."""

DESCRIPTION = "model.json"
"""File that describes a trained model."""
WEIGHTS = "model.safetensors"
"""File of its weights."""

CHECKPOINTS = "checkpoints"

PREFIX = "step-"
"""Of a checkpoint's name; the steps before it follow."""

COMPLETE = "COMPLETE"
"""File of a checkpoint, a result or a decision that is written last, and holds the digests of the others."""


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps; names sort by step."""
    return checkpoints / f"{PREFIX}{step:09d}"


def steps_before(checkpoint: Path) -> int:
    """How many steps the checkpoint in this folder follows."""
    return int(checkpoint.name.removeprefix(PREFIX))


def complete_markers(out: Path) -> list[Path]:
    """`COMPLETE` of every checkpoint of the run that has one; their digests were not looked at."""
    return list((out / CHECKPOINTS).glob(f"{PREFIX}*/{COMPLETE}"))
