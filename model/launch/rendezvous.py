"""Let the machines of a run find each other, assign ranks to them, and notice when one is lost or returns.

Supervisors use torch's elastic rendezvous. The machine with the agreed address hosts the store in which all machines
register. The store decides who belongs to a round, so that a machine that is cut off can begin none of its own.
torchrun's agent uses the same handler; `model/launch/supervisor.py` says why torchrun is not used itself.
"""

import os
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import psutil

from model.config.train import TrainerRun
from model.launch.replicas import HostRanks, ranks_of_host

SECONDS_TO_CONNECT = 10

POLL_SECONDS = 0.2

BEATS_PER_SILENCE = 3
"""Heartbeats that may be lost before a machine counts as lost."""

Change = Literal["restarted", "returned"]


class HostLost(Exception):
    """Raised when hosts fail to rendezvous; carries the reason."""


class Rendezvous:
    """This machine's part in the rounds of a run with several hosts."""

    def __init__(self, run: TrainerRun) -> None:
        hosts = run.train.hosts
        assert hosts.address is not None, "several hosts have an address"
        self._run = run
        self._hosts = hosts
        self._host, _, port = hosts.address.rpartition(":")
        self._port = int(port)
        self._handler: Any = None
        self._host_ranks: HostRanks | None = None

    @property
    def is_head(self) -> bool:
        """Whether this machine has the agreed address."""
        return interface_of(socket.gethostbyname(self._host)) is not None

    @property
    def name(self) -> str:
        """The address from which this machine reaches the others; part of file names."""
        return own_address(self._host)

    def next_round(self, keep_waiting: Callable[[], bool]) -> HostRanks | None:
        """Join the next round and return this machine's ranks; None where `keep_waiting`, polled meanwhile, is false.

        Raises HostLost where the machine with the address cannot be reached, or too few machines joined within
        `train.start_seconds`.
        """
        found: list[Any] = []
        # In a thread: the library waits for minutes and does not react to a request to stop.
        thread = threading.Thread(target=self._join, args=(found,), daemon=True)
        thread.start()
        while thread.is_alive():
            if not keep_waiting():
                return None
            thread.join(POLL_SECONDS)
        if isinstance(found[0], Exception):
            self._disconnect()
            raise HostLost(f"{self._hosts.address}: {type(found[0]).__name__}: {found[0]}") from found[0]
        self._host_ranks = found[0]
        return self._host_ranks

    def change(self) -> Change | None:
        """Return whether another machine waits for a new round: one of this round that restarted, or one that returned.

        Raises HostLost where the machine with the address cannot be reached.
        """
        assert self._host_ranks is not None, "there was a round"
        try:
            waiting = self._handler.num_nodes_waiting()
        except Exception as error:
            self._disconnect()
            raise HostLost(f"{self._hosts.address}: {type(error).__name__}: {error}") from error
        if not waiting:
            return None
        return "returned" if self._host_ranks.hosts < self._hosts.count else "restarted"

    def _join(self, found: list[Any]) -> None:
        try:
            found.append(self._joined())
        except Exception as error:
            found.append(error)

    def _joined(self) -> HostRanks:
        self._handler = self._handler or self._connect()
        info = self._handler.next_rendezvous()
        # Each round has a prefix of its own, so that keys of an earlier round are never read.
        if info.rank == 0:
            info.store.set("launch", uuid.uuid4().hex[:8])
        launch = info.store.get("launch").decode()
        return ranks_of_host(self._run.train, info.rank, info.world_size, f"{self._hosts.address}/{launch}")

    def _connect(self) -> Any:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

        address = own_address(self._host)
        interface = interface_of(address)
        assert interface is not None, f"{address} is one of this machine"
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ[variable] = interface
        # By default a machine publishes its own store's address in its first round only, and one that joins later waits
        # for it in vain (torch 2.13.0). We use another store, but the library waits all the same.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        fewest = 1 if self._run.train.restarts.fewer_ranks else self._hosts.count
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=f"{self._host}:{self._port}",
            run_id=self._run.tokenizer_digest,
            min_nodes=fewest,
            max_nodes=self._hosts.count,
            local_addr=address,
            is_host=str(self.is_head).lower(),
            read_timeout=SECONDS_TO_CONNECT,
            join_timeout=max(1, round(self._run.train.start_seconds)),
            last_call_timeout=max(1, round(self._hosts.wait_seconds)) if fewest < self._hosts.count else 1,
            keep_alive_interval=max(1, round(self._hosts.silence_seconds / BEATS_PER_SILENCE)),
            keep_alive_max_attempt=BEATS_PER_SILENCE,
        )
        backend, store = create_backend(parameters)
        return create_handler(store, backend, parameters)

    def _disconnect(self) -> None:
        """Drop a broken connection, which the library does not repair, so that the next round connects again."""
        if self._handler is not None:
            with suppress(Exception):
                self._handler._stop_heartbeats()
        if not self.is_head:
            self._handler = None


def own_address(other: str) -> str:
    """Return the address from which this machine reaches `other`; that of `other` where it is this machine."""
    target = socket.gethostbyname(other)
    if interface_of(target) is not None:
        return target
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # No packet is sent: the kernel only looks up the route.
        probe.connect((target, 9))
        return probe.getsockname()[0]


def interface_of(address: str) -> str | None:
    """Return the network interface of this machine that has the address, or None."""
    for name, found in psutil.net_if_addrs().items():
        if any(one.family == socket.AF_INET and one.address == address for one in found):
            return name
    return None
