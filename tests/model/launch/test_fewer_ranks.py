"""A replica that is lost is left out, and taken back once it is there again: by the rule, and with real ranks, one of
which is killed whenever it starts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.ipc
import pytest

from model.config.options import ScheduleConfig
from model.config.train import TrainConfig, TrainerRun
from model.launch import launcher
from model.launch.failures import read_restarts
from model.launch.replicas import Replicas, ranks_of_host
from tests.model.forked_trainers import fork_trainer, pause_at_each_step
from tests.model.rank_processes import rank_processes

DIVIDED = {"ranks": 8, "tensor_parallel": 2, "pipeline_parallel": 2, "batch_rows": 4, "micro_batch_rows": 1}
"""Two replicas of 2 x 2 ranks; of each stage ranks 0 and 1 (4 and 5) are the first replica's."""
LEFT_OUT = {"restarts": {"fewer_ranks": True, "pause_seconds": 0}}
ALIKE = {"batch_rows": 4, "checkpoint_steps": 10, "schedule": ScheduleConfig(peak_lr=0.001)}
STEPS = 120
"""Enough that those left when a rank is lost take two seconds, with a pause at each."""
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the ranks in /proc")


def replicas(**settings: object) -> Replicas:
    return Replicas(TrainConfig.model_validate(DIVIDED | LEFT_OUT | settings))


def test_a_replica_is_left_out_whole_after_three_failures_and_keeps_its_devices_idle() -> None:
    found = replicas()
    assert [found.failed(rank) for rank in (0, 2, 3, 6)] == [False, False, False, True]
    assert found.leave_out(6)
    launch = found.ranks()
    assert (launch.ranks, launch.local, launch.size, launch.left_out) == ((0, 1, 2, 3), (0, 1, 4, 5), 4, (1,))
    # Rank 3 is now one of the first replica, the last that is left.
    assert [found.failed(3) for _ in range(3)] == [False, False, True]
    assert not found.leave_out(3)


def test_of_several_lost_replicas_each_is_left_out_after_its_own_three_failures() -> None:
    found = replicas(ranks=12, batch_rows=6)
    assert [found.failed(rank) for rank in (2, 4, 2, 4, 4)] == [False, False, False, False, True]
    assert found.leave_out(4)
    assert found.ranks().left_out == (2,)


def test_failures_that_no_rank_caused_and_those_before_a_checkpoint_do_not_count() -> None:
    found = replicas()
    assert not any(found.failed(rank) for rank in (2, None, 2, None, None))
    found.saved()
    assert not any(found.failed(rank) for rank in (2, 2))
    assert found.failed(2)


def test_a_replica_that_was_taken_back_is_left_out_after_its_first_failure_until_a_checkpoint() -> None:
    found = replicas(ranks=12, batch_rows=6)
    assert found.leave_out(2)
    assert found.leave_out(2)
    assert found.ranks().local == (0, 1, 6, 7), "rank 2 of the second launch is of the third replica"
    assert found.take_back() == (1, 2)
    assert found.ranks().size == 12
    assert (found.failed(0), found.failed(4)) == (False, True)
    assert found.leave_out(4)
    assert found.ranks().left_out == (2,)
    assert found.failed(2), "the other one that was taken back is on trial still"
    found.saved()
    assert not found.failed(2)


def test_nothing_is_left_out_where_that_is_not_allowed() -> None:
    assert not replicas(restarts={}).leave_out(2)


