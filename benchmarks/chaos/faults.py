"""Faults, each brought about from outside, in a way that machines know: signals, limits, full disks, damaged bytes."""

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from world import Processes, World

from benchmarks.proofs import NoChance

SECONDS_TO_COME = 120.0
"""For the moment that a fault waits for, and for what it must lead to."""
SLOW_STEPS = 48
"""Steps until a slow rank is reported, and some more."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    bring: Callable[[World, random.Random], str]
    """Brings it about, and says what was done."""
    restarts: bool = True
    """Whether ranks must start again."""
    by_hand: bool = False
    """Whether it is of the sort after which the people behind OPT-175B restarted training by hand."""
    steps: int = 0
    """Steps that it takes by itself."""
    needs_disk: bool = False
    """Whether it needs a file system of its own."""


def wait_for(true: Callable[[], bool], what: str, seconds: float = SECONDS_TO_COME) -> None:
    """Wait until `true()` holds; raise NoChance where it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise NoChance(f"{what} did not come within {seconds:.0f} seconds")
        time.sleep(0.002)


def kill(pid: int | None, number: int) -> None:
    """Send a signal to a process; raise NoChance where it is not there."""
    if pid is None:
        raise NoChance("the process is not there")
    try:
        os.kill(pid, number)
    except ProcessLookupError as error:
        raise NoChance("the process has ended") from error


def a_rank(world: World, chance: random.Random) -> tuple[int, int]:
    """Draw a rank; return its number and process id, or raise NoChance where none runs."""
    ranks = world.processes().ranks
    if not ranks:
        raise NoChance("no rank is there")
    number = chance.randrange(len(ranks))
    return number, ranks[number]


def send_rank(number: signal.Signals) -> Callable[[World, random.Random], str]:
    """Return a fault that sends a signal to a drawn rank."""

    def bring(world: World, chance: random.Random) -> str:
        rank, pid = a_rank(world, chance)
        kill(pid, number)
        return f"{number.name} to rank {rank}"

    return bring


def send(who: Callable[[Processes], int | None], name: str, number: signal.Signals) -> Callable[..., str]:
    """Return a fault that sends a signal to the process that `who` finds."""

    def bring(world: World, chance: random.Random) -> str:
        del chance
        kill(who(world.processes()), number)
        return f"{number.name} to the {name}"

    return bring


def kill_all_ranks(world: World, chance: random.Random) -> str:
    """Kill all ranks, as a loss of power does."""
    del chance
    for pid in world.processes().ranks:
        kill(pid, signal.SIGKILL)
    return "SIGKILL to all ranks"


def kill_in_save(world: World, chance: random.Random) -> str:
    """Kill a rank up to 0.3 s after the writing of a checkpoint has begun."""
    wait_for(lambda: not world.is_saving(), "the end of a checkpoint")
    wait_for(world.is_saving, "a checkpoint")
    time.sleep(chance.uniform(0, 0.3))
    rank, pid = a_rank(world, chance)
    during = world.is_saving()
    kill(pid, signal.SIGKILL)
    return f"SIGKILL to rank {rank} {'while' if during else 'just after'} a checkpoint was written"


def kill_in_exchange(world: World, chance: random.Random) -> str:
    """Kill a rank while some rank waits in a sum over all ranks."""
    rank, pid = a_rank(world, chance)
    wait_for(lambda: any(beat.waiting for beat in world.beats()), "a rank that waits")
    kill(pid, signal.SIGKILL)
    return f"SIGKILL to rank {rank} within an exchange"


def kill_while_starting(world: World, chance: random.Random) -> str:
    """Kill a rank, and one again shortly after the restart, before its first step or after it."""
    rank, pid = a_rank(world, chance)
    starts = len(world.starts())
    kill(pid, signal.SIGKILL)
    wait_for(lambda: bool(set(world.processes().ranks) - {pid}) and pid not in world.processes().ranks, "a new rank")
    time.sleep(chance.uniform(0, 2))
    wait_for(lambda: len(world.beats()) > 0, "a new rank that trains")
    again, pid = a_rank(world, chance)
    kill(pid, signal.SIGKILL)
    when = "before" if len(world.starts()) == starts else "after"
    return f"SIGKILL to rank {rank}, and to rank {again} {when} its first step"


def slow(world: World, chance: random.Random) -> str:
    """Stop a rank for 0.25 s after every 0.05 s that it runs, until it is reported as slow."""
    rank, pid = a_rank(world, chance)
    reported, deadline = world.count("slow_rank"), time.monotonic() + SECONDS_TO_COME
    while world.count("slow_rank") == reported:
        if time.monotonic() > deadline:
            raise NoChance("no rank was reported as slow")
        kill(pid, signal.SIGSTOP)
        time.sleep(0.25)
        kill(pid, signal.SIGCONT)
        time.sleep(0.05)
    return f"rank {rank} was stopped for five sixths of the time, and reported as slow"


