"""Measure this machine's roofline, since no data sheet describes a shared processor."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

MATRIX = 1024

COPIED_BYTES = 2**28

SECONDS = 0.5
"""Seconds of each measurement, after one repetition that warms up; the fastest repetition counts."""


@dataclass(frozen=True)
class Machine:
    """FLOP/s of a large matrix product, and bytes/s of a large copy (bytes read and bytes written both count)."""

    flops_s: float
    bytes_s: float
    threads: int
    dtype: str

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which arithmetic is the limit and not memory."""
        return self.flops_s / self.bytes_s

    def bound_seconds(self, flops: float, moved: float) -> float:
        """Return the least seconds that work can take on the roofline."""
        return max(flops / self.flops_s, moved / self.bytes_s)


def measured_machine(dtype: torch.dtype = torch.float32) -> Machine:
    """Measure with PyTorch's current number of threads; takes about a second."""
    left, right = (torch.rand(MATRIX, MATRIX).to(dtype) for _ in range(2))
    product = _fastest(lambda: torch.mm(left, right))
    source = torch.ones(COPIED_BYTES // 4)
    target = torch.empty_like(source)
    copy = _fastest(lambda: target.copy_(source))
    name = str(dtype).removeprefix("torch.")
    return Machine(2.0 * MATRIX**3 / product, 2.0 * COPIED_BYTES / copy, torch.get_num_threads(), name)


def _fastest(work: Callable[[], object]) -> float:
    clock = clock_for(torch.get_num_threads())
    work()
    best = float("inf")
    end = time.perf_counter() + SECONDS
    while best == float("inf") or time.perf_counter() < end:
        began = clock()
        work()
        best = min(best, clock() - began)
    return best


def clock_for(threads: int) -> Callable[[], float]:
    """Return the clock for a process with this number of threads.

    For one thread it is the thread's own time, so that other processes do not count; for several it is wall-clock time,
    since no thread knows how long the others took.
    """
    return time.thread_time if threads == 1 else time.perf_counter
