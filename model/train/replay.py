"""Continue an earlier training whose order begins with the same rows: its checkpoints up to there are this run's too.

A checkpoint is a function of the settings, of the rows read before it, and of the number of rows in all. Where these
are compared and equal, and the earlier run was not rolled back, training from its checkpoint gives the bits of a
training from the first step. The held-out sequences count from the first validation on, since the checkpoint holds its
results.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from model.checkpoint.checkpoint import STATE, Checkpoint, checkpoint_at, checkpoint_steps
from model.checkpoint.complete_marker import complete
from model.checkpoint.run_folder import CHECKPOINTS, EARLIER, REPLAY, checkpoint_folder
from model.checksummed_json import read_sealed
from model.config import BaseConfig
from model.config.network import GPTConfig
from model.config.train import TrainerRun
from model.data.dataset import SequenceReader
from model.digests import digest_file
from model.errors import InputError
from model.files import sync_directory, sync_file, write_synced
from model.guard.decisions import ATTEMPTS
from model.train.resume import resume_requirements

BATCH_POSITIONS = 4096


class EarlierData(BaseConfig):
    """What an earlier training read."""

    sequences: tuple[Path, ...]
    order: Path
    heldout: Path | None


def adopt_checkpoints(run: TrainerRun, data: SequenceReader) -> int:
    """Copy the checkpoints of an earlier training that are also this run's into its folder; return the step of the
    last, 0 where there is none.

    Does nothing where the run has begun. Raises IntegrityError where a checkpoint is damaged.
    """
    folder = run.out / REPLAY
    if not (folder / EARLIER).exists() or checkpoint_steps(run.out / CHECKPOINTS) or (run.out / ATTEMPTS).exists():
        return 0
    earlier = EarlierData.model_validate(read_sealed(folder / EARLIER, "Run again."))
    theirs = SequenceReader(earlier.sequences, earlier.order)
    if theirs.positions != data.positions:
        return 0
    differing = differing_positions(theirs, data, by_number=not reads_tokens_alone(run))
    equal = next((int(found[0]) for found in differing if len(found)), data.positions)
    same_heldout = _digest(earlier.heldout) == _digest(run.heldout)
    requirements = {**resume_requirements(run), "order": digest_file(earlier.order), "attempt": 0}
    adopted = 0
    for step in checkpoint_steps(folder):
        try:
            checkpoint = checkpoint_at(folder, step, requirements)
        except InputError:
            return adopted  # Made under other settings or libraries, as are those after it.
        log = checkpoint.metrics_log()
        read = pc.max(log.tables()["steps"].column("pos_end")).as_py()
        if read > equal or not (same_heldout or not log.count("validation")):
            return adopted
        _copy(checkpoint, run, step)
        adopted = step
    return adopted


def reads_tokens_alone(run: TrainerRun) -> bool:
    """Return whether a row's number and pass decide nothing: they select random numbers of other objectives."""
    return isinstance(run.model, GPTConfig) and run.model.attention != "prefix"


def differing_positions(one: SequenceReader, other: SequenceReader, *, by_number: bool) -> Iterator[np.ndarray]:
    """Yield, batch by batch and ascending, the positions of ORDER at which two readers of equally many differ in tokens
    or where the loss starts, with `by_number` in the row's number or pass, too."""
    for begin in range(0, one.positions, BATCH_POSITIONS):
        end = min(begin + BATCH_POSITIONS, one.positions)
        mine, theirs = one.rows(begin, end), other.rows(begin, end)
        if mine.tokens_BL.shape != theirs.tokens_BL.shape:
            yield np.arange(begin, end)
            continue
        differ = (mine.tokens_BL != theirs.tokens_BL).any(axis=1) | (mine.loss_start_B != theirs.loss_start_B)
        if by_number:
            differ |= (mine.row_B != theirs.row_B) | (mine.epoch_B != theirs.epoch_B)
            for column in ("second_start_B", "is_next_B"):
                found, expected = getattr(mine, column), getattr(theirs, column)
                differ |= np.zeros(end - begin, bool) if found is None else found != expected
        yield begin + np.flatnonzero(differ)


def _digest(path: Path | None) -> str | None:
    return None if path is None else digest_file(path)


def _copy(checkpoint: Checkpoint, run: TrainerRun, step: int) -> None:
    """Copy a checkpoint, whose state then names this run's order."""
    target = checkpoint_folder(run.out / CHECKPOINTS, step)
    temporary = target.with_name(f"tmp-{step:09d}")
    if not target.parent.is_dir():
        target.parent.mkdir()
        sync_directory(run.out)
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(checkpoint.path, temporary)
    for file in temporary.iterdir():
        sync_file(file)
    state = {**checkpoint.state, "order": digest_file(run.order)}
    write_synced(temporary / STATE, [json.dumps(state, sort_keys=True).encode()])
    complete(temporary)
    os.rename(temporary, target)
    sync_directory(target.parent)