def pause_supervisor(world: World, chance: random.Random) -> str:
    """Stop the supervisor for 1 to 5 s, as happens on a machine that swaps or is moved."""
    supervisor = world.processes().supervisor
    seconds = chance.uniform(1, 5)
    kill(supervisor, signal.SIGSTOP)
    time.sleep(seconds)
    kill(supervisor, signal.SIGCONT)
    return f"the supervisor was stopped for {seconds:.1f} seconds"


def no_memory(world: World, chance: random.Random) -> str:
    """Allow a rank no more memory than it has, and wait for its end and a new start."""
    rank, pid = a_rank(world, chance)
    starts = len(world.starts())
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    wait_for(lambda: pid not in world.processes().ranks, "an allocation that fails")
    wait_for(lambda: len(world.starts()) > starts, "a new start")
    return f"no more memory for rank {rank}"


def full_disk(world: World, chance: random.Random) -> str:
    """Fill the disk until a rank ends for want of room, and 2 to 6 s more; wait for a restart."""
    ballast, starts = world.disk / "ballast", len(world.starts())
    restarts = world.count("restart")
    rank_gone = set(world.processes().ranks)
    try:
        with ballast.open("wb") as file:
            while (free := shutil.disk_usage(world.disk).free) > 64 << 10:
                os.posix_fallocate(file.fileno(), file.tell(), min(free - (32 << 10), 256 << 20))
                file.seek(0, os.SEEK_END)
        wait_for(lambda: not rank_gone <= set(world.processes().ranks), "a failure for want of room")
        time.sleep(chance.uniform(2, 6))
    finally:
        ballast.unlink()
    wait_for(lambda: world.count("restart") > restarts or len(world.starts()) > starts, "a restart")
    return "no room on the disk for some seconds"


def _damaged(world: World, chance: random.Random) -> Path:
    """Draw a file of the newest checkpoint, once there is another to go back to; return its path."""
    wait_for(lambda: len(world.checkpoints()) > 1 and not world.is_saving(), "two checkpoints")
    files = [path for path in world.checkpoints()[-1].iterdir() if path.stat().st_size > 1]
    return chance.choice(sorted(files))


def torn(world: World, chance: random.Random) -> str:
    """Cut a file of the newest checkpoint short, and kill all ranks."""
    file = _damaged(world, chance)
    size = file.stat().st_size
    os.truncate(file, chance.randrange(size))
    kill_all_ranks(world, chance)
    return f"{file.parent.name}/{file.name} was cut short, and all ranks killed"


def flipped(world: World, chance: random.Random) -> str:
    """Flip a bit in a file of the newest checkpoint, and kill all ranks."""
    file = _damaged(world, chance)
    place = chance.randrange(file.stat().st_size)
    with file.open("r+b") as stream:
        stream.seek(place)
        (byte,) = stream.read(1)
        stream.seek(place)
        stream.write(bytes([byte ^ (1 << chance.randrange(8))]))
    kill_all_ranks(world, chance)
    return f"a bit of byte {place:,} of {file.parent.name}/{file.name} was flipped, and all ranks killed"


SERVER_GONE = "server gone"
"""Of a flow alone."""
SLOW = "rank slow"
"""Of ranks that share each batch alone."""
FAULTS = {
    "rank killed": Fault(send_rank(signal.SIGKILL)),
    "all ranks killed": Fault(kill_all_ranks, by_hand=True),
    "rank crashed": Fault(send_rank(signal.SIGSEGV)),
    "rank asked to stop": Fault(send_rank(signal.SIGTERM)),
    "rank hangs": Fault(send_rank(signal.SIGSTOP), by_hand=True),
    SLOW: Fault(slow, restarts=False, steps=SLOW_STEPS),
    "rank without memory": Fault(no_memory, by_hand=True),
    "killed within a checkpoint": Fault(kill_in_save, steps=12),
    "killed within an exchange": Fault(kill_in_exchange),
    "killed while starting": Fault(kill_while_starting),
    "supervisor killed": Fault(send(lambda found: found.supervisor, "supervisor", signal.SIGKILL)),
    "supervisor asked to stop": Fault(send(lambda found: found.supervisor, "supervisor", signal.SIGTERM)),
    "supervisor paused": Fault(pause_supervisor, restarts=False),
    "launcher killed": Fault(send(lambda found: found.launcher, "launcher", signal.SIGKILL), by_hand=True),
    "disk full": Fault(full_disk, by_hand=True, steps=12, needs_disk=True),
    "checkpoint torn": Fault(torn, by_hand=True, steps=10),
    "checkpoint flipped": Fault(flipped, by_hand=True, steps=10),
    SERVER_GONE: Fault(send(lambda found: found.server, "Prefect server", signal.SIGKILL), restarts=False),
}
