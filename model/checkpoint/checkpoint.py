"""Find, check, load and delete checkpoints; `model/checkpoint/writer.py` writes them.

A checkpoint is a folder that is complete or does not count (`model/checkpoint/complete_marker.py`). It holds the
weights and the optimizer's state (safetensors; a file for each rank that has a shard of its own), the metrics log so
far, `state.json` with everything else, and `COMPLETE`. Nothing is loaded whose digest does not agree.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from model.checkpoint.complete_marker import find_damage
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.run_folder import NAMES, checkpoint_folder, steps_before
from model.checkpoint.state import CheckpointState
from model.errors import InputError, IntegrityError
from model.files import remove

WEIGHTS = "weights.safetensors"

STATE = "state.json"

BEGINS = "begins"
"""Key of a safetensors file's metadata: JSON of the first element's place, in each dimension of the whole tensor, by
name; moments have their weight's. Tensors that are not named are whole."""


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint on disk."""

    path: Path
    state: CheckpointState

    def weights(self) -> dict[str, Tensor]:
        """Load all weights, by their names in the network."""
        return self.divided_weights().load()

    def divided_weights(self) -> "DividedTensors":
        """Return the weights without loading them."""
        return DividedTensors(sorted(self.path.glob("weights*")))

    def divided_moments(self) -> "DividedTensors":
        """Return the optimizer's state of ranks that divide each tensor, without loading it."""
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
    """Tensors whose parts are in any of several safetensors files, which say where each part begins (`BEGINS`)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._parts: dict[str, list[tuple[Any, list[int]]]] = {}
        for path in paths:
            file = safe_open(path, framework="pt")
            begins = json.loads((file.metadata() or {}).get(BEGINS, "{}"))
            for name in file.keys():  # noqa: SIM118  # no mapping
                part = file.get_slice(name)
                begin = begins.get(name.partition("|")[0], [0] * len(part.get_shape()))
                self._parts.setdefault(name, []).append((part, begin))
        self.names: list[str] = sorted(self._parts)

    def part(self, name: str, box: tuple[slice, ...]) -> Tensor:
        """Return a part of a tensor, reading no more; a tensor without dimensions is the first file's.

        Raises IntegrityError where the files do not have all of it.
        """
        first, _ = self._parts[name][0]
        if not first.get_shape():
            return first[...]
        found = first[:0].new_empty([side.stop - side.start for side in box])
        missing = found.numel()
        for part, begins in self._parts[name]:
            ends = [begin + length for begin, length in zip(begins, part.get_shape(), strict=True)]
            shared = [
                slice(max(side.start, begin), min(side.stop, end))
                for side, begin, end in zip(box, begins, ends, strict=True)
            ]
            if all(side.start < side.stop for side in shared):
                piece = part[_moved(shared, begins)]
                found[_moved(shared, [side.start for side in box])] = piece
                missing -= piece.numel()
        if missing:
            raise IntegrityError(
                f"{missing} of {found.numel()} elements of {name} are in none of its files, or in several: they were"
                f" written by an earlier version, or belong to different checkpoints. Start again from an older"
                f" checkpoint, or without one."
            )
        return found

    def load(self) -> dict[str, Tensor]:
        """Return all tensors, whole."""
        return {name: self.part(name, self._whole(name)) for name in self.names}

    def _whole(self, name: str) -> tuple[slice, ...]:
        parts = [(begins, part.get_shape()) for part, begins in self._parts[name]]
        return tuple(slice(0, max(begins[d] + shape[d] for begins, shape in parts)) for d in range(len(parts[0][1])))


def _moved(box: Sequence[slice], begins: Sequence[int]) -> tuple[slice, ...]:
    """Return a box seen from a part that begins there."""
    return tuple(slice(side.start - begin, side.stop - begin) for side, begin in zip(box, begins, strict=True))


def weights_file(rank: int, shards: int) -> str:
    """Return the name of the file with a rank's rows of the weights."""
    return WEIGHTS if shards == 1 else f"weights-{rank:05d}-of-{shards:05d}.safetensors"


def optimizer_file(rank: int, shards: int) -> str:
    """Return the name of the file with a rank's shard of the optimizer's state."""
    return "optimizer.safetensors" if shards == 1 else f"optimizer-{rank:05d}-of-{shards:05d}.safetensors"


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps after which checkpoints exist, ascending; their bytes are not checked."""
    return sorted(steps_before(path) for path in folder.glob(NAMES))


def intact_steps(folder: Path) -> list[int]:
    """Return the steps of the intact checkpoints, ascending. Reads every byte of them."""
    return [step for step in checkpoint_steps(folder) if find_damage(checkpoint_folder(folder, step)) is None]


def newest_checkpoint(
    folder: Path, expected: Mapping[str, object], previous: Mapping[str, Sequence[Any]] | None = None
) -> Checkpoint | None:
    """Return the newest checkpoint, or None; call it after `quarantine_damaged`.

    `expected` are entries that its state must have, each with the value there or one of `previous`. Raises InputError
    for the first that it does not have.
    """
    steps = checkpoint_steps(folder)
    return _load_state(checkpoint_folder(folder, steps[-1]), expected, previous or {}) if steps else None


def checkpoint_at(folder: Path, step: int, expected: Mapping[str, object]) -> Checkpoint:
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


def _load_state(path: Path, expected: Mapping[str, object], previous: Mapping[str, Sequence[Any]]) -> Checkpoint:
    state = json.loads((path / STATE).read_text())
    for key, value in expected.items():
        if state.get(key) != value and state.get(key) not in previous.get(key, ()):
            raise InputError(
                f"checkpoint {path}: its `{key}` is {state.get(key)}, but this run asks for {value}. A checkpoint can"
                f" be resumed only under the configuration that made it; remove {path.parent} to start again."
            )
    return Checkpoint(path, state)


def checkpoint_state(folder: Path, step: int) -> CheckpointState:
    """Return the state of the checkpoint after `step` steps, without checking its bytes."""
    return json.loads((checkpoint_folder(folder, step) / STATE).read_text())


@dataclass(frozen=True)
class Damage:
    """A damaged checkpoint."""

    name: str
    reason: str


def quarantine_damaged(folder: Path) -> list[Damage]:
    """Rename damaged checkpoints, so that none of them is the newest; return these and those renamed before."""
    for path in sorted(folder.glob(NAMES), reverse=True):
        if find_damage(path) is not None:
            aside = path.with_name(f"damaged-{path.name}")
            remove(aside)
            os.rename(path, aside)
    return [
        Damage(path.name.removeprefix("damaged-"), find_damage(path) or "was damaged when last read")
        for path in sorted(folder.glob(f"damaged-{NAMES}"), reverse=True)
    ]


def steps_to_delete(existing: Collection[int], newest: int, keep: int, healthy: Collection[int] = ()) -> list[int]:
    """Return the steps of the checkpoints to delete, of those `existing`, once the one after step `newest` is written.

    The newest `keep` stay, and the `healthy` ones (`model.guard.policy.Health.to_keep`), since the newest may all come
    from a training that already diverges. Those after later steps belong to an abandoned attempt and are deleted.
    """
    led_here = sorted(step for step in existing if step <= newest)
    return sorted(set(existing) - {*led_here[-keep:], *(set(led_here) & set(healthy))})


def discard(path: Path) -> None:
    """Delete a folder, under another name first: a kill must not leave half a checkpoint that counts as damaged."""
    doomed = path.with_name(f"tmp-{path.name}")
    os.rename(path, doomed)
    remove(doomed)
