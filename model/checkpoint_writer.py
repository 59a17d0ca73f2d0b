"""Checkpoints, written beside the training: the step loop stands still while tensors are copied, and for nothing else.

A thread of each rank writes what that rank holds: files, their digests on the way, fsync. When all ranks have told each
other that theirs are down, the first one's thread writes COMPLETE, renames the folder and removes older checkpoints.
Ranks tell each other at the ends of steps, in the loop's own thread: gloo matches calls by their order, and those of a
second thread have none.
"""

import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from model.checkpoint import STATE, WEIGHTS, optimizer_file
from model.checkpoint_share import CURE, FAILED, STANDS, WRITTEN, Share, room
from model.durable import sync_directory
from model.engine import Engine
from model.errors import Infra
from model.journal import Journal, journal_file, serialized
from model.ranks import Ranks
from model.reading import DIGEST_BYTES
from model.run_folder import checkpoint_folder
from model.tensor_copies import TensorCopies, safetensors_blocks

BYTES_BESIDE = 1 << 20
"""What a checkpoint takes beside its tensors and rows: headers, state, digests, the rest of last blocks."""


def save_checkpoint(
    folder: Path,
    step: int,
    engine: Engine,
    ranks: Ranks,
    journal: Journal,
    state: dict[str, Any],
    keep: int,
    healthy: Collection[int] = (),
) -> Path:
    """`CheckpointWriter.save`, and wait until the checkpoint stands; returns its folder."""
    with CheckpointWriter(folder, ranks) as writer:
        writer.save(step, engine, journal, state, keep, healthy)
    return checkpoint_folder(folder, step)


class CheckpointWriter:
    """Writes checkpoints into `folder`, one at a time. All ranks call each method together, between the same steps.

    `on_standing` is called with a checkpoint's step once it stands. As a context it waits for the one under way.
    """

    def __init__(self, folder: Path, ranks: Ranks, on_standing: Callable[[int], object] = lambda step: None) -> None:
        self._folder = folder
        self._ranks = ranks
        self._on_standing = on_standing
        self._weights, self._moments = TensorCopies(), TensorCopies()
        self._under_way: Share | None = None

    def save(
        self,
        step: int,
        engine: Engine,
        journal: Journal,
        state: dict[str, Any],
        keep: int,
        healthy: Collection[int] = (),
    ) -> None:
        """Begin the checkpoint after `step` steps, once the one before stands.

        When it stands, all but the newest `keep` and the `healthy` are removed, and the damaged: the journal that is
        saved here names these, so they are not forgotten. Raises Infra where the disk has no room.
        """
        self.finish()
        is_first, has_moments = self._ranks.is_first, self._ranks.rank < engine.optimizer_shards
        weights, moments = engine.weights(), engine.optimizer_state() if has_moments else {}
        tables = journal.tables()
        if is_first:
            self._sweep()
        else:
            weights, tables = {}, {}
        needed = self._make_sure_of_room(step, [*weights.values(), *moments.values(), *tables.values()])
        share = Share(self._folder, step, engine.optimizer_shards, needed, keep, healthy)
        if is_first:
            share.temporary.mkdir()
        self._ranks.barrier()
        files: dict[str, Callable[[], list[Any]]] = {}
        if has_moments:
            moments = self._moments.take(moments)
            files[optimizer_file(self._ranks.rank, engine.optimizer_shards)] = lambda: safetensors_blocks(moments)
        if is_first:
            weights = self._weights.take(weights)
            files[WEIGHTS] = lambda: safetensors_blocks(weights)
            files |= {journal_file(name): lambda rows=rows: [serialized(rows)] for name, rows in tables.items()}
            state_now = json.dumps({**state, "step": step}, sort_keys=True).encode()
            files[STATE] = lambda: [state_now]
        share.write(files)
        self._under_way = share

    def advance(self) -> None:
        """Let ranks tell each other how far they are, and complete what all have written; to be called after each step.

        Raises Infra on every rank where one could not write; that one names the file.
        """
        share = self._under_way
        if share is None:
            return
        ranks = self._ranks
        told = torch.zeros(ranks.size, 1 + DIGEST_BYTES, dtype=torch.int64)
        told[ranks.rank] = torch.tensor([share.progress, *share.digest_of_moments])
        progress, *_ = ranks.sum_(told).T.tolist()
        if FAILED in progress:
            self._give_up(share, blamed=progress.index(FAILED))
        elif progress[0] == STANDS:
            self._under_way = None
            self._on_standing(share.step)
        elif ranks.is_first and set(progress) == {WRITTEN}:
            digests = [bytes(row[1:]).hex() for row in told.tolist()]
            share.complete({optimizer_file(rank, share.shards): digests[rank] for rank in range(1, share.shards)})

    def finish(self) -> None:
        """Wait until the checkpoint that is under way stands. Raises Infra as `advance` does."""
        while self._under_way is not None:
            self._under_way.wait()
            self.advance()

    def _give_up(self, share: Share, blamed: int) -> None:
        self._under_way = None
        share.wait()
        # Until here others may be writing into the folder.
        self._ranks.barrier()
        if self._ranks.is_first:
            shutil.rmtree(share.temporary, ignore_errors=True)
        raise share.error or Infra(
            f"rank {blamed} could not write its share of the checkpoint after step {share.step}, and says why itself"
        )

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif self._under_way is not None:
            self._under_way.wait()
            # Other ranks may not know of this error, or may be gone: nothing can be asked of them.
            if self._ranks.size == 1:
                try:
                    self.finish()
                except Exception as second:
                    error.add_note(f"Besides: {second}")

    def _sweep(self) -> None:
        """Remove what a kill or a full disk left half written or half removed."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            sync_directory(self._folder.parent)
        for left_over in self._folder.glob("tmp-*"):
            shutil.rmtree(left_over)

    def _make_sure_of_room(self, step: int, parts: list[Any]) -> int:
        """Bytes that the checkpoint needs, with those of other ranks."""
        own = sum(part.nbytes for part in parts)
        free = shutil.disk_usage(self._folder).free if self._ranks.is_first else 0
        needed, free = self._ranks.sum_(torch.tensor([own, free])).tolist()
        needed += BYTES_BESIDE
        if needed > free:
            raise Infra(
                f"the checkpoint after step {step} was not begun: it {room(needed, free)} in {self._folder}. {CURE}"
            )
        return needed
