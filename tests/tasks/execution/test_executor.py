"""One function over many parts: few are on their way at a time, errors end it, and any executor gives the same."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from model.errors import Bug, Infra, InputError, RecipeError
from tasks.artifacts.tables.map_parts import MOST_PARTS, unit_name
from tasks.artifacts.workspace import Workspace
from tasks.common import work
from tasks.common.work import Executor, Work, run_in_flight
from tasks.execution import dask, executor
from tasks.execution.dask import DaskCluster
from tasks.execution.executor import Processes, ThisProcess, Threads, make_executor
from tasks.execution.machines import Machines

CLUSTER = Machines(executor="dask", address="tcp://head:8786")


def square(index: int, offset: int) -> int:
    return index * index + offset


WORK = Work(square, name=lambda index: f"part-{index}", arguments=lambda index: (index % 2,))
SQUARES = {index: index * index + index % 2 for index in range(20)}


@pytest.mark.parametrize("executor", [ThisProcess(), Threads(1), Threads(3), Processes(1)], ids=str)
def test_every_part_is_worked_on_once(executor: Executor) -> None:
    done = list(executor.map(WORK, range(20)))
    assert len(done) == 20
    assert dict(done) == SQUARES


@pytest.mark.prove
def test_processes_do_the_same_and_a_dead_one_is_reported() -> None:
    assert dict(Processes(2).map(WORK, range(20))) == SQUARES
    dying = Work(os._exit, name=lambda index: f"part-{index}")
    with pytest.raises(Infra, match=r"a worker process died while it processed part-\d"):
        list(Processes(2).map(dying, range(1, 4)))


def test_what_auto_means_is_the_stages_choice(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert make_executor(Machines(), 2, workspace, in_threads=True) == Threads(2)
    assert make_executor(Machines(), 2, workspace, in_threads=False) == Processes(2)
    assert make_executor(Machines(executor="threads"), 2, workspace, in_threads=False) == Threads(2)
    for machines in (CLUSTER, Machines(address="tcp://head:8786")):
        assert make_executor(machines, 2, workspace, in_threads=True) == DaskCluster("tcp://head:8786", workspace)
        assert machines.is_cluster
    assert not Machines().is_cluster


def test_an_address_belongs_to_a_cluster_and_a_cluster_needs_one() -> None:
    with pytest.raises(ValidationError, match="needs the address of a scheduler"):
        Machines(executor="dask")
    with pytest.raises(ValidationError, match='executor = "threads" uses none'):
        Machines(executor="threads", address="tcp://head:8786")
    with pytest.raises(ValidationError, match="pattern"):
        Machines(executor="dask", address="head")


@pytest.mark.parametrize(
    ("address", "problem"),
    [("tls://127.0.0.1:8786", "without certificates"), ("tcp://head", "missing port number")],
)
def test_an_address_that_no_connection_can_be_made_to_is_refused_at_once(address: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=rf"machines\.address = {address} cannot be used.*{problem}"):
        dask._connect(address)


def test_no_more_are_on_their_way_than_there_is_space_for() -> None:
    flying, most, lock = 0, 0, threading.Lock()

    def submit(index: int) -> Future[int]:
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        return pool.submit(lambda: index)

    with ThreadPoolExecutor(4) as pool:
        for _ in run_in_flight(submit, range(50), 3):
            with lock:
                flying -= 1
    # The next one starts when one is done, before the one that asked has seen it.
    assert most == 4


def test_an_error_ends_it_and_what_has_not_begun_never_does() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def work(index: int) -> int:
        begun.append(index)
        if index == 1:
            raise ValueError("part 1")
        gate.wait(30)
        return index

    with ThreadPoolExecutor(2) as pool:
        flight = run_in_flight(lambda index: pool.submit(work, index), range(9), 2)
        try:
            with pytest.raises(ValueError, match="part 1"):
                next(flight)
        finally:
            gate.set()
    assert begun == [0, 1]


def test_who_asks_no_further_leaves_nothing_that_would_still_begin() -> None:
    begun: list[int] = []

    def start(pool: ThreadPoolExecutor) -> Iterator[tuple[int, None]]:
        return run_in_flight(lambda index: pool.submit(begun.append, index), range(100), 2)

    with ThreadPoolExecutor(1) as pool:
        flight = start(pool)
        next(flight)
        flight.close()  # pyright: ignore[reportAttributeAccessIssue]  # a generator
    assert len(begun) <= 3


def test_a_part_is_handed_out_again_where_trouble_is_taken_for_bad_luck() -> None:
    tries: list[int] = []

    def work(index: int) -> int:
        tries.append(index)
        if tries.count(2) == 1 and index == 2:
            raise OSError("the machine went away")
        return index

    with ThreadPoolExecutor(2) as pool:
        done = dict(
            run_in_flight(
                lambda index: pool.submit(work, index),
                range(4),
                2,
                should_retry=lambda index, error: tries.count(index) < 3,
            )
        )
    assert done == {0: 0, 1: 1, 2: 2, 3: 3}
    assert sorted(tries) == [0, 1, 2, 2, 3]


def test_the_wait_for_workers_begins_where_the_last_part_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "IDLE_SECONDS", 0.05)
    last: Future[int] = Future()
    idle: list[float] = []

    def submit(index: int) -> Future[int]:
        if index == 3:
            return last
        future: Future[int] = Future()
        future.set_result(index)
        return future

    def on_idle(seconds: float) -> None:
        idle.append(seconds)
        if len(idle) == 3:
            last.set_result(3)

    for _ in run_in_flight(submit, range(4), 1, on_idle=on_idle):
        time.sleep(0.1)
    assert idle == pytest.approx([0.05, 0.1, 0.15])


@dataclass
class SilentScheduler:
    """A client of a scheduler with workers that have `threads`."""

    threads: int
    status: str = "running"

    def nthreads(self) -> dict[str, int]:
        return {"worker": self.threads}


def test_a_cluster_without_workers_for_a_moment_is_waited_for_however_long_it_worked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    scheduler: Any = SilentScheduler(threads=0)
    check = dask._watch(scheduler, "tcp://head:8786", 300.0)
    # Parts were finished all the time, up to 5 seconds ago.
    now = 3600.0
    check(5.0)
    with pytest.raises(Infra, match="had no worker for 300 s"):
        check(305.0)
    # A part that takes an hour is no sign of a cluster without workers.
    scheduler.threads = 2
    check(3600.0)
    scheduler.threads = 0
    now += 5
    check(3605.0)


class OddError(Exception):
    """Cannot be made again from its arguments, as some errors of libraries."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}, line {line}")

    def __reduce__(self) -> tuple[Any, ...]:
        # As by default: Dask changes it for all errors where it is imported.
        return type(self), self.args


