"""Whether this machine still computes and exchanges what it should: looked at before failed ranks are started again.

`python -m model.launch.diagnostics run.json PARENT RANK MEETING SIZE`, one fresh process for each rank to come. It
multiplies matrices of small integers on the rank's device and threads, whose sums floating point holds exactly, and
adds up a vector over all ranks. What the process finds wrong stands in its words file; where nothing is, it exits with
0.

What needs no arithmetic, memory and disk, the supervisor sees for itself (`shortage`). All of it speaks of one machine.
Not run on CUDA devices so far.
"""

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from model.checkpoint.run_folder import CHECKPOINTS, PREFIX
from model.distributed.protocol import error_file, rendezvous_file
from model.errors import Infra
from model.processes import die_with_parent

if TYPE_CHECKING:
    import torch
    from torch import Tensor


SIZE = 768
"""Rows and columns: sums of 768 products of integers up to 7 stay below 2^24, so float32 holds each exactly."""

LARGEST = 7

ROUNDS = 4

EXCHANGED = 1 << 18
"""Elements of the vector that ranks add up; a megabyte goes through all of gloo's ways of cutting it."""


def shortage(out: Path, memory_needed: int) -> str | None:
    """What this machine lacks to go on: room for one more checkpoint, or the memory that ranks took last."""
    checkpoints = out / CHECKPOINTS
    newest = max(checkpoints.glob(f"{PREFIX}*"), default=None)
    if newest is not None:
        # What a write that failed left behind is removed before the next one.
        left_over = sum(_bytes(path) for path in checkpoints.glob("tmp-*"))
        free, needed = shutil.disk_usage(out).free + left_over, _bytes(newest)
        if free < needed:
            return (
                f"the disk has {free / 2**20:,.1f} MiB free where a checkpoint takes {needed / 2**20:,.1f} MiB: make"
                f" room where {out} is"
            )
    available = available_memory()
    if available is not None and available < memory_needed:
        return (
            f"{available / 2**20:,.0f} MiB of memory are free, and the ranks took {memory_needed / 2**20:,.0f} MiB: end"
            f" what else runs, or set train.micro_batch_rows smaller or train.recompute = true"
        )
    return None


def _bytes(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


def available_memory() -> int | None:
    """Bytes that processes may still take on this machine; None where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def private_memory(pid: int) -> int:
    """Bytes of memory that a process shares with no other; 0 where it is gone or the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(found[0]) * 1024 if found else 0


def wrong_product(
    device: "torch.device", dtype: "torch.dtype", multiply: "Callable[[Tensor, Tensor], Tensor] | None" = None
) -> str | None:
    """Multiply matrices whose product is known, several times over; says which element was wrong, None where all are
    right.

    Sums of the product's rows and columns are compared with those that follow from the factors' sums in int64, after
    Freivalds (1977, Probabilistic machines can use less running time): a single wrong element stands where a wrong row
    and a wrong column meet.
    """
    import torch

    multiply = multiply or torch.matmul
    for round_ in range(ROUNDS):
        left, right = _integers(3 + 2 * round_), _integers(11 + 2 * round_)
        found = multiply(left.to(device, dtype), right.to(device, dtype)).cpu()
        whole = found.round().to(torch.int64)
        rows = whole.sum(1) - left @ right.sum(1)
        columns = whole.sum(0) - left.sum(0) @ right
        if not torch.equal(whole.to(dtype), found) or rows.any() or columns.any():
            row, column = int(rows.abs().argmax()), int(columns.abs().argmax())
            return (
                f"{device} gave a wrong product of matrices in {dtype}: in row {row}, column {column}, where {dtype}"
                f" holds every sum exactly. Its arithmetic cannot be trusted: take it out of use"
            )
    return None


def _integers(stride: int) -> "Tensor":
    """A matrix of integers from -7 to 7 without pattern in rows or columns, i64[SIZE, SIZE]."""
    import torch

    places = torch.arange(SIZE * SIZE, dtype=torch.int64).view(SIZE, SIZE)
    return (places * stride + places // SIZE * 5 + (places * places) % 31) % (2 * LARGEST + 1) - LARGEST


def main(arguments: list[str]) -> int:
    """Diagnose one rank's place; returns 0 where all is well, else the exit code of Infra."""
    run_file, parent, rank, meeting, size = arguments
    die_with_parent(signal.SIGKILL, parent=int(parent))
    words = _wrong(Path(run_file), int(rank), int(size), Path(meeting))
    if words is None:
        return 0
    error_file(Path(meeting), int(rank)).write_text(f"{Infra.__name__}: {words}")
    return Infra.exit_code


def _wrong(run_file: Path, rank: int, size: int, meeting: Path) -> str | None:
    import torch

    from model.config.train import read_run
    from model.distributed.process_group import join_process_group
    from model.engines.runtime import training_device

    train = read_run(run_file).train
    torch.set_num_threads(train.threads)
    device = training_device(train, rank)
    for dtype in (torch.float32, torch.float64):
        if (words := wrong_product(device, dtype)) is not None:
            return words
    if size == 1:
        return None
    with join_process_group(rank, size, rendezvous_file(meeting), train.device) as ranks:
        summed = ranks.sum_((torch.arange(EXCHANGED, device=device) * (rank + 1)).to(torch.float64))
        expected = torch.arange(EXCHANGED).to(torch.float64) * (size * (size + 1) // 2)
        wrong = int((summed.cpu() != expected).sum())
    if wrong:
        return f"{wrong} of {EXCHANGED} numbers were wrong when {size} ranks added them up: look at their connection"
    return None


if __name__ == "__main__":
    from model.processes import exit_now

    exit_now(main(sys.argv[1:]))
