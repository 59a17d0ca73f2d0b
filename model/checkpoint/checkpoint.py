"""Find, check, load and delete checkpoints; `model/checkpoint/writer.py` writes them.

A checkpoint is a folder that is complete or does not count (`model/checkpoint/complete_marker.py`). It holds the
weights and the optimizer's state (safetensors; a file for each rank that has a shard of its own), the metrics log so
far, `state.json` with everything else, and `COMPLETE`. Nothing is loaded whose digest does not agree.
"""

import json
import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from model.checkpoint.complete_marker import find_damage
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.run_folder import PREFIX, checkpoint_folder, steps_before
from model.errors import InputError, IntegrityError

WEIGHTS = "weights.safetensors"

STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint on disk."""

    path: Path
    state: dict[str, Any]

    def weights(self) -> dict[str, Tensor]:
        """Load all weights, by their names in the network."""
        return self.weight_rows().load()

    def weight_rows(self) -> "DividedTensors":
        """Return the weights without loading them."""
        return DividedTensors(sorted(self.path.glob("weights*")))

    def moment_rows(self) -> "DividedTensors":
        """Return the optimizer's state of ranks that divide each tensor by rows, without loading it."""
        return DividedTensors(sorted(self.path.glob("optimizer*")))

    @property
    def optimizer_shards(self) -> int:
        """Number of shards of the optimizer's state; 1 where all ranks had the same state."""
        return len(list(self.path.glob("optimizer*")))

    def optimizer_state(self, rank: int, shards: int) -> dict[str, Tensor]:
        """Load the optimizer's state that `rank` saved; a single shard is every rank's."""
        return load_file(self.path / optimizer_file(rank if shards > 1 else 0, shards))

    def metrics_log(self) -> MetricsLog:
        """Load the metrics log up to this checkpoint."""
        return MetricsLog.read(self.path)


class DividedTensors:
    """Tensors whose rows are divided over safetensors files, in the order of the files; what is asked for is read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [safe_open(path, framework="pt") for path in paths]
        self.names: list[str] = list(self._files[0].keys()) if self._files else []

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """Return rows [begin, end) of a tensor; a tensor without dimensions is the first file's."""
        if not self._files[0].get_slice(name).get_shape():
            return self._files[0].get_tensor(name)
        found: list[Tensor] = []
        first = 0
        for file in self._files:
            part = file.get_slice(name)
            last = first + part.get_shape()[0]
            if begin < last and first < end:
                found.append(part[max(begin, first) - first : min(end, last) - first])
            first = last
        if not found:
            return self._files[0].get_slice(name)[:0]
        return found[0] if len(found) == 1 else torch.cat(found)

    def load(self) -> dict[str, Tensor]:
        """Return all tensors, whole."""
        return {name: self.rows(name, 0, sys.maxsize) for name in self.names}


def weights_file(rank: int, shards: int) -> str:
    """Return the name of the file with a rank's rows of the weights."""
    return WEIGHTS if shards == 1 else f"weights-{rank:05d}-of-{shards:05d}.safetensors"


def optimizer_file(rank: int, shards: int) -> str:
    """Return the name of the file with a rank's shard of the optimizer's state."""
    return "optimizer.safetensors" if shards == 1 else f"optimizer-{rank:05d}-of-{shards:05d}.safetensors"


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps after which checkpoints exist, ascending; their bytes are not checked."""
    return sorted(steps_before(path) for path in folder.glob(f"{PREFIX}[0-9]*"))


def intact_steps(folder: Path) -> list[int]:
    """Return the steps of the intact checkpoints, ascending. Reads every byte of them."""
    return [step for step in checkpoint_steps(folder) if find_damage(checkpoint_folder(folder, step)) is None]


def newest_checkpoint(
    folder: Path, expected: Mapping[str, Any], previous: Mapping[str, Sequence[Any]] | None = None
) -> Checkpoint | None:
    """Return the newest checkpoint, or None; call it after `quarantine_damaged`.

    `expected` are entries that its state must have, each with the value there or one of `previous`. Raises InputError
    for the first that it does not have.
    """
    steps = checkpoint_steps(folder)
    return _load_state(checkpoint_folder(folder, steps[-1]), expected, previous or {}) if steps else None


def checkpoint_at(folder: Path, step: int, expected: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint after `step` steps, after reading every byte of it.

    Raises IntegrityError, which names the file, where it is missing or damaged; InputError where its state contradicts
    `expected`.
    """
    path = checkpoint_folder(folder, step)
    reason = find_damage(path) if path.is_dir() else "it does not exist"
    if reason is not None:
        raise IntegrityError(
            f"the checkpoint after step {step}, {path}, cannot be used: {reason}. Nothing was loaded from it; intact"
            f" checkpoints are those after steps {intact_steps(folder) or 'none'}."
        )
    return _load_state(path, expected, {})


def _load_state(path: Path, expected: Mapping[str, Any], previous: Mapping[str, Sequence[Any]]) -> Checkpoint:
    state = json.loads((path / STATE).read_text())
    for key, value in expected.items():
        if state.get(key) != value and state.get(key) not in previous.get(key, ()):
            raise InputError(
                f"checkpoint {path}: its `{key}` is {state.get(key)}, but this run asks for {value}. A checkpoint can"
                f" be resumed only under the configuration that made it; remove {path.parent} to start again."
            )
    return Checkpoint(path, state)


def checkpoint_state(folder: Path, step: int) -> dict[str, Any]:
    """Return the state of the checkpoint after `step` steps, without checking its bytes."""
    return json.loads((checkpoint_folder(folder, step) / STATE).read_text())


@dataclass(frozen=True)
class Damage:
    """A damaged checkpoint."""

    name: str
    reason: str


def quarantine_damaged(folder: Path) -> list[Damage]:
    """Rename damaged checkpoints, so that none of them is the newest; return these and those renamed before."""
    for path in sorted(folder.glob(f"{PREFIX}*"), reverse=True):
        if find_damage(path) is not None:
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
    return [
        Damage(path.name.removeprefix("damaged-"), find_damage(path) or "was damaged when last read")
        for path in sorted(folder.glob("damaged-*"), reverse=True)
    ]


def steps_to_delete(existing: Collection[int], newest: int, keep: int, healthy: Collection[int] = ()) -> list[int]:
    """Return the steps of the checkpoints to delete, of those `existing`, once the one after step `newest` is written.

    The newest `keep` stay, and the `healthy` ones (`model.guard.policy.Health.to_keep`), since the newest may all come
    from a training that already diverges. Those after later steps belong to an abandoned attempt and are deleted.
    """
    led_here = sorted(step for step in existing if step <= newest)
    return sorted(set(existing) - {*led_here[-keep:], *(set(led_here) & set(healthy))})


def remove_checkpoint(folder: Path, step: int) -> None:
    """Delete the checkpoint after `step` steps."""
    discard(checkpoint_folder(folder, step))


def discard(path: Path) -> None:
    """Delete a folder, under another name first: a kill must not leave half a checkpoint that counts as damaged."""
    doomed = path.with_name(f"tmp-{path.name}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)
