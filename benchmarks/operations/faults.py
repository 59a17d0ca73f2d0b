"""Faults of operation, each brought about from outside in a way that machines and people know."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil
from world import DeployedRun, World, send, wait_until

from benchmarks.proofs import NoChance

KILL, TERMINATE, STOP, GO = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT


@dataclass(frozen=True)
class Fault:
    """A kind of fault: `bring` brings it about and says what was done."""

    bring: Callable[[World, DeployedRun, random.Random], str]
    in_training: bool = False
    """Whether it needs a training."""
    on_disk: bool = False
    """Whether it needs a file system of its own."""
    needs: Callable[[World], bool] = lambda world: True


def _engine(world: World, deployed: DeployedRun) -> psutil.Process:
    engines = world.engines(deployed)
    if not engines:
        raise NoChance("no process of the flow is there")
    # The one that runs the flow was started by the other, where there are two.
    return max(engines, key=lambda process: process.create_time())


def _signalled(
    who: Callable[[World, DeployedRun], psutil.Process | int | None], name: str, number: signal.Signals
) -> Callable[[World, DeployedRun, random.Random], str]:
    """Return a fault that sends a signal to the process that `who` finds."""

    def bring(world: World, deployed: DeployedRun, chance: random.Random) -> str:
        del chance
        _must(send(who(world, deployed), number))
        return f"{number.name} to the {name}"

    return bring


def flow_sleeps(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    """Stop the flow and its trainers, as a suspended machine does, and let them go on after another run was made."""
    del chance
    sleeping = _family(_engine(world, deployed))
    before = len(world.runs(deployed))
    began = time.monotonic()
    for process in sleeping:
        send(process, STOP)
    try:
        if not wait_until(lambda: len(world.runs(deployed)) > before, 400.0, every=2.0):
            raise NoChance("nobody missed the flow's process")
        time.sleep(5)
    finally:
        for process in sleeping:
            send(process, GO)
    return f"the flow's processes slept for {time.monotonic() - began:.0f} s, until another run was made, and woke up"


def worker_and_flow_killed(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    del chance
    engine = _engine(world, deployed)
    _must(send(world.pid("worker"), KILL))
    send(engine, KILL)
    return "SIGKILL to the worker and the flow's process"


def server_hangs(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    del deployed
    seconds = chance.uniform(10, 40)
    pid = world.pid("server")
    _must(send(pid, STOP))
    time.sleep(seconds)
    send(pid, GO)
    return f"the server was stopped for {seconds:.0f} s"


def server_cut_off(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    del deployed
    seconds = chance.uniform(10, 60)
    with world.cut_off():
        time.sleep(seconds)
    return f"no packet reached the server for {seconds:.0f} s"


def database_restarted(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    del deployed
    seconds = chance.uniform(0, 10)
    first = world.postgresql()[0]
    # SIGINT is PostgreSQL's fast shutdown: sessions are ended, nothing is lost.
    _must(send(first, signal.SIGINT))
    first.wait(60)
    time.sleep(seconds)
    world.start_database()
    return f"PostgreSQL was shut down and started again after {seconds:.0f} s"


def database_killed(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    del deployed
    seconds = chance.uniform(0, 20)
    found = world.postgresql()
    for process in found:
        send(process, KILL)
    psutil.wait_procs(found, timeout=30)
    time.sleep(seconds)
    world.start_database()
    return f"SIGKILL to all of PostgreSQL, started again after {seconds:.0f} s"


def rank_killed(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    _, ranks = world.trainers(deployed)
    if not ranks:
        raise NoChance("no rank is there")
    _must(send(chance.choice(ranks), KILL))
    return "SIGKILL to a rank"


def disk_full(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    """Fill the disk to the last block for 5 to 20 s: what is written fails, and so does a record of that."""
    del deployed
    seconds = chance.uniform(5, 20)
    ballast = world.disk / "ballast"
    try:
        with ballast.open("wb") as file, suppress(OSError):
            while free := shutil.disk_usage(world.disk).free:
                os.posix_fallocate(file.fileno(), file.tell(), min(free, 64 << 20))
                file.seek(0, os.SEEK_END)
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        time.sleep(seconds)
    finally:
        ballast.unlink()
    return f"no room on the disk for {seconds:.0f} s"


def clock_set(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    """Set the clock of server, worker, flow and trainer at once, and leave it so."""
    del deployed
    seconds = chance.choice((-7200, -600, -60, 60, 600, 7200))
    world.set_clock(world.clock_offset() + seconds)
    return f"the clock was set {abs(seconds):,} s {'ahead' if seconds > 0 else 'back'}"


def cancelled(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    """Cancel the run, as a person does in the UI, and run the deployment again."""
    del chance
    run = world.runs(deployed)[-1]["id"]
    world.cancel(run)
    if not wait_until(lambda: _state(world, deployed, run) == "CANCELLED", 200.0, every=1.0):
        raise SystemExit(f"run {run} was not cancelled within 200 s: {_state(world, deployed, run)}")
    if not wait_until(lambda: not world.processes_with(str(deployed.root)), 60.0, every=1.0):
        left = [" ".join(process.cmdline()) for process in world.processes_with(str(deployed.root))]
        raise SystemExit(f"a cancelled run left {left}")
    world.run(deployed)
    return "cancelled, and run again"


def power_lost(world: World, deployed: DeployedRun, chance: random.Random) -> str:
    """Kill every process of the service, its database and its runs at once, and start the service again."""
    del chance
    gone = [*world.postgresql(), *world.engines(deployed), *world.processes_with(str(deployed.root))]
    gone += [psutil.Process(pid) for name in ("keeper", "server", "worker") if (pid := world.pid(name)) is not None]
    for process in gone:
        send(process, KILL)
    psutil.wait_procs(gone, timeout=30)
    world.up()
    return "SIGKILL to everything, PostgreSQL among it, and `bessemer serve start`"


def _state(world: World, deployed: DeployedRun, run: str) -> str:
    return next(found["state"]["type"] for found in world.runs(deployed) if found["id"] == run)


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _must(sent: bool) -> None:
    if not sent:
        raise NoChance("the process has ended")


FAULTS = {
    "flow killed": Fault(_signalled(_engine, "flow's process", KILL)),
    "flow asked to stop": Fault(_signalled(_engine, "flow's process", TERMINATE)),
    "flow sleeps": Fault(flow_sleeps),
    "worker killed": Fault(_signalled(lambda world, _: world.pid("worker"), "worker", KILL)),
    "worker asked to stop": Fault(_signalled(lambda world, _: world.pid("worker"), "worker", TERMINATE)),
    "worker and flow killed": Fault(worker_and_flow_killed),
    "server killed": Fault(_signalled(lambda world, _: world.pid("server"), "server", KILL)),
    "server hangs": Fault(server_hangs),
    "server cut off": Fault(server_cut_off, needs=lambda world: world.can_cut_off),
    "database restarted": Fault(database_restarted),
    "database killed": Fault(database_killed),
    "rank killed": Fault(rank_killed, in_training=True),
    "supervisor killed": Fault(
        _signalled(lambda world, deployed: world.trainers(deployed)[0], "supervisor", KILL), in_training=True
    ),
    "disk full": Fault(disk_full, on_disk=True, needs=lambda world: world.has_disk),
    "clock set": Fault(clock_set, needs=lambda world: world.clock_library is not None),
    "cancelled by a person": Fault(cancelled),
    "power lost": Fault(power_lost),
}
