"""The processes that train one model together: who this one is, and the few things that they tell each other.

Every rank runs the same loop in lockstep. What they exchange is reduced by gloo, whose order of summation depends on
the sizes and the number of ranks alone, so that a run repeats bit by bit.
"""

import datetime
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from model.distributed.heartbeat import NO_HEARTBEAT, Heartbeat

TIMEOUT = datetime.timedelta(minutes=30)
"""How long a rank waits for the others. A dead one is noticed at once, by its closed connections; this is for a slow
one, such as the first rank while it writes a large checkpoint."""


@dataclass(frozen=True)
class Ranks:
    """One process among `size`. Each method must be called by all of them, and does nothing where there is one."""

    rank: int = 0
    size: int = 1
    group: torch.distributed.ProcessGroup | None = None
    """Which of all processes these are; all of them by default."""
    heartbeat: Heartbeat = NO_HEARTBEAT
    """Where this rank shows that it works, and that it waits."""

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks to the launcher and writes what all ranks share."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place."""
        self._reduce(tensor, torch.distributed.ReduceOp.SUM)
        return tensor

    def max_(self, tensor: Tensor) -> Tensor:
        """Largest of each element over all ranks, in place."""
        self._reduce(tensor, torch.distributed.ReduceOp.MAX)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank; the same answer on all."""
        return bool(self.max_(torch.tensor(int(flag))))

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        if self.size > 1:
            with self.heartbeat.waiting():
                torch.distributed.barrier(self.group)

    def _reduce(self, tensor: Tensor, operation: torch.distributed.ReduceOp.RedOpType) -> None:
        if self.size > 1:
            with self.heartbeat.waiting():
                torch.distributed.all_reduce(tensor, operation, self.group)


SINGLE_PROCESS = Ranks()
"""The one process of a run without others."""


@contextmanager
def join_process_group(
    rank: int, size: int, rendezvous: Path | str, device: str = "cpu", heartbeat: Heartbeat = NO_HEARTBEAT
) -> Iterator[Ranks]:
    """Meet the other ranks through the file `rendezvous`, or through the store `HOST:PORT/PREFIX` where they are on
    several machines, and leave them at the end.

    On one machine over the loopback interface: nothing outside can connect, and no port has to be chosen. Tensors on
    CUDA devices are exchanged by NCCL.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/sys/class/net/lo").exists() else "lo0")
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    meet = functools.partial(torch.distributed.init_process_group, backend, rank=rank, world_size=size, timeout=TIMEOUT)
    if isinstance(rendezvous, str):
        meet(store=_store(rendezvous))
    else:
        meet(init_method=f"file://{rendezvous.resolve()}")
    try:
        yield Ranks(rank, size, heartbeat=heartbeat)
    finally:
        torch.distributed.destroy_process_group()


def _store(place: str) -> PrefixStore:
    address, _, prefix = place.partition("/")
    host, _, port = address.rpartition(":")
    return PrefixStore(prefix, TCPStore(host, int(port), is_master=False))
