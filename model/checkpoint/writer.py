"""Write checkpoints while training goes on: the step loop waits only while tensors are copied.

A thread of each rank writes what that rank holds, computes digests on the way, and calls fsync. When all ranks have
written their share, the first rank's thread writes COMPLETE, renames the folder and deletes older checkpoints. Ranks
exchange their progress at the ends of steps, in the loop's own thread: gloo matches collective calls by their order,
and calls from a second thread have none.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.checkpoint.checkpoint import (
    BEGINS,
    STATE,
    checkpoint_steps,
    discard,
    optimizer_file,
    steps_to_delete,
    weights_file,
)
from model.checkpoint.complete_marker import marker
from model.checkpoint.metrics import MetricsLog, serialized, table_file
from model.checkpoint.run_folder import COMPLETE, NAMES, checkpoint_folder
from model.checkpoint.state import CheckpointState
from model.digests import DIGEST_BYTES
from model.distributed.process_group import Ranks
from model.engines.base import Engine
from model.errors import Infra
from model.files import remove, sync_directory, sync_file, write_synced

OVERHEAD_BYTES = 1 << 20
"""Disk space of a checkpoint in addition to its tensors and rows: headers, state, digests, unfilled disk blocks."""

WRITING, WRITTEN, COMPLETING, PUBLISHED, FAILED = range(5)
"""A rank's progress with a checkpoint. Only the first rank completes and publishes one."""

HINT = "Earlier checkpoints are intact. Free disk space, or lower train.keep_checkpoints, and run again to resume."

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
"""The format's names of dtypes, in its order: the widest come first in a file, so that all are aligned."""


class Share:
    """One rank's share of the checkpoint after `step` steps, written in a thread.

    `shards` are the numbers of ranks that hold a part of the weights and of the optimizer's state. The step loop reads
    `progress`, which the thread sets.
    """

    def __init__(
        self, folder: Path, step: int, shards: tuple[int, int], needed: int, keep: int, healthy: Collection[int]
    ) -> None:
        self.step = step
        self.shards = shards
        self.temporary = folder / f"tmp-{step:09d}"
        self.progress = WRITING
        self.error: BaseException | None = None
        """Why writing failed."""
        self.digests_of_shards = {"weights": bytes(DIGEST_BYTES), "optimizer": bytes(DIGEST_BYTES)}
        """Digests of this rank's shards of the weights and of the optimizer's state, once they are written."""
        self._needed = needed
        self._keep, self._healthy = keep, healthy
        self._target = checkpoint_folder(folder, step)
        self._digests: dict[str, str] = {}
        self._at = self.temporary
        """The path that is being written or deleted, for error messages."""
        self._thread: threading.Thread | None = None

    def write(self, files: Mapping[str, Callable[[], list[Any]]]) -> None:
        """Start writing files, given by name as functions that return their blocks, each called in its turn."""

        def write() -> int:
            for name, blocks in files.items():
                self._at = self.temporary / name
                self._digests[name] = write_synced(self._at, blocks())
                for kind in self.digests_of_shards:
                    if name.startswith(kind):
                        self.digests_of_shards[kind] = bytes.fromhex(self._digests[name])
            return WRITTEN

        self._begin(write)

    def complete(self, digests_of_others: Mapping[str, str]) -> None:
        """Start publishing the checkpoint that all ranks have written, given the digests of the other ranks' files."""
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
            steps = steps_to_delete(checkpoint_steps(folder), self.step, self._keep, self._healthy)
            for old in [*(checkpoint_folder(folder, step) for step in steps), *folder.glob(f"damaged-{NAMES}")]:
                self._at = old
                discard(old)
            return PUBLISHED

        self._begin(complete)

    def wait(self) -> None:
        """Wait until the thread has finished its work."""
        if self._thread is not None:
            self._thread.join()

    def _begin(self, work: Callable[[], int]) -> None:
        self._thread = threading.Thread(target=self._do, args=(work,), name=f"checkpoint-{self.step}", daemon=True)
        self._thread.start()

    def _do(self, work: Callable[[], int]) -> None:
        try:
            self.progress = work()
        except BaseException as error:
            # Any exception: the ranks would wait for ever for a thread that ended without setting its progress.
            self.error = self._explain(error) if isinstance(error, OSError) else error
            self.progress = FAILED

    def _explain(self, error: OSError) -> Infra:
        try:
            free = shutil.disk_usage(self.temporary.parent).free
        except OSError:
            free = 0
        return Infra(
            f"the checkpoint after step {self.step} could not be written: {self._at}: {error.strerror}. The whole"
            f" {describe_space(self._needed, free)}. {HINT}"
        )


