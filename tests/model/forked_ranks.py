"""Ranks forked from one process that has imported everything: importing takes longer than what they then do."""

import gc
import os
import traceback
from collections.abc import Callable

import torch
import torch._dynamo  # FSDP would import it in each rank.

from model.processes import die_with_parent, exit_now


def run_ranks(size: int, work: Callable[[int], None]) -> None:
    """Call `work` with the rank, in a process for each; AssertionError if one fails, whose traceback it printed."""
    processes = [_fork(rank, work) for rank in range(size)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    assert not any(codes), f"the ranks ended with {codes}"


def _fork(rank: int, work: Callable[[int], None]) -> int:
    parent = os.getpid()
    if process := os.fork():
        return process
    try:
        die_with_parent(parent=parent)
        torch.set_num_threads(1)
        # What the first process imported is not garbage: going through it would copy its pages.
        gc.freeze()
        work(rank)
    except BaseException:
        traceback.print_exc()
        exit_now(1)
    return exit_now(0)
