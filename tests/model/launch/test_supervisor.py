"""Real ranks that are killed, stopped, starved and broken from outside: the supervisor brings the training to the bytes
of an undisturbed one, or ends it with the right words, and leaves no process behind."""

import contextlib
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest

from model.config.train import TrainerRun
from model.launch.failures import infra_failure, read_restarts
from model.launch.supervisor import Supervisor
from tests.model.forked_trainers import fork_trainer, pause_at_each_step
from tests.model.rank_processes import is_alive, rank_processes
from tests.processes import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the ranks in /proc")

PROJECT = Path(__file__).resolve().parents[3]
LONG = {"batch_rows": 4, "positions": 4 * 40, "checkpoint_steps": 10}
AT_ONCE = {"pause_seconds": 0}
TWO = pytest.param(2, id="two-ranks", marks=pytest.mark.prove)
EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")

Launch = Callable[..., subprocess.Popen[str]]


def finish(trainer: subprocess.Popen[str]) -> tuple[int, list[dict], str]:
    out, err = trainer.communicate(timeout=240)
    return trainer.returncode, [json.loads(line) for line in out.splitlines()], err


def checkpoints(run: TrainerRun) -> list[str]:
    return sorted(path.parent.name for path in (run.out / "checkpoints").glob("step-*/COMPLETE"))


def training(trainer: subprocess.Popen[str]) -> list[int]:
    """Process ids of ranks that train, in their order; those that diagnose are no such ranks."""
    return [process.pid for process in rank_processes(trainer.pid) if process.trains]


def result(run: TrainerRun) -> dict[str, bytes]:
    return {name: (run.out / "result" / name).read_bytes() for name in EXACT_FILES}


def table(run: TrainerRun, name: str) -> pa.Table:
    with pa.OSFile(str(run.out / "result" / f"{name}.arrow"), "rb") as source:
        return pa.ipc.open_file(source).read_all()


def events(run: TrainerRun) -> list[tuple[str, dict]]:
    return [(row["kind"], json.loads(row["detail"])) for row in table(run, "events").to_pylist()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, build_run, launch: Launch) -> Callable[[int], dict]:
    """What so many ranks end with when nothing happens to them."""
    found: dict[int, dict[str, bytes]] = {}

    def of(ranks: int) -> dict[str, bytes]:
        if ranks not in found:
            run = build_run(tmp_path_factory.mktemp("undisturbed"), **LONG, ranks=ranks)
            code, _, err = finish(launch(run))
            assert (code, err) == (0, "")
            assert not read_restarts(run.out)
            found[ranks] = result(run)
        return found[ranks]

    return of


def disturb(trainer: subprocess.Popen[str], run: TrainerRun, number: int) -> int:
    """Send a signal to the last rank once there is a checkpoint; returns its process id."""
    wait_until(lambda: len(checkpoints(run)) > 0, 180)
    rank = training(trainer)[-1]
    os.kill(rank, number)
    return rank


@pytest.mark.parametrize("ranks", [1, TWO])
def test_a_rank_that_falls_silent_is_named_killed_and_started_again(make_run, launch, undisturbed, ranks: int) -> None:
    # The rank may be within a checkpoint when it falls silent.
    run = make_run(**LONG, ranks=ranks, hang_seconds=4, start_seconds=60, restarts=AT_ONCE)
    trainer = launch(run, before=pause_at_each_step)
    silent = disturb(trainer, run, signal.SIGSTOP)
    wait_until(lambda: bool(read_restarts(run.out)), 180)
    wait_until(lambda: not is_alive(silent), seconds=10)
    code, messages, err = finish(trainer)
    assert code == 0, err
    (restart,) = [message for message in messages if message.get("event") == "restart"]
    who = "the trainer hung" if ranks == 1 else "rank 1 of 2 hung"
    assert who in restart["words"]
    assert "it is stopped by a signal" in restart["words"]
    assert restart["seconds_lost"] >= 4
    assert result(run) == undisturbed(ranks)
    reported = [detail for kind, detail in events(run) if kind == "restart"]
    assert reported == [{key: restart[key] for key in reported[0]}]
    assert not list(run.out.glob("ranks-*"))


