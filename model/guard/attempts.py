"""Decisions on disk: durable before they are acted on, so that a run that is killed in between acts on them again.

`attempts/0001/` holds the first decision with what the run had written about itself by then; a folder without
COMPLETE is damaged, for it is renamed into place as a whole.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from model.checkpoint import Checkpoint, checkpoint_state, remove_checkpoint, standing_steps
from model.complete import complete
from model.durable import sync_directory, write_synced
from model.guard.decision import ATTEMPTS, DECISION, Decision
from model.journal import Journal


def write_decision(out: Path, decision: Decision, journal: Journal) -> None:
    """Make a decision stand, and the journal of the run up to it."""
    folder = out / ATTEMPTS
    temporary = folder / f"tmp-{decision.attempt:04d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    journal.write(temporary)
    write_synced(temporary / DECISION, [decision.model_dump_json(indent=1).encode()])
    complete(temporary)
    sync_directory(temporary)
    os.rename(temporary, folder / f"{decision.attempt:04d}")
    sync_directory(folder)


def journal_so_far(out: Path, decisions: Sequence[Decision], checkpoint: Checkpoint | None) -> Journal:
    """What the run has written up to `checkpoint`, or with the last decision where no checkpoint was made since."""
    written = checkpoint.state["attempt"] if checkpoint else 0
    if written < len(decisions):
        journal = Journal.read(out / ATTEMPTS / f"{decisions[-1].attempt:04d}")
    else:
        journal = checkpoint.journal() if checkpoint else Journal()
    journal.attempt = len(decisions)
    return journal


def is_abandoned(checkpoints: Path, step: int, decisions: Sequence[Decision]) -> bool:
    """Whether the checkpoint after `step` steps lies behind a place gone back to since it was written."""
    written = checkpoint_state(checkpoints, step)["attempt"]
    return any(step > decision.to_step for decision in decisions[written:])


def drop_abandoned(checkpoints: Path, decisions: Sequence[Decision]) -> None:
    """Delete the checkpoints that are abandoned."""
    for step in standing_steps(checkpoints):
        if is_abandoned(checkpoints, step, decisions):
            remove_checkpoint(checkpoints, step)
