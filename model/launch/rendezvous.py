"""Machines that find each other, and notice when one is gone or back: torch's elastic rendezvous, asked by supervisors.

The machine with the agreed address keeps the store in which all write that they are there. It says who belongs to a
round, so that a machine that is cut off can begin none of its own. torchrun's agent stands on the same handler; why it
is not used itself stands in `model/launch/supervisor.py`.

Which of all ranks a machine has in one launch, and how they find the others.
"""

import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from model.config.train import TrainerRun

SIOCGIFADDR = 0x8915

SECONDS_TO_CONNECT = 10

ASK_EVERY_SECONDS = 0.2

BEATS_PER_SILENCE = 3
"""Signs of life that may be lost before a machine counts as gone."""

Change = Literal["restarted", "returned"]


class Lost(Exception):
    """The machines did not come together: why, in words."""


@dataclass(frozen=True)
class Place:
    """A machine among those that are there."""

    first: int
    """Its first rank; it has those behind it, up to `local` of them."""
    local: int
    size: int
    """Ranks of all machines together."""
    hosts: int = 1
    """Machines that are there."""
    store: str | None = None
    """`HOST:PORT/PREFIX` of the store through which ranks find each other; None where all are on this machine."""

    @property
    def ranks(self) -> range:
        """The machine's own."""
        return range(self.first, self.first + self.local)


class Rendezvous:
    """This machine's part in the meetings of a run with several hosts."""

    def __init__(self, run: TrainerRun) -> None:
        hosts = run.train.hosts
        assert hosts.address is not None, "several hosts have an address"
        self._run = run
        self._hosts = hosts
        self._host, _, port = hosts.address.rpartition(":")
        self._port = int(port)
        self._handler: Any = None
        self._store: Any = None
        self._place: Place | None = None

    @property
    def is_head(self) -> bool:
        """Whether this machine has the address where all meet."""
        return interface_of(socket.gethostbyname(self._host)) is not None

    @property
    def name(self) -> str:
        """This machine among the hosts, by the address that it reaches the others with; it names files."""
        return own_address(self._host)

    def meet(self, keep_waiting: Callable[[], bool]) -> Place | None:
        """This machine's place in the next round, once enough others are there; None where `keep_waiting`, asked again
        and again, is false before.

        Raises Lost where the machine with the address cannot be reached, or too few came in `train.start_seconds`.
        """
        found: list[Any] = []
        # In a thread: a wait of minutes within the library hears no request to stop.
        meeting = threading.Thread(target=self._join, args=(found,), daemon=True)
        meeting.start()
        while meeting.is_alive():
            if not keep_waiting():
                return None
            meeting.join(ASK_EVERY_SECONDS)
        if isinstance(found[0], Exception):
            self._forget()
            raise Lost(f"{self._hosts.address}: {type(found[0]).__name__}: {found[0]}") from found[0]
        self._place = found[0]
        return self._place

    def change(self) -> Change | None:
        """Whether another machine waits for a new round: one of this round that has started again, or one that was not
        there. Raises Lost where the machine with the address cannot be reached."""
        assert self._place is not None, "there was a round"
        try:
            waiting = self._handler.num_nodes_waiting()
        except Exception as error:
            self._forget()
            raise Lost(f"{self._hosts.address}: {type(error).__name__}: {error}") from error
        if not waiting:
            return None
        return "returned" if self._place.hosts < self._hosts.count else "restarted"

    def _join(self, found: list[Any]) -> None:
        try:
            found.append(self._joined())
        except Exception as error:
            found.append(error)

    def _joined(self) -> Place:
        self._handler = self._handler or self._listen()
        info = self._handler.next_rendezvous()
        # Keys of a round are its own: what an earlier one left in the store is never read.
        if info.rank == 0:
            info.store.set("launch", uuid.uuid4().hex[:8])
        launch = info.store.get("launch").decode()
        local = self._run.train.ranks // self._hosts.count
        size = local * info.world_size
        return Place(info.rank * local, local, size, info.world_size, f"{self._hosts.address}/{launch}")

    def _listen(self) -> Any:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

        address = own_address(self._host)
        interface = interface_of(address)
        assert interface is not None, f"{address} is one of this machine"
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ[variable] = interface
        # By default a machine tells where its own store is in its first round alone, so that one that comes later waits
        # for that in vain (torch 2.13.0). Ours is another store, but the library asks all the same.
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
        backend, self._store = create_backend(parameters)
        return create_handler(self._store, backend, parameters)

    def _forget(self) -> None:
        """A connection that broke is not mended by the library: begin anew."""
        if self._handler is not None:
            with suppress(Exception):
                self._handler._stop_heartbeats()
        if not self.is_head:
            self._handler = self._store = None


def own_address(other: str) -> str:
    """The address of this machine from which it reaches `other`; `other` itself where that is this machine."""
    target = socket.gethostbyname(other)
    if interface_of(target) is not None:
        return target
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        # No packet is sent: the kernel looks the way up.
        asked.connect((target, 9))
        return asked.getsockname()[0]


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has the address; None where none has."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(told[20:24]) == address:
                return name
    return None


def wait_for_another_try(seconds: float, keep_waiting: Callable[[], bool]) -> None:
    """Sleep, unless `keep_waiting` is false before."""
    until = time.monotonic() + seconds
    while keep_waiting() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, ASK_EVERY_SECONDS))
