"""Two hosts, which are two network namespaces of this machine with a wire between them: what one host does alone, and
what follows when one is cut off, killed, or comes late."""

import contextlib
import ctypes
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest

from model.config.options import ScheduleConfig
from model.config.train import TrainerRun
from model.launch.failures import read_restarts
from tests.model.forked_trainers import fork_trainer
from tests.model.rank_processes import rank_processes
from tests.processes import wait_until

CLONE_NEWNET = 0x40000000
EXACT_FILES = ("model.safetensors", "steps.arrow", "metrics.arrow")
SHORT = {"batch_rows": 4, "positions": 4 * 30, "checkpoint_steps": 10, "ranks": 2}
# At the fixture's rate of 0.01 this network diverges within 1,500 steps on some processors, and the guard gives up.
LONG = {"batch_rows": 4, "positions": 4 * 1500, "checkpoint_steps": 20, "ranks": 2, "hang_seconds": 4}
LONG |= {"schedule": ScheduleConfig(peak_lr=0.002)}
NUMBERS = itertools.count(os.getpid() % 200)


@dataclass(frozen=True)
class Wire:
    """Two namespaces; the first has the address where both meet."""

    names: tuple[str, str]
    address: str

    def start(self, host: int, run: TrainerRun) -> subprocess.Popen[str]:
        """The trainer of a run on one of the hosts."""
        path = run.out.with_suffix(".json")
        if not path.exists():
            path.write_text(run.model_dump_json())
        return fork_trainer(run.train, [str(path)], before=functools.partial(_enter, self.names[host]))

    def cut(self) -> None:
        """Nothing passes, and nobody gets an error."""
        self._link("down")

    def mend(self) -> None:
        self._link("up")

    def _link(self, state: str) -> None:
        subprocess.run(["ip", "-n", self.names[1], "link", "set", "wire", state], check=True)


