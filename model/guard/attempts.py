"""Decisions on disk: durable before they are acted on, so that a run that is killed in between acts on them again.

`attempts/0001/` holds the first decision with what the run had written about itself by then; a folder without
`decision.json` does not count, for it is renamed into place as a whole.
"""

import os
import shutil
from pathlib import Path

from model.checkpoint import checkpoint_state, remove_checkpoint, standing_steps
from model.durable import sync_directory, write_atomically
from model.guard.decision import ATTEMPTS, DECISION, Decision
from model.journal import Journal


def write_decision(out: Path, decision: Decision, journal: Journal) -> None:
    """Make a decision stand, and the journal of the run up to it."""
    folder = out / ATTEMPTS
    temporary = folder / f"tmp-{decision.attempt:04d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    journal.write(temporary)
    write_atomically(temporary / DECISION, decision.model_dump_json(indent=1).encode())
    os.rename(temporary, folder / f"{decision.attempt:04d}")
    sync_directory(folder)


def journal_at(out: Path, decision: Decision) -> Journal:
    """The journal of a run when a decision was made."""
    return Journal.read(out / ATTEMPTS / f"{decision.attempt:04d}")


def drop_abandoned(checkpoints: Path, decisions: list[Decision]) -> None:
    """Delete the checkpoints that lie behind the places gone back to since they were written."""
    for steps in standing_steps(checkpoints):
        written = checkpoint_state(checkpoints, steps)["attempt"]
        if any(steps > decision.to_step for decision in decisions[written:]):
            remove_checkpoint(checkpoints, steps)