def test_a_machine_that_may_be_missing_has_whole_replicas() -> None:
    hosts = {"hosts": {"count": 2, "address": "10.0.0.1:29400"}}
    spread = TrainConfig.model_validate(DIVIDED | hosts)
    assert [ranks_of_host(spread, host, 2, "store").ranks for host in range(2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    whole = TrainConfig.model_validate(DIVIDED | hosts | LEFT_OUT)
    found = [ranks_of_host(whole, host, 2, "store") for host in range(2)]
    assert [launch.ranks for launch in found] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [launch.local for launch in found] == [(0, 1, 2, 3)] * 2
    alone = ranks_of_host(whole, 0, 1, "store")
    assert (alone.ranks, alone.size, alone.hosts) == ((0, 1, 2, 3), 4, 1)


@contextlib.contextmanager
def lost(supervisor: int, rank: int) -> Iterator[None]:
    """Kill every process of a rank as soon as it starts, whether it trains or diagnoses."""
    there = threading.Event()

    def kill() -> None:
        while not there.wait(0.005):
            for process in rank_processes(supervisor):
                if process.local == rank:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        there.set()
        thread.join()


def wait_until(true: Callable[[], bool], trainer: subprocess.Popen[str], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert trainer.poll() is None, "training ended before"
        assert time.monotonic() < deadline, f"waited {seconds} seconds in vain"
        time.sleep(0.02)


def table(run: TrainerRun, name: str) -> pa.Table:
    with pa.OSFile(str(run.out / "result" / f"{name}.arrow"), "rb") as source:
        return pa.ipc.open_file(source).read_all()


def look_often() -> None:
    """Have a supervisor look for checkpoints ten times as often: fewer steps go by until it tries all ranks again."""
    launcher.CHECK_SECONDS /= 10
    pause_at_each_step()


def lose_and_return(trainer: subprocess.Popen[str], run: TrainerRun, rank: int) -> list[dict]:
    """Lose a rank after the first checkpoint, return it after it was left out and tried in vain; returns the messages
    of the training, which must come to its end."""
    try:
        wait_until(lambda: any((run.out / "checkpoints").glob("step-*/COMPLETE")), trainer)
        with lost(trainer.pid, rank):
            wait_until(lambda: len(read_restarts(run.out)) > 3, trainer)
        out, err = trainer.communicate(timeout=300)
    finally:
        trainer.kill()
        trainer.wait()
    assert trainer.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


@LINUX
@pytest.mark.parametrize(
    ("settings", "rank"),
    [
        pytest.param({"ranks": 2}, 1, id="native"),
        pytest.param({"ranks": 2, "engine": "fsdp"}, 1, id="fsdp", marks=pytest.mark.prove),
        *(
            pytest.param(
                {"ranks": 2, "engine": "deepspeed", "zero_stage": stage}, 0, id=f"zero-{stage}", marks=pytest.mark.prove
            )
            for stage in (1, 2, 3)
        ),
        pytest.param(DIVIDED | {"engine": "fsdp"}, 1, id="fsdp-2x2x2", marks=pytest.mark.prove),
    ],
)
def test_a_lost_replica_is_left_out_and_taken_back(make_run, launch, settings: dict, rank: int) -> None:
    run: TrainerRun = make_run(**ALIKE | settings | LEFT_OUT, positions=4 * STEPS)
    size, replica = run.train.ranks, run.train.replica(rank)
    left = size - size // run.train.data_parallel
    file = run.out.with_suffix(".json")
    file.write_text(run.model_dump_json())
    messages = lose_and_return(fork_trainer(run.train, [str(file)], before=look_often), run, rank)
    named = ("restart", "fewer_ranks", "all_ranks")
    events = [(row["kind"], json.loads(row["detail"])) for row in table(run, "events").to_pylist()]
    kinds = [kind for kind, _ in events if kind in named]
    assert kinds[:3] == ["restart"] * 3
    assert set(kinds[3:]) == set(named), "left out, tried in vain, and taken back"
    missing = {"ranks": left, "of": size, "left_out": [replica]}
    assert [facts for kind, facts in events if kind == "fewer_ranks"] == [missing] * kinds.count("fewer_ranks")
    assert [facts for kind, facts in events if kind == "all_ranks"] == [{"ranks": size, "replicas": [replica]}]
    assert [facts["ranks"] for kind, facts in events if kind == "restart"][-1] == left
    assert [message["step"] for message in messages if message.get("event") == "all_ranks"]
    starts = [facts["ranks"] for kind, facts in events if kind in ("start", "resume")]
    assert starts[-1] == size
    steps = table(run, "steps").to_pylist()
    assert [(row["pos_start"], row["pos_end"]) for row in steps] == [(4 * s, 4 * s + 4) for s in range(STEPS)]
    # All rows at once: the losses do not depend on it, and it takes a fraction of the time.
    undisturbed: TrainerRun = make_run("undisturbed", **ALIKE, micro_batch_rows=4, positions=4 * STEPS)
    assert launch(undisturbed).wait(timeout=120) == 0
    losses = [table(one, "metrics")["loss"].to_pylist() for one in (run, undisturbed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
