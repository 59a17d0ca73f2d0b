"""Checkpoints that are all there or not there: digests, fsync, rename, and a COMPLETE marker written last.

A checkpoint folder holds the weights, the optimizer's state (safetensors; a file for each rank that has a part of its
own), the journal so far, `state.json` with everything else, and `COMPLETE`: the BLAKE3-128 of every file. Loading
believes only digests that agree. All ranks have written before COMPLETE is.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from model.durable import digest_file, sync_directory, sync_file, write_atomically
from model.engine import Engine
from model.errors import InputError
from model.journal import Journal
from model.ranks import Ranks

COMPLETE = "COMPLETE"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Damage:
    """A checkpoint that was not believed, and why."""

    name: str
    reason: str


def checkpoint_folder(folder: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps; names sort by step."""
    return folder / f"step-{step:09d}"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: dict[str, Any]

    def weights(self) -> dict[str, Tensor]:
        """All weights, by their names in the network."""
        return load_file(self.path / WEIGHTS)

    def optimizer_state(self, rank: int, shards: int) -> dict[str, Tensor]:
        """What `rank` saved of the optimizer; where there is one shard, all ranks read it."""
        return load_file(self.path / _optimizer_file(rank if shards > 1 else 0, shards))

    def journal(self) -> Journal:
        """The journal up to this checkpoint."""
        return Journal.read(self.path)


def save_checkpoint(
    folder: Path, step: int, engine: Engine, ranks: Ranks, journal: Journal, state: dict[str, Any], keep: int
) -> Path:
    """Write the checkpoint after `step` steps and remove all but the newest `keep`, and the damaged ones.

    Called by all ranks together. The journal that is saved here names the damaged ones, so they are not forgotten.
    """
    temporary = folder / f"tmp-{step:09d}"
    target = checkpoint_folder(folder, step)
    if ranks.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob("tmp-*"):
            shutil.rmtree(left_over)
        temporary.mkdir()
    ranks.barrier()
    if ranks.rank < engine.optimizer_shards:
        save_file(engine.optimizer_state(), temporary / _optimizer_file(ranks.rank, engine.optimizer_shards))
    weights = engine.weights()
    ranks.barrier()
    if ranks.is_first:
        save_file(weights, temporary / WEIGHTS)
        (temporary / "state.json").write_text(json.dumps({**state, "step": step}, sort_keys=True))
        journal.write(temporary)
        _complete(temporary, target)
        for old in [*sorted(folder.glob("step-*"))[:-keep], *folder.glob("damaged-*")]:
            _remove(old)
    # Nobody leaves before it stands: a rank that ends has the others ended soon after.
    ranks.barrier()
    return target


def _optimizer_file(rank: int, shards: int) -> str:
    return "optimizer.safetensors" if shards == 1 else f"optimizer-{rank:05d}-of-{shards:05d}.safetensors"


def _complete(temporary: Path, target: Path) -> None:
    digests = {}
    for path in sorted(temporary.iterdir()):
        sync_file(path)
        digests[path.name] = digest_file(path)
    write_atomically(temporary / COMPLETE, json.dumps(digests, sort_keys=True).encode())
    if target.exists():
        _remove(target)
    os.rename(temporary, target)
    sync_directory(target.parent)


def _remove(path: Path) -> None:
    """Delete a checkpoint, under another name first: one that a kill left half deleted is not a damaged one."""
    doomed = path.with_name(f"tmp-{path.name}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def set_damaged_aside(folder: Path) -> list[Damage]:
    """Rename checkpoints that cannot be believed, lest they count among the newest; returns these and earlier ones."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        if _damage(path) is not None:
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
    return [
        Damage(path.name.removeprefix("damaged-"), _damage(path) or "was damaged when last read")
        for path in sorted(folder.glob("damaged-*"), reverse=True)
    ]


def newest_checkpoint(folder: Path, expected: dict[str, Any]) -> Checkpoint | None:
    """The newest checkpoint, after `set_damaged_aside`; None when there is none.

    `expected` are entries of the state that must agree; the first contradiction is an InputError, never a silent win.
    """
    newest = max(folder.glob("step-*"), default=None)
    if newest is None:
        return None
    state = json.loads((newest / "state.json").read_text())
    for key, value in expected.items():
        if state.get(key) != value:
            raise InputError(
                f"checkpoint {newest}: its `{key}` is {state.get(key)}, but this run asks for {value}."
                f" A checkpoint goes on only under the configuration that made it; remove {folder} to start anew."
            )
    return Checkpoint(newest, state)


def _damage(path: Path) -> str | None:
    """Why a checkpoint cannot be believed; None when every byte agrees with its digest."""
    marker = path / COMPLETE
    if not marker.is_file():
        return f"{COMPLETE} is missing"
    try:
        digests = json.loads(marker.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        return f"{COMPLETE} is unreadable"
    if not isinstance(digests, dict) or set(digests) != {file.name for file in path.iterdir()} - {COMPLETE}:
        return f"{COMPLETE} does not name the files that are there"
    for name, digest in digests.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if digest_file(file) != digest:
            return f"{name} does not agree with its digest"
    return None
