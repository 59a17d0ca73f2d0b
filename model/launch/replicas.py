"""Decide which replicas train: those that fail again and again are left out, and taken back after a checkpoint.

A replica is the ranks that hold the model once: one where ranks share the batch alone, else the tensor ranks of all
pipeline stages (`model/engines/layout.py`). Where one of its ranks is lost, the others can compute nothing.

Replicas are numbered as if none was left out. The ranks of a launch are numbered without gaps, so each also has its
number among all ranks of the machine, that of its CUDA device: the device of a lost rank is used by no other.
"""

from collections import Counter
from dataclasses import dataclass

from model.config.train import TrainConfig

MOST_FAILURES = 3
"""Failures of a replica without a new checkpoint after which it is left out."""


@dataclass(frozen=True)
class HostRanks:
    """The ranks of this machine in one launch."""

    ranks: tuple[int, ...]
    """Their numbers among all ranks of the launch, ascending."""
    local: tuple[int, ...]
    """Their numbers among all ranks of this machine, those that are left out too."""
    size: int
    """The number of ranks of all machines."""
    hosts: int = 1
    """The number of machines in the round."""
    left_out: tuple[int, ...] = ()
    """The replicas of this machine that are left out."""
    store: str | None = None
    """`HOST:PORT/PREFIX` of the store through which ranks find each other; None where all are on this machine."""


def ranks_of_host(train: TrainConfig, host: int, hosts: int, store: str) -> HostRanks:
    """Return the ranks of the machine with this number, of `hosts` that are there.

    Machines that may be missing have whole replicas, so that none loses more than its own; else neighbouring ranks.
    """
    here = train.ranks // train.hosts.count
    present = train.model_copy(update={"ranks": here * hosts})
    if train.restarts.fewer_ranks:
        ranks = [
            rank for rank in range(present.ranks) if present.replica(rank) * hosts // present.data_parallel == host
        ]
    else:
        ranks = range(host * here, (host + 1) * here)
    return HostRanks(tuple(ranks), tuple(range(here)), present.ranks, hosts, store=store)


class Replicas:
    """The replicas of a run on one machine, and what failed of them since the last checkpoint."""

    def __init__(self, train: TrainConfig) -> None:
        self._train = train
        self._left_out: set[int] = set()
        self._on_trial: set[int] = set()
        """Those taken back, until the next checkpoint."""
        self._failures: Counter[int] = Counter()
        """Failures since the last checkpoint by the replica that caused them."""

    def ranks(self) -> HostRanks:
        """Return the ranks of the next launch."""
        local = tuple(rank for rank in range(self._train.ranks) if self._train.replica(rank) not in self._left_out)
        return HostRanks(tuple(range(len(local))), local, len(local), left_out=tuple(sorted(self._left_out)))

    def saved(self) -> None:
        """Forget failures, after a new checkpoint."""
        self._failures.clear()
        self._on_trial.clear()

    def failed(self, rank: int | None) -> bool:
        """Count a failure that a rank of the last launch caused, None for one of no single rank; return whether its
        replica is to be left out.

        It is after its third failure without a checkpoint, or its first since it was taken back. Failures of others in
        between do not matter: of several lost replicas any may be the first to end.
        """
        if rank is None:
            return False
        replica = self._train.replica(self.ranks().local[rank])
        self._failures[replica] += 1
        return replica in self._on_trial or self._failures[replica] >= MOST_FAILURES

    def leave_out(self, rank: int) -> bool:
        """Leave out the replica of a rank of the last launch, where that is allowed and others remain; return whether
        it is left out."""
        if not self._train.restarts.fewer_ranks or len(self._left_out) + 1 == self._train.data_parallel:
            return False
        replica = self._train.replica(self.ranks().local[rank])
        self._left_out.add(replica)
        self._on_trial.discard(replica)
        self._failures.clear()
        return True

    def take_back(self) -> tuple[int, ...]:
        """Let all replicas train again; return those that were left out."""
        self._on_trial, self._left_out = self._left_out, set()
        return tuple(sorted(self._on_trial))