def describe_space(needed: int, free: int) -> str:
    """Return a phrase with the disk space that a checkpoint needs and that is free."""
    return f"needs {needed / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free"


class CheckpointWriter:
    """Writes checkpoints into `folder`, one at a time. All ranks call each method together, between the same steps.

    `on_published` is called with a checkpoint's step once the checkpoint is complete. Leaving the context waits for the
    checkpoint that is being written.
    """

    def __init__(self, folder: Path, ranks: Ranks, on_published: Callable[[int], object] = lambda step: None) -> None:
        self._folder = folder
        self._ranks = ranks
        self._on_published = on_published
        self._weights, self._moments = TensorCopies(), TensorCopies()
        self._under_way: Share | None = None

    def save(
        self,
        step: int,
        engine: Engine,
        log: MetricsLog,
        state: CheckpointState,
        keep: int,
        healthy: Collection[int] = (),
    ) -> None:
        """Start writing the checkpoint after `step` steps, once the one before is complete.

        When it is complete, damaged checkpoints and all but the newest `keep` and the `healthy` are deleted; the log
        saved here records the damaged ones. Raises Infra where the disk has too little space.
        """
        self.finish()
        is_first, has_moments = self._ranks.is_first, self._ranks.rank < engine.optimizer_shards
        weights, moments = engine.weights(), engine.optimizer_state() if has_moments else {}
        has_weights, begins = self._ranks.rank < engine.weight_shards, engine.begins()
        tables = log.tables()
        if is_first:
            self._remove_leftovers()
        else:
            weights, tables = weights if has_weights else {}, {}
        needed = self._check_space(step, [*weights.values(), *moments.values(), *tables.values()])
        shards = engine.weight_shards, engine.optimizer_shards
        share = Share(self._folder, step, shards, needed, keep, healthy)
        if is_first:
            share.temporary.mkdir()
        self._ranks.barrier()
        files: dict[str, Callable[[], list[Any]]] = {}
        if has_moments:
            moments = self._moments.copy(moments)
            files[optimizer_file(self._ranks.rank, engine.optimizer_shards)] = lambda: safetensors_blocks(
                moments, begins
            )
        if has_weights:
            weights = self._weights.copy(weights)
            files[weights_file(self._ranks.rank, engine.weight_shards)] = lambda: safetensors_blocks(weights, begins)
        if is_first:
            files |= {table_file(name): lambda rows=rows: [serialized(rows)] for name, rows in tables.items()}
            state_now = json.dumps(state, sort_keys=True).encode()
            files[STATE] = lambda: [state_now]
        share.write(files)
        self._under_way = share

    def advance(self) -> None:
        """Exchange the ranks' progress and publish what all have written; to be called after each step.

        Raises Infra on every rank where one could not write; on that rank the error names the file.
        """
        share = self._under_way
        if share is None:
            return
        ranks = self._ranks
        table = torch.zeros(ranks.size, 1 + 2 * DIGEST_BYTES, dtype=torch.int64)
        table[ranks.rank] = torch.tensor([share.progress, *b"".join(share.digests_of_shards.values())])
        progress, *_ = ranks.sum_(table).T.tolist()
        if FAILED in progress:
            self._give_up(share, blamed=progress.index(FAILED))
        elif progress[0] == PUBLISHED:
            self._under_way = None
            self._on_published(share.step)
        elif ranks.is_first and set(progress) == {WRITTEN}:
            digests = [bytes(row[1:]).hex() for row in table.tolist()]
            half, (weights, moments) = 2 * DIGEST_BYTES, share.shards
            of_others = {weights_file(rank, weights): digests[rank][:half] for rank in range(1, weights)}
            of_others |= {optimizer_file(rank, moments): digests[rank][half:] for rank in range(1, moments)}
            share.complete(of_others)

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is complete. Raises Infra as `advance` does."""
        while self._under_way is not None:
            self._under_way.wait()
            self.advance()

    def _give_up(self, share: Share, blamed: int) -> None:
        self._under_way = None
        share.wait()
        # Until this barrier other ranks may be writing into the folder.
        self._ranks.barrier()
        if self._ranks.is_first:
            shutil.rmtree(share.temporary, ignore_errors=True)
        raise share.error or Infra(
            f"rank {blamed} could not write its share of the checkpoint after step {share.step}; its own error says why"
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
            # Other ranks may not know of this error, or may have died: no collective call is possible.
            if self._ranks.size == 1:
                try:
                    self.finish()
                except Exception as second:
                    error.add_note(f"Also: {second}")

    def _remove_leftovers(self) -> None:
        """Delete what a kill or a full disk left half written or half deleted."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            sync_directory(self._folder.parent)
        for left_over in self._folder.glob("tmp-*"):
            remove(left_over)

    def _check_space(self, step: int, parts: list[Any]) -> int:
        """Return the bytes that the checkpoint needs over all ranks; Infra where fewer are free."""
        own = sum(part.nbytes for part in parts)
        free = shutil.disk_usage(self._folder).free if self._ranks.is_first else 0
        needed, free = self._ranks.sum_(torch.tensor([own, free])).tolist()
        needed += OVERHEAD_BYTES
        if needed > free:
            raise Infra(
                f"the checkpoint after step {step} was not begun: it {describe_space(needed, free)} in {self._folder}."
                f" {HINT}"
            )
        return needed


