"""Checkpoints, read: folders that are all there or not there (`model/checkpoint/complete_marker.py`).

A checkpoint holds the weights, the optimizer's state (safetensors; a file for each rank that has a part of its own),
the journal so far, `state.json` with everything else, and `COMPLETE`. Loading believes only digests that agree.
`model/checkpoint/writer.py` writes them.

Which checkpoints may go when a new one stands.
"""

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from model.checkpoint.complete_marker import why_damaged
from model.checkpoint.metrics import Journal
from model.checkpoint.run_folder import PREFIX, checkpoint_folder, steps_before
from model.errors import InputError, IntegrityError

WEIGHTS = "weights.safetensors"

STATE = "state.json"


@dataclass(frozen=True)
class Damage:
    """A checkpoint that was not believed, and why."""

    name: str
    reason: str


def optimizer_file(rank: int, shards: int) -> str:
    """Name of the file with what a rank holds of the optimizer's state."""
    return "optimizer.safetensors" if shards == 1 else f"optimizer-{rank:05d}-of-{shards:05d}.safetensors"


def standing_steps(folder: Path) -> list[int]:
    """Steps after which checkpoints stand, ascending; whether their bytes are whole was not looked at."""
    return sorted(steps_before(path) for path in folder.glob(f"{PREFIX}[0-9]*"))


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: dict[str, Any]

    def weights(self) -> dict[str, Tensor]:
        """All weights, by their names in the network."""
        return load_file(self.path / WEIGHTS)

    @property
    def optimizer_shards(self) -> int:
        """Ranks that had a part of the optimizer's state of their own when this was written; 1 where all had the
        same."""
        return len(list(self.path.glob("optimizer*")))

    def optimizer_state(self, rank: int, shards: int) -> dict[str, Tensor]:
        """What `rank` saved of the optimizer; where there is one shard, all ranks read it."""
        return load_file(self.path / optimizer_file(rank if shards > 1 else 0, shards))

    def journal(self) -> Journal:
        """The journal up to this checkpoint."""
        return Journal.read(self.path)


def checkpoints(folder: Path) -> list[int]:
    """Steps of the checkpoints that stand whole, ascending. Reads every byte of them."""
    return [step for step in standing_steps(folder) if why_damaged(checkpoint_folder(folder, step)) is None]


def checkpoint_at(folder: Path, step: int, expected: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint after `step` steps, every byte of which was read.

    Raises IntegrityError where it is missing or damaged, and names the file; InputError where its state contradicts
    `expected`.
    """
    path = checkpoint_folder(folder, step)
    reason = why_damaged(path) if path.is_dir() else "it is not there"
    if reason is not None:
        raise IntegrityError(
            f"the checkpoint after step {step}, {path}, is not to be believed: {reason}. Nothing was loaded from it;"
            f" whole ones are those after steps {checkpoints(folder) or 'none'}."
        )
    return _agreeing(path, expected, {})


def newest_checkpoint(
    folder: Path, expected: Mapping[str, Any], formerly: Mapping[str, Sequence[Any]] | None = None
) -> Checkpoint | None:
    """The newest checkpoint, after `set_damaged_aside`; None when there is none.

    `expected` are entries of the state that must agree, if not with what was so `formerly`; the first contradiction is
    an InputError, never a silent win.
    """
    steps = standing_steps(folder)
    return _agreeing(checkpoint_folder(folder, steps[-1]), expected, formerly or {}) if steps else None


def _agreeing(path: Path, expected: Mapping[str, Any], formerly: Mapping[str, Sequence[Any]]) -> Checkpoint:
    state = json.loads((path / STATE).read_text())
    for key, value in expected.items():
        if state.get(key) != value and state.get(key) not in formerly.get(key, ()):
            raise InputError(
                f"checkpoint {path}: its `{key}` is {state.get(key)}, but this run asks for {value}. A checkpoint goes"
                f" on only under the configuration that made it; remove {path.parent} to start anew."
            )
    return Checkpoint(path, state)


def set_damaged_aside(folder: Path) -> list[Damage]:
    """Rename checkpoints that cannot be believed, lest they count among the newest; returns these and earlier ones."""
    for path in sorted(folder.glob(f"{PREFIX}*"), reverse=True):
        if why_damaged(path) is not None:
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
    return [
        Damage(path.name.removeprefix("damaged-"), why_damaged(path) or "was damaged when last read")
        for path in sorted(folder.glob("damaged-*"), reverse=True)
    ]


def checkpoint_state(folder: Path, step: int) -> dict[str, Any]:
    """What the checkpoint after `step` steps says of the run; its bytes are believed."""
    return json.loads((checkpoint_folder(folder, step) / STATE).read_text())


def remove_checkpoint(folder: Path, step: int) -> None:
    """Delete the checkpoint after `step` steps."""
    discard(checkpoint_folder(folder, step))


def discard(path: Path) -> None:
    """Delete a folder, under another name first: a checkpoint that a kill left half deleted is not a damaged one."""
    doomed = path.with_name(f"tmp-{path.name}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def superseded(standing: Collection[int], newest: int, keep: int, healthy: Collection[int] = ()) -> list[int]:
    """Steps of checkpoints that may go, of those `standing`, now that the one after step `newest` stands.

    The newest `keep` stay, and the `healthy` ones (`guard.health.Health.to_keep`): the newest may all come from a
    training that is already on its way to ruin. Those after later steps go: they belong to an attempt that was given
    up, and a run that went on from one would not be this run.
    """
    led_here = sorted(step for step in standing if step <= newest)
    return sorted(set(standing) - {*led_here[-keep:], *(set(led_here) & set(healthy))})
