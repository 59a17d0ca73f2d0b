"""What ended a training, and whether it is restarted."""

import contextlib
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from model.errors import Bug, GuardError, Infra, InputError, IntegrityError, Numerics, RecipeError
from model.launch.failures import (
    RankExit,
    read_error_report,
    reported_error,
    reserve_error_report,
    root_cause,
    write_error_report,
)

HINT = RankExit(0, 75, None)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (Infra, True),
        (InputError, False),
        (IntegrityError, False),
        (Numerics, False),
        (RecipeError, False),
        (GuardError, False),
        (Bug, False),
    ],
)
def test_the_class_of_an_error_says_whether_another_attempt_is_made(error, again: bool) -> None:
    failure = root_cause([HINT, RankExit(1, error.exit_code, f"{error.__name__}: what happened\n")], 2)
    assert failure is not None
    assert (failure.restarts, failure.code) == (again, error.exit_code)
    assert (failure.rank, failure.message) == (1, f"{error.__name__}: what happened")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS])
def test_a_signal_is_of_the_machine(number: signal.Signals) -> None:
    failure = root_cause([HINT, RankExit(1, -number, None)], 2)
    assert failure is not None
    assert failure.restarts
    assert (failure.rank, failure.signal, failure.code) == (1, number.name, 75)
    assert f"rank 1 of 2 was killed by {number.name}" in failure.message


def test_a_signal_without_a_name_is_of_the_machine_too() -> None:
    failure = root_cause([RankExit(0, -(signal.SIGRTMIN + 1), None)], 1)
    assert failure is not None
    assert (failure.restarts, failure.signal) == (True, f"signal {signal.SIGRTMIN + 1}")


def test_causes_count_before_consequences() -> None:
    killed, aborted = RankExit(0, -signal.SIGKILL, None), RankExit(1, -signal.SIGABRT, None)
    bug, stopped = RankExit(2, 70, "Bug: RuntimeError: odd"), RankExit(3, 75, "Infra: asked to stop")

    def blamed(*ends: RankExit) -> int | None:
        failure = root_cause(ends, 5)
        return failure and failure.rank

    assert blamed(HINT, stopped, aborted, bug, killed) == 0
    assert blamed(HINT, stopped, aborted, bug) == 2
    assert blamed(HINT, stopped, aborted) == 1
    assert blamed(HINT, stopped) == 3
    assert blamed(RankExit(4, 75, None), HINT) == 4, "the first of several to end"
    assert root_cause([RankExit(0, 0, None), RankExit(1, 0, None)], 2) is None


def test_a_report_names_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    write_error_report(tmp_path / "report", "InputError: \udcff.arrow is missing")
    assert read_error_report(tmp_path / "report") == "InputError: \\udcff.arrow is missing"


def test_a_rank_that_could_not_leave_a_word_was_failed_by_the_machine() -> None:
    failure = root_cause([RankExit(0, 1, None)], 1)
    assert failure is not None
    assert failure.restarts
    assert "the trainer ended with exit code 1 and without an error report" in failure.message


def test_last_words_need_no_space_on_a_disk_that_has_filled_up(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system to fill up")
    try:
        file = tmp_path / "rank-0.words"
        reserve_error_report(file)
        assert read_error_report(file) is None
        with (tmp_path / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(4096)):
                pass
        write_error_report(file, "Infra: No space left on device\n")
        assert read_error_report(file) == "Infra: No space left on device\n"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    write_error_report(tmp_path / "other", "x" * 10_000)
    assert read_error_report(tmp_path / "other") == "x" * 4096
    assert read_error_report(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (OSError(28, "No space left on device"), Infra),
        (MemoryError(), Infra),
        (RuntimeError("can't start new thread"), Infra),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"), Infra),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), Infra),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), Infra),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Infra),
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), None),
        (torch.distributed.DistStoreError("wait timeout after 1800000ms"), None),
        (RuntimeError("shapes cannot be multiplied"), Bug),
        (KeyError("missing"), Bug),
        (InputError("no such file"), InputError),
    ],
)
def test_what_a_rank_says_of_an_exception(error: Exception, reported: type | None) -> None:
    within_a_stage = RuntimeError("[Stage 1] failed to run forward")
    within_a_stage.__cause__ = error
    for found in (reported_error(error), reported_error(within_a_stage)):
        assert found is None if reported is None else type(found) is reported