@pytest.fixture
def wire() -> Iterator[Wire]:
    if not sys.platform.startswith("linux") or shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("two network namespaces take Linux, iproute2 and root")
    number = next(NUMBERS)
    names = (f"bessemer-{number}-a", f"bessemer-{number}-b")
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        _run(f"ip netns add {names[1]}")
        _run(f"ip -n {names[0]} link add wire type veth peer name wire netns {names[1]}")
        for place, name in enumerate(names):
            _run(f"ip -n {name} addr add 10.77.0.{place + 1}/24 dev wire")
            for device in ("lo", "wire"):
                _run(f"ip -n {name} link set {device} up")
        yield Wire(names, "10.77.0.1:29511")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def _enter(name: str) -> None:
    """Have this process see the network of a namespace alone (setns(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/var/run/netns", name).open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"the namespace {name} cannot be entered")


@pytest.fixture
def two_hosts(make_run: Callable[..., TrainerRun], wire: Wire) -> Callable[..., TrainerRun]:
    def make(name: str = "out", **settings: object) -> TrainerRun:
        hosts = {"count": 2, "address": wire.address, "wait_seconds": 3, "silence_seconds": 3}
        return make_run(name, hosts=hosts, **settings)

    return make


@contextlib.contextmanager
def gone_afterwards(*trainers: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for trainer in trainers:
            trainer.kill()
            trainer.wait()


def result(run: TrainerRun) -> dict[str, bytes]:
    return {name: (run.out / "result" / name).read_bytes() for name in EXACT_FILES}


def events(run: TrainerRun) -> list[tuple[str, dict]]:
    with pa.OSFile(str(run.out / "result" / "events.arrow"), "rb") as source:
        rows = pa.ipc.open_file(source).read_all().to_pylist()
    return [(row["kind"], json.loads(row["detail"])) for row in rows]


def checkpoints(run: TrainerRun) -> int:
    return len(list((run.out / "checkpoints").glob("step-*/COMPLETE")))


def newest(run: TrainerRun) -> int:
    found = (run.out / "checkpoints").glob("step-*/COMPLETE")
    return max((int(path.parent.name.removeprefix("step-")) for path in found), default=0)


@pytest.fixture
def one_host(make_run: Callable[..., TrainerRun], launch: Callable[..., subprocess.Popen[str]]) -> Callable[..., Any]:
    """What a run of one host ends with."""

    def trained(**settings: object) -> dict[str, bytes]:
        run = make_run("one", **settings)
        finish(launch(run))
        return result(run)

    return trained


def finish(*trainers: subprocess.Popen[str]) -> list[str]:
    """What each said on stderr; all must have come to the end."""
    reported = [trainer.communicate(timeout=240)[1] for trainer in trainers]
    assert [trainer.returncode for trainer in trainers] == [0] * len(trainers), reported
    return reported


def test_two_hosts_compute_what_one_does(one_host, two_hosts, wire: Wire) -> None:
    run = two_hosts(**SHORT)
    with gone_afterwards(first := wire.start(0, run), second := wire.start(1, run)):
        finish(first, second)
    assert result(run) == one_host(**SHORT)
    assert read_restarts(run.out) == []
    assert not list(run.out.glob("ranks-*"))


@pytest.mark.prove
def test_a_host_that_is_killed_and_started_again_leaves_no_trace(one_host, two_hosts, wire: Wire) -> None:
    run = two_hosts(**LONG)
    with gone_afterwards(first := wire.start(0, run), second := wire.start(1, run)):
        wait_until(lambda: checkpoints(run) > 0, 120)
        os.kill(second.pid, signal.SIGKILL)
        second.wait()
        with gone_afterwards(again := wire.start(1, run)):
            finish(first, again)
    assert result(run) == one_host(**LONG)
    assert "restart" in [kind for kind, _ in events(run)]


@pytest.mark.prove
def test_a_host_that_is_cut_off_is_done_without_and_taken_back(two_hosts, wire: Wire) -> None:
    run = two_hosts(**LONG, restarts={"fewer_ranks": True, "pause_seconds": 0.5, "most": 100})
    with gone_afterwards(first := wire.start(0, run), second := wire.start(1, run)):
        wait_until(lambda: checkpoints(run) > 0, 120)
        wire.cut()
        wait_until(lambda: any(line["kind"] == "hosts" and line["hosts"] == 1 for line in read_restarts(run.out)), 120)
        cut_at = newest(run)
        wait_until(lambda: newest(run) > cut_at, 120)
        wire.mend()
        wait_until(lambda: any(line["kind"] == "hosts" and line["hosts"] == 2 for line in read_restarts(run.out)), 120)
        finish(first, second)
    reported = [detail["hosts"] for kind, detail in events(run) if kind == "hosts"]
    assert reported == [1, 2]
    assert "fewer_ranks" in [kind for kind, _ in events(run)]


@pytest.mark.prove
def test_a_host_whose_ranks_fail_again_and_again_leaves_with_its_replica_and_joins_again(two_hosts, wire: Wire) -> None:
    replicas = {"ranks": 4, "tensor_parallel": 2, "restarts": {"fewer_ranks": True, "pause_seconds": 0.5}}
    run = two_hosts(**LONG | {"positions": 4 * 400} | replicas)
    with gone_afterwards(first := wire.start(0, run), second := wire.start(1, run)):
        wait_until(lambda: checkpoints(run) > 0, 120)
        while second.poll() is None:
            for process in rank_processes(second.pid):
                if process.local == 1:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.01)
        assert second.returncode == 75
        assert second.stderr is not None
        assert (
            "3 times without a checkpoint. The other machines continue; call `bessemer training join`"
            in second.stderr.read()
        )
        left_at = newest(run)
        wait_until(lambda: newest(run) > left_at, 120)
        assert read_restarts(run.out)[-1]["kind"] == "hosts"
        with gone_afterwards(again := wire.start(1, run)):
            finish(first, again)
    hosts = [(detail["hosts"], detail["ranks"]) for kind, detail in events(run) if kind == "hosts"]
    assert hosts[-2:] == [(1, 2), (2, 4)]
    assert "fewer_ranks" in [kind for kind, _ in events(run)]