@pytest.mark.prove
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_rank_that_dies_is_started_again(make_run, launch, undisturbed, ranks: int, number: signal.Signals) -> None:
    run = make_run(**LONG, ranks=ranks, restarts=AT_ONCE)
    trainer = launch(run, before=pause_at_each_step)
    disturb(trainer, run, number)
    code, messages, err = finish(trainer)
    assert code == 0, err
    (restart,) = [message for message in messages if message.get("event") == "restart"]
    # A rank that is asked to stop writes a checkpoint first; nobody asked the training to stop.
    expected = "asked to stop" if number == signal.SIGTERM else f"was killed by {number.name}"
    assert expected in restart["words"]
    assert result(run) == undisturbed(ranks)


@pytest.mark.prove
@pytest.mark.parametrize("ranks", [1, 2])
def test_several_deaths_in_a_row_are_outlived_and_one_more_is_not(make_run, launch, undisturbed, ranks: int) -> None:
    run = make_run(**LONG, ranks=ranks, restarts=AT_ONCE | {"most": 2})

    def kill_early(trainer: subprocess.Popen[str], times: int) -> None:
        """Before the first step, so that there is no progress."""
        killed: set[int] = set()
        while len(killed) < times:
            for process in rank_processes(trainer.pid):
                if process.trains and process.rank == ranks - 1 and process.pid not in killed:
                    os.kill(process.pid, signal.SIGKILL)
                    killed.add(process.pid)
            time.sleep(0.005)

    trainer = launch(run, before=pause_at_each_step)
    kill_early(trainer, 3)
    code, _, err = finish(trainer)
    assert code == 75
    assert "training failed 3 times in a row without a checkpoint after step 0" in err
    assert "was killed by SIGKILL" in err
    assert len(read_restarts(run.out)) == 2

    trainer = launch(run, before=pause_at_each_step)
    kill_early(trainer, 2)
    code, _, err = finish(trainer)
    assert code == 0, err
    assert result(run) == undisturbed(ranks)
    assert [detail["in_a_row"] for kind, detail in events(run) if kind == "restart"] == [1, 2, 1, 2]


@pytest.mark.prove
@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_outlives_a_killed_supervisor_and_the_next_goes_on(make_run, launch, undisturbed, ranks: int) -> None:
    run = make_run(**LONG, ranks=ranks)
    trainer = launch(run, before=pause_at_each_step)
    wait_until(lambda: len(checkpoints(run)) > 0, 180)
    left = training(trainer)
    os.kill(left[0], signal.SIGSTOP)
    trainer.kill()
    trainer.communicate()
    code, _, err = finish(launch(run))
    assert code == 0, err
    assert not any(map(is_alive, left))
    assert result(run) == undisturbed(ranks)


def test_a_stop_is_no_failure(make_run, launch: Launch) -> None:
    run = make_run(**LONG)
    trainer = launch(run, before=pause_at_each_step)
    wait_until(lambda: len(checkpoints(run)) > 0, 180)
    trainer.terminate()
    code, messages, err = finish(trainer)
    assert code == 75
    assert err.startswith("Infra: asked to stop after step")
    assert messages[-1]["kind"] == "checkpoint"
    assert not read_restarts(run.out)


def test_ranks_that_a_stop_ends_while_they_start_are_no_killed_ranks(make_run, tmp_path: Path) -> None:
    supervisor = Supervisor(make_run(), tmp_path / "run.json")
    supervisor._stop.stop_requested = True
    ended = supervisor._wait_for_restart(infra_failure("the trainer was killed by SIGTERM", 0, "SIGTERM"))
    assert ended == infra_failure("asked to stop while the ranks were starting; run again to go on")