def fail(index: int) -> None:
    raise OddError("a.csv", 7) if index else InputError("b.csv")


def test_an_error_that_no_other_process_can_read_is_not_taken_for_a_dead_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "_function", fail, raising=False)
    with pytest.raises(InputError, match=r"b\.csv"):
        executor._run_part(0)
    with pytest.raises(Bug, match=r"OddError: a\.csv, line 7"):
        executor._run_part(1)


def test_a_cluster_waits_for_a_folder_that_is_not_visible_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "units"

    def pause(seconds: float) -> None:
        if folder.exists():
            (folder / "00000.json").touch()
        folder.mkdir(exist_ok=True)

    monkeypatch.setattr(time, "sleep", pause)
    cluster = DaskCluster("tcp://10.0.0.1:8786", Workspace(tmp_path))
    cluster.await_files(folder, ["00000.json"])
    monkeypatch.setattr(dask, "VISIBLE_SECONDS", 0.0)
    with pytest.raises(Infra, match=r"1 files that other machines wrote, such as 00001\.json, are not visible"):
        cluster.await_files(tmp_path / "elsewhere", ["00001.json"])


def test_names_of_units_sort_in_order_and_one_too_many_is_an_error() -> None:
    names = [unit_name(index) for index in (0, 9, 10, 99_998, 99_999)]
    assert names == sorted(names)
    with pytest.raises(InputError, match=r"100,000 parts at most.*sample\.part_bytes"):
        unit_name(MOST_PARTS)
