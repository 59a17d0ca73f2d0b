"""The process group of a training, and the few collectives that it needs.

Every rank runs the same loop in lockstep. Gloo reduces what they exchange in an order that depends only on the sizes
and the number of ranks, so that a run repeats bit by bit.
"""

import datetime
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from model.distributed.heartbeat import NO_HEARTBEAT, Heartbeat

TIMEOUT = datetime.timedelta(minutes=30)
"""How long a rank waits for the others. A dead one is noticed at once by its closed connections; this limit is for slow
ones, such as the first rank while it writes a large checkpoint."""


@dataclass(frozen=True)
class Ranks:
    """One process among `size`. All of them must call each method; with one process a method does nothing."""

    rank: int = 0
    size: int = 1
    group: torch.distributed.ProcessGroup | None = None
    """The processes among all; all of them by default."""
    heartbeat: Heartbeat = NO_HEARTBEAT
    """Marks the time that this rank waits for others."""
    left_out: tuple[int, ...] = ()
    """The replicas that a supervisor left out (`model/launch/replicas.py`)."""

    @property
    def is_first(self) -> bool:
        """Whether this rank writes messages and the files that all ranks share."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place, and return it."""
        self._reduce(tensor, torch.distributed.ReduceOp.SUM)
        return tensor

    def max_(self, tensor: Tensor) -> Tensor:
        """Take the maximum of each element over all ranks, in place, and return the tensor."""
        self._reduce(tensor, torch.distributed.ReduceOp.MAX)
        return tensor

    def tree_sum(self, vector: Tensor, holders: int) -> Tensor:
        """Return the sum of a vector over the first `holders` ranks, the same on all: pairs of neighbours are added,
        then pairs of these sums, and so on; one without a neighbour is its own sum.

        Each rank adds a piece of the vector of every rank, in that order whatever the number of ranks.
        """
        piece = -(-len(vector) // self.size)
        sent = torch.nn.functional.pad(vector, (0, piece * self.size - len(vector)))
        pieces, summed = torch.empty_like(sent), torch.empty_like(sent)
        with self.heartbeat.waiting():
            torch.distributed.all_to_all_single(pieces, sent, group=self.group)
        terms = list(pieces.split(piece)[:holders])
        while len(terms) > 1:
            terms = [sum(terms[at + 1 : at + 2], terms[at]) for at in range(0, len(terms), 2)]
        with self.heartbeat.waiting():
            torch.distributed.all_gather_into_tensor(summed, terms[0], self.group)
        return summed[: len(vector)]

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank; the same on all."""
        return bool(self.max_(torch.tensor(int(flag))))

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        if self.size > 1:
            with self.heartbeat.waiting():
                torch.distributed.barrier(self.group)

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Wait until the device has passed an event, before which it may wait for other ranks."""
        with self.heartbeat.waiting() if self.size > 1 else nullcontext():
            event.synchronize()

    def _reduce(self, tensor: Tensor, operation: torch.distributed.ReduceOp.RedOpType) -> None:
        if self.size > 1:
            with self.heartbeat.waiting():
                torch.distributed.all_reduce(tensor, operation, self.group)


SINGLE_PROCESS = Ranks()
"""A training in one process."""


def rank_rows(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the rows [begin, end) of one rank of `size`, of a tensor with so many: those of `torch.chunk`."""
    piece = -(-rows // size)
    return min(rank * piece, rows), min((rank + 1) * piece, rows)


@contextmanager
def join_process_group(
    rank: int, size: int, rendezvous: Path | str, device: str = "cpu", heartbeat: Heartbeat = NO_HEARTBEAT
) -> Iterator[Ranks]:
    """Join the process group, and leave it at the end of the block.

    Ranks meet through the file `rendezvous`, or through the TCP store `HOST:PORT/PREFIX` where they are on several
    machines. On one machine they use the loopback interface: nothing outside can connect, and no port has to be chosen.
    Tensors on CUDA devices are exchanged by NCCL.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/sys/class/net/lo").exists() else "lo0")
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    init = functools.partial(torch.distributed.init_process_group, backend, rank=rank, world_size=size, timeout=TIMEOUT)
    if isinstance(rendezvous, str):
        init(store=_store(rendezvous))
    else:
        init(init_method=f"file://{rendezvous.resolve()}")
    try:
        yield Ranks(rank, size, heartbeat=heartbeat)
    finally:
        torch.distributed.destroy_process_group()


def _store(rendezvous: str) -> PrefixStore:
    address, _, prefix = rendezvous.partition("/")
    host, _, port = address.rpartition(":")
    return PrefixStore(prefix, TCPStore(host, int(port), is_master=False))
