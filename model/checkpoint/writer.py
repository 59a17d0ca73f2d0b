"""Checkpoints, written beside the training: the step loop stands still while tensors are copied, and for nothing else.

A thread of each rank writes what that rank holds: files, their digests on the way, fsync. When all ranks have told each
other that theirs are down, the first one's thread writes COMPLETE, renames the folder and removes older checkpoints.
Ranks tell each other at the ends of steps, in the loop's own thread: gloo matches calls by their order, and those of a
second thread have none.

What one rank writes of a checkpoint, in a thread of its own, and what the first rank does when all have.

Tensors set aside fast, and written as safetensors while their owner goes on changing them.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from model.checkpoint.checkpoint import STATE, WEIGHTS, discard, optimizer_file, standing_steps, superseded
from model.checkpoint.complete_marker import marker
from model.checkpoint.metrics import Journal, journal_file, serialized
from model.checkpoint.run_folder import COMPLETE, checkpoint_folder
from model.digests import DIGEST_BYTES
from model.distributed.process_group import Ranks
from model.engines.base import Engine
from model.errors import Infra
from model.files import sync_directory, write_synced

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


class Share:
    """One rank's share of the checkpoint after `step` steps, of which others hold `shards` of the optimizer's state.

    The loop reads `progress` while the thread moves it on.
    """

    def __init__(self, folder: Path, step: int, shards: int, needed: int, keep: int, healthy: Collection[int]) -> None:
        self.step = step
        self.shards = shards
        self.temporary = folder / f"tmp-{step:09d}"
        self.progress = WRITING
        self.error: BaseException | None = None
        """Why it failed."""
        self.digest_of_moments = bytes(DIGEST_BYTES)
        """Of this rank's part of the optimizer's state, once it is written."""
        self._needed = needed
        self._keep, self._healthy = keep, healthy
        self._target = checkpoint_folder(folder, step)
        self._digests: dict[str, str] = {}
        self._at = self.temporary
        """What is being written or removed."""
        self._thread: threading.Thread | None = None

    def write(self, files: Mapping[str, Callable[[], list[Any]]]) -> None:
        """Begin to write files, given as blocks of bytes that are asked for when a file's turn has come."""

        def write() -> int:
            for name, blocks in files.items():
                self._at = self.temporary / name
                self._digests[name] = write_synced(self._at, blocks())
                if name.startswith("optimizer"):
                    self.digest_of_moments = bytes.fromhex(self._digests[name])
            return WRITTEN

        self._begin(write)

    def complete(self, digests_of_others: Mapping[str, str]) -> None:
        """Begin to make a checkpoint of what all ranks have written, given the digests of what others wrote."""
        self.progress = COMPLETING

        def complete() -> int:
            self._at = self.temporary / COMPLETE
            write_synced(self._at, [marker({**self._digests, **digests_of_others})])
            sync_directory(self.temporary)
            self._at = self._target
            if self._target.exists():
                discard(self._target)
            os.rename(self.temporary, self._target)
            folder = self._target.parent
            sync_directory(folder)
            gone = superseded(standing_steps(folder), self.step, self._keep, self._healthy)
            for old in [*(checkpoint_folder(folder, step) for step in gone), *folder.glob("damaged-*")]:
                self._at = old
                discard(old)
            return STANDS

        self._begin(complete)

    def wait(self) -> None:
        """Until the thread has done what it was given."""
        if self._thread is not None:
            self._thread.join()

    def _begin(self, work: Callable[[], int]) -> None:
        self._thread = threading.Thread(target=self._do, args=(work,), name=f"checkpoint-{self.step}", daemon=True)
        self._thread.start()

    def _do(self, work: Callable[[], int]) -> None:
        try:
            self.progress = work()
        except BaseException as error:
            # Whatever it is: a thread that ended without a word would be waited for for ever.
            self.error = self._explained(error) if isinstance(error, OSError) else error
            self.progress = FAILED

    def _explained(self, error: OSError) -> Infra:
        try:
            free = shutil.disk_usage(self.temporary.parent).free
        except OSError:
            free = 0
        return Infra(
            f"the checkpoint after step {self.step} could not be written: {self._at}: {error.strerror}. The whole"
            f" {room(self._needed, free)}. {CURE}"
        )


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


WRITING, WRITTEN, COMPLETING, STANDS, FAILED = range(5)
"""How far a rank is. Only the first one completes a checkpoint, and knows when it stands."""

CURE = "The checkpoints before it stand. Make room, or lower train.keep_checkpoints, and run again to go on."


def room(needed: int, free: int) -> str:
    """What a checkpoint needs on disk and what there is, in words."""
    return f"needs {needed / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free"


_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
"""The format's names of types, in its order: the widest lie first in a file, so that all are aligned."""


class TensorCopies:
    """Copies in memory that is kept for the next ones: fresh memory takes three times as long to fill.

    For tensors on CUDA devices that memory is pinned, and all copies are under way at once.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy all tensors; returns the copies, which stay until the next are taken."""
        taken: dict[str, Tensor] = {}
        devices: set[torch.device] = set()
        for name, tensor in tensors.items():
            copy = self._copies.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            taken[name] = copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
            if tensor.is_cuda:
                devices.add(tensor.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        self._copies = taken
        return taken


def safetensors_blocks(tensors: Mapping[str, Tensor]) -> list[Any]:
    """The blocks of a safetensors file that holds contiguous tensors of the processor, without a copy.

    Byte for byte what the library's `save_file` writes. As blocks their digest is taken on the way to disk, which for
    300 MB takes half the time of writing and reading again.
    """
    order = list(_NAMES)
    names = sorted(tensors, key=lambda name: (-order.index(tensors[name].dtype), name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[tensors[name].dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    data = (tensors[name].reshape(-1).view(torch.uint8).numpy() for name in names)
    return [len(text).to_bytes(8, "little"), text, *data]
