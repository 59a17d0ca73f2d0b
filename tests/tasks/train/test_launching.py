"""The trainer as a child process: its words, its exit codes, and that it never outlives its launcher's interest."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from model.errors import BessemerError, Bug, GuardError, Infra, InputError, IntegrityError, Numerics, RecipeError
from tasks.train.launcher import PROJECT, environment, run_trainer

LAUNCH: dict[str, Any] = {"given": {}, "hang_seconds": 20.0, "max_seconds": None, "stop_seconds": 10.0}
STOPS_IN_ORDER = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path(sys.argv[1]).write_text("checkpoint")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print('{"kind": "start"}', flush=True)
while True:
    time.sleep(0.05)
"""


def launch(tmp_path: Path, code: str, *arguments: str, **patience: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    run_trainer(
        ["-c", code, *arguments],
        log_path=tmp_path / "runs" / "train.log",
        heartbeat=tmp_path / "heartbeat",
        on_log=messages.append,
        **{**LAUNCH, **patience},
    )
    return messages


def test_json_lines_are_heard_and_all_that_is_said_goes_to_the_log(tmp_path):
    first, last = '{"kind": "step"}', '{"kind": "event"}'
    code = f"import sys; print({first!r}); print('stray'); sys.stderr.write('human\\n'); print({last!r})"
    assert launch(tmp_path, code) == [{"kind": "step"}, {"kind": "event"}]
    lines = (tmp_path / "runs" / "train.log").read_text().splitlines()
    assert sorted(lines) == sorted(["human", "stray", first, last])


def test_a_last_line_without_line_end_is_heard(tmp_path):
    assert launch(tmp_path, 'import sys; sys.stdout.write(\'{"kind": "done"}\')') == [{"kind": "done"}]


@pytest.mark.parametrize("kind", [RecipeError, InputError, GuardError, IntegrityError, Bug, Infra, Numerics])
def test_exit_code_becomes_its_error_class_with_the_last_words(tmp_path, kind: type[BessemerError]):
    code = f"import sys; sys.stderr.write('noise\\n{kind.__name__}: what happened\\n'); sys.exit({kind.exit_code})"
    with pytest.raises(kind, match=r"^train: what happened \(log: "):
        launch(tmp_path, code)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with files for names, and without a byte of space."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small file system to fill up")
    (folder / "runs").mkdir()
    with (folder / "ballast").open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("code", [1, Infra.exit_code])
def test_a_trainer_that_cannot_write_why_it_ends_met_a_full_disk(full_disk: Path, code: int) -> None:
    with pytest.raises(OSError, match="No space left"):
        launch(full_disk, f"import os; os._exit({code})")


@pytest.mark.parametrize("kind", [Bug, Infra])
def test_an_exit_without_a_word_has_its_code_in_the_log(tmp_path: Path, kind: type[BessemerError]) -> None:
    with pytest.raises(kind, match=rf"^train: the trainer ended with exit code {kind.exit_code} \(log: "):
        launch(tmp_path, f"import os; os._exit({kind.exit_code})")
    assert (tmp_path / "runs" / "train.log").read_text() == f"the trainer ended with exit code {kind.exit_code}\n"


def test_a_trainer_whose_log_cannot_be_written_keeps_its_exit_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as log:
        words = [sys.executable, "-m", "model.train", str(tmp_path / "missing.json")]
        done = subprocess.run(words, stderr=log, check=False, cwd=PROJECT, env=environment({}))
    assert done.returncode == InputError.exit_code


def test_an_unknown_exit_code_is_a_bug_with_the_traceback(tmp_path):
    with pytest.raises(Bug, match=r"(?s)exit code 1.*ZeroDivisionError"):
        launch(tmp_path, "1 / 0")