class TensorCopies:
    """Copies tensors into memory that is reused: fresh memory takes three times as long to fill.

    For tensors on CUDA devices the memory is pinned, and all copies run at once.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy all tensors to the CPU; the copies returned are valid until the next call."""
        copies: dict[str, Tensor] = {}
        devices: set[torch.device] = set()
        for name, tensor in tensors.items():
            copy = self._copies.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            copies[name] = copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
            if tensor.is_cuda:
                devices.add(tensor.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        self._copies = copies
        return copies


def safetensors_blocks(tensors: Mapping[str, Tensor], begins: Mapping[str, tuple[int, ...]] | None = None) -> list[Any]:
    """Return the blocks of a safetensors file with contiguous CPU tensors, without copying them.

    `begins` are the places of parts of tensors, by name (`checkpoint.BEGINS`).
    Byte for byte what the library's `save_file` writes. Blocks can be digested on the way to disk, which for 300 MB
    takes half the time of writing the file and reading it again.
    """
    head, places = safetensors_header(tensors, {BEGINS: json.dumps(begins)} if begins else None)
    return [head, *(tensors[name].reshape(-1).view(torch.uint8).numpy() for name in places)]


def safetensors_header(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, int]]:
    """Return what a file with these tensors begins with, and where in the file the bytes of each begin, in order."""
    order = list(_NAMES)
    names = sorted(tensors, key=lambda name: (-order.index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[tensors[name].dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return head, {name: len(head) + header[name]["data_offsets"][0] for name in names}


def write_parts(
    path: Path,
    network: nn.Module,
    parts: Mapping[str, Tensor],
    begins: Mapping[str, tuple[int, ...]],
    ranks: Ranks,
) -> None:
    """Write a safetensors file of all weights, of which each rank has the parts that begin there; all ranks call this.

    Every rank writes its own bytes into the one file, so that none ever has more than its part. `network` has the whole
    shapes, on the meta device.
    """
    shapes = dict(network.named_parameters())
    head, places = safetensors_header(shapes)
    if ranks.is_first:
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + sum(shape.nbytes for shape in shapes.values()))
    ranks.barrier()
    for name, part in parts.items():
        own = part.cpu().numpy()
        whole = np.memmap(path, own.dtype, "r+", places[name], tuple(shapes[name].shape))
        sides = zip(begins[name], own.shape, strict=True)
        whole[tuple(slice(begin, begin + length) for begin, length in sides)] = own
        whole.flush()
    sync_file(path)
    ranks.barrier()