def test_a_fault_of_a_program_is_reported_once_and_not_tried_again(make_run, tmp_path: Path) -> None:
    """A library that is broken where this training runs, found by the ranks alone: the supervisor loads none."""
    broken = tmp_path / "broken" / "safetensors"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("def safe_open(path, framework): ...\n")
    (broken / "torch.py").write_text("def load_file(path): ...\ndef save_file(weights, path): ...\n1 / 0\n")
    run = make_run(**LONG)
    file = tmp_path / "run.json"
    file.write_text(run.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-m", "model.train", str(file)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), str(tmp_path / "broken")])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 70, done.stderr
    assert done.stderr.count("Bug: ZeroDivisionError: division by zero") == 1
    assert done.stderr.count("Traceback") == 1
    assert not read_restarts(run.out)


def test_where_the_machine_refuses_again_and_again_training_is_out_of_restarts(make_run, tmp_path: Path) -> None:
    """No file may grow beyond 8 KiB, and a checkpoint does: the same failure at the same step each time."""
    run = make_run(**LONG, restarts=AT_ONCE | {"most": 1})
    file = tmp_path / "run.json"
    file.write_text(run.model_dump_json())
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (8192, 8192))
    code, _, err = finish(fork_trainer(run.train, [str(file)], before=limit))
    assert code == 75, err
    assert "training failed 2 times in a row without a checkpoint after step 0" in err
    assert "File too large" in err
    assert len(read_restarts(run.out)) == 1


WRONG_BY_ONE = """
import builtins, os
template, found = os.getpid(), builtins.__import__
def imported(name, *words, **options):
    if name == "model.launch.diagnostics" and os.getpid() != template:
        import torch
        right = torch.matmul
        def wrong(left, other):
            product = right(left, other)
            product[2, 9] += 1
            return product
        torch.matmul = wrong
    return found(name, *words, **options)
builtins.__import__ = imported
"""


@pytest.mark.prove
def test_a_machine_that_computes_wrongly_is_not_trained_on_again(make_run, tmp_path: Path) -> None:
    """Python reads `sitecustomize` before anything else: it replaces arithmetic that has broken since the start."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(WRONG_BY_ONE)
    run = make_run(**LONG, restarts=AT_ONCE)
    file = tmp_path / "run.json"
    file.write_text(run.model_dump_json())
    trainer = subprocess.Popen(
        [sys.executable, "-m", "model.train", str(file)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), str(tmp_path / "broken")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    disturb(trainer, run, signal.SIGKILL)
    code, _, err = finish(trainer)
    assert code == 75
    assert "cpu gave a wrong product of matrices in torch.float32, at row 2, column 9" in err.splitlines()[-1]
    assert len(read_restarts(run.out)) == 1
    assert not (run.out / "result").exists()


@pytest.mark.prove
def test_a_full_disk_is_waited_for(make_run, launch: Launch, undisturbed, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system to fill up")
    try:
        run = make_run(**LONG, restarts={"pause_seconds": 0.5}).model_copy(update={"out": disk / "out"})
        run.out.mkdir()
        (tmp_path / "disk.json").write_text(run.model_dump_json())
        trainer = launch(run.model_copy(update={"out": disk / "out"}), before=pause_at_each_step)
        wait_until(lambda: len(checkpoints(run)) > 0, 180)
        with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(512)):
                pass
        assert trainer.stdout is not None
        first, second = (json.loads(next(line for line in trainer.stdout if "restart" in line)) for _ in range(2))
        (disk / "ballast").unlink()
        code, _, err = finish(trainer)
        assert code == 0, err
        assert "No space left" in first["words"] or "MiB are free" in first["words"]
        assert "the disk has" in second["words"]
        assert result(run) == undisturbed(1)
        assert len([kind for kind, _ in events(run) if kind == "restart"]) >= 2
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.prove
def test_a_rank_without_memory_is_started_again(make_run, launch: Launch, undisturbed) -> None:
    """The limit is set on the running process, which finds no address for its next buffer."""
    # A thread that starts without memory may wait for itself forever (CPython), which is a hang.
    run = make_run(**LONG, restarts=AT_ONCE, hang_seconds=20, start_seconds=60)
    trainer = launch(run, before=pause_at_each_step)
    wait_until(lambda: len(checkpoints(run)) > 0, 180)
    (rank,) = training(trainer)
    resource.prlimit(rank, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    code, _, err = finish(trainer)
    assert code == 0, err
    assert len(read_restarts(run.out)) == 1
    assert result(run) == undisturbed(1)