def test_words_of_an_earlier_try_are_not_repeated(tmp_path):
    with pytest.raises(Bug):
        launch(tmp_path, "1 / 0")
    with pytest.raises(Bug) as caught:
        launch(tmp_path, "raise SystemExit(9)")
    assert "ZeroDivisionError" not in str(caught.value)


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "signal 40")])
def test_death_by_signal_is_worth_another_try(number, name, tmp_path):
    with pytest.raises(Infra, match=f"killed by {name}"):
        launch(tmp_path, f"import os; os.kill(os.getpid(), {number})")


def test_json_of_a_library_is_no_message_of_the_trainer(tmp_path):
    assert launch(tmp_path, """print('{"rank": 0}'); print('{"kind": "event"}'); print('7')""") == [{"kind": "event"}]


def test_a_trainer_without_a_heartbeat_is_killed(tmp_path):
    began = time.monotonic()
    with pytest.raises(Infra, match="no heartbeat for 1 seconds"):
        launch(tmp_path, "import time; time.sleep(60)", hang_seconds=1.0)
    assert time.monotonic() - began < 10


def beating(times: int) -> str:
    """Return a trainer that writes so many heartbeats, one each tenth of a second, and then a message."""
    beat = f"for _ in range({times}): pathlib.Path(sys.argv[1]).touch(); time.sleep(0.1)"
    return f"import pathlib, sys, time\n{beat}\nprint('{{\"kind\": 1}}')"


def test_a_beating_heart_is_not_hung(tmp_path):
    assert launch(tmp_path, beating(30), str(tmp_path / "heartbeat"), hang_seconds=2.0) == [{"kind": 1}]


@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_that_jumps_neither_kills_nor_spares(tmp_path, monkeypatch, days):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + days * 86400)
    beats = beating(8)
    assert launch(tmp_path, beats, str(tmp_path / "heartbeat"), hang_seconds=2.0) == [{"kind": 1}]
    with pytest.raises(Infra, match="no heartbeat for 1 seconds"):
        launch(tmp_path, "import time; time.sleep(60)", hang_seconds=1.0)


def test_past_its_time_training_stops_with_a_checkpoint(tmp_path):
    with pytest.raises(GuardError, match="max_seconds"):
        launch(tmp_path, STOPS_IN_ORDER, str(tmp_path / "checkpoint"), max_seconds=1.0)
    assert (tmp_path / "checkpoint").read_text() == "checkpoint"


def test_an_interrupt_asks_the_trainer_to_stop_and_waits_for_it(tmp_path):
    def interrupt(message: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trainer(
            ["-c", STOPS_IN_ORDER, str(tmp_path / "checkpoint")],
            log_path=tmp_path / "train.log",
            heartbeat=tmp_path / "heartbeat",
            on_log=interrupt,
            **LAUNCH,
        )
    assert (tmp_path / "checkpoint").read_text() == "checkpoint"


def test_a_trainer_deaf_to_the_request_is_killed(tmp_path):
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(GuardError):
        launch(tmp_path, code, max_seconds=1.0, stop_seconds=0.5)
    pid = int((tmp_path / "runs" / "train.log").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_sigterm_to_the_launcher_reaches_the_trainer(tmp_path):
    def terminate(message: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    launcher = os.fork()
    if launcher == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            run_trainer(
                ["-c", STOPS_IN_ORDER, str(tmp_path / "checkpoint")],
                log_path=tmp_path / "train.log",
                heartbeat=tmp_path / "heartbeat",
                on_log=terminate,
                **LAUNCH,
            )
        except SystemExit as end:
            os._exit(int(str(end.code)))
        finally:
            os._exit(1)
    _, status = os.waitpid(launcher, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
    assert (tmp_path / "checkpoint").read_text() == "checkpoint"


def test_the_trainer_starts_without_what_the_shell_says_of_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    reported = "import json, os; print(json.dumps({'kind': '', **os.environ}))"
    (environment,) = launch(tmp_path, reported, given={"MKL_CBWR": "COMPATIBLE"})
    assert "ATEN_CPU_CAPABILITY" not in environment
    assert environment["MKL_CBWR"] == "COMPATIBLE"
    assert environment["AWS_PROFILE"] == "mine"
