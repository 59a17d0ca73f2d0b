"""Check that this machine computes and communicates correctly, before failed ranks are started again.

`main` runs once for each rank, in a process of its own with the arguments of a rank (`model/train/rank.py`). It
multiplies matrices of small integers, whose products floating point represents exactly, on the rank's device and
threads, and sums a vector over all ranks of this machine. It writes the first fault that it finds into its error
report, or returns 0.

The supervisor checks memory and disk space itself (`find_shortage`). All checks concern one machine. Not run on CUDA
devices so far.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from model.checkpoint.run_folder import CHECKPOINTS, NAMES
from model.distributed.protocol import error_file, rendezvous_file
from model.errors import Infra

if TYPE_CHECKING:
    import torch
    from torch import Tensor


SIZE = 768
"""Rows and columns: sums of 768 products of integers up to 7 are below 2^24, so float32 represents each exactly."""

LARGEST = 7

ROUNDS = 4

EXCHANGED = 1 << 18
"""Elements of the vector that the ranks sum; a megabyte exercises all of gloo's ways of splitting it."""


def find_shortage(out: Path, memory_needed: int) -> str | None:
    """Return what this machine lacks to resume, disk space for one more checkpoint or the memory that the ranks used
    before (`memory_needed`, bytes); None where it lacks neither."""
    checkpoints = out / CHECKPOINTS
    newest = max(checkpoints.glob(NAMES), default=None)
    if newest is not None:
        # What a failed write left behind is deleted before the next one.
        left_over = sum(_bytes(path) for path in checkpoints.glob("tmp-*"))
        free, needed = shutil.disk_usage(out).free + left_over, _bytes(newest)
        if free < needed:
            return (
                f"the disk has {free / 2**20:,.1f} MiB free, and a checkpoint needs {needed / 2**20:,.1f} MiB: free"
                f" space on the disk of {out}"
            )
    available = psutil.virtual_memory().available
    if available < memory_needed:
        return (
            f"{available / 2**20:,.0f} MiB of memory are free, and the ranks used {memory_needed / 2**20:,.0f} MiB:"
            f" stop other processes, or set a smaller train.micro_batch_rows or train.recompute = true"
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


def private_memory(pid: int) -> int:
    """Return the bytes of a process's memory that no file holds; 0 where it has ended or that is unknown.

    What a rank shares with the template counts too, about 100 MB.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(found[0]) * 1024 if found else 0


def find_wrong_product(
    device: "torch.device", dtype: "torch.dtype", multiply: "Callable[[Tensor, Tensor], Tensor] | None" = None
) -> str | None:
    """Multiply matrices whose product is known, several times; return a message that names a wrong element, or None.

    Sums of the product's rows and columns are compared with those that follow from the factors' sums in int64, after
    Freivalds (1977, Probabilistic machines can use less running time): a single wrong element is where a wrong row and
    a wrong column cross.
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
                f"{device} gave a wrong product of matrices in {dtype}, at row {row}, column {column}, though {dtype}"
                f" represents every sum exactly. Its arithmetic cannot be trusted: take it out of service"
            )
    return None


def _integers(stride: int) -> "Tensor":
    """Return a matrix of integers from -7 to 7 without a pattern in rows or columns, i64[SIZE, SIZE]."""
    import torch

    index = torch.arange(SIZE * SIZE, dtype=torch.int64).view(SIZE, SIZE)
    return (index * stride + index // SIZE * 5 + (index * index) % 31) % (2 * LARGEST + 1) - LARGEST


def main(arguments: list[str]) -> int:
    """Check the device and threads of one rank; return 0 where all is correct, else the exit code of Infra."""
    run_file, rank, rank_dir, size, *_ = arguments
    fault = _find_fault(Path(run_file), int(rank), int(size), Path(rank_dir))
    if fault is None:
        return 0
    error_file(Path(rank_dir), int(rank)).write_text(f"{Infra.__name__}: {fault}")
    return Infra.exit_code


def _find_fault(run_file: Path, rank: int, size: int, rank_dir: Path) -> str | None:
    import torch

    from model.config.train import read_run
    from model.distributed.process_group import join_process_group
    from model.engines.runtime import training_device

    train = read_run(run_file).train
    torch.set_num_threads(train.threads)
    try:
        device = training_device(train)
    except Infra as error:
        return str(error)
    for dtype in (torch.float32, torch.float64):
        if (fault := find_wrong_product(device, dtype)) is not None:
            return fault
    if size == 1:
        return None
    with join_process_group(rank, size, rendezvous_file(rank_dir), train.device) as ranks:
        summed = ranks.sum_((torch.arange(EXCHANGED, device=device) * (rank + 1)).to(torch.float64))
        expected = torch.arange(EXCHANGED).to(torch.float64) * (size * (size + 1) // 2)
        wrong = int((summed.cpu() != expected).sum())
    if wrong:
        return f"{wrong} of {EXCHANGED} numbers were wrong after {size} ranks summed them: check their connection"
    return None


if __name__ == "__main__":
    from model.processes import exit_now

    exit_now(main(sys.argv[1:]))
