"""Which files of an unfinished training another machine needs to end with the same bits."""

from collections.abc import Iterator
from pathlib import Path

from model.guard.decision import ATTEMPTS
from model.restarts import RECORD
from model.run_folder import complete_markers

TRAINING = "train"
"""The scratch folder of the trainer."""
MICRO_BATCH = "micro_batch.json"
"""`model.micro_batch.DECISION`, which cannot be asked without loading PyTorch."""


def kept_files(scratch: Path) -> Iterator[tuple[Path, ...]]:
    """Complete checkpoints first, each whole or not at all, then what was decided on the way.

    In this order: a decision to go back makes the checkpoints behind it void, and is known to whoever finds both; a
    checkpoint that came after a decision which is not there would be taken for one of the first attempt.
    """
    out = scratch / TRAINING
    for marker in sorted(complete_markers(out)):
        yield tuple(sorted(path for path in marker.parent.iterdir() if path.is_file()))
    for attempt in sorted((out / ATTEMPTS).glob("[0-9]*")):
        yield tuple(sorted(path for path in attempt.iterdir() if path.is_file()))
    for name in (MICRO_BATCH, RECORD):
        if (out / name).exists():
            yield (out / name,)
