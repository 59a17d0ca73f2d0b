"""Who holds a lease, when it passes on, and that no clock is believed."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.checksummed_json import seal
from tasks.artifacts import lease as leases
from tasks.artifacts.lease import build_lease, ignore, is_alive, is_held

HOLDER = """
import sys, time
from pathlib import Path
from tasks.artifacts.lease import build_lease, is_alive, is_held, ignore
with build_lease(Path(sys.argv[1]), print, float(sys.argv[2])) as lease:
    print("held", flush=True)
    sys.stdin.readline()
    print("lost" if lease.is_lost() else "kept", flush=True)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease for one second at a time until it hears a line."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "lease"), "1.0"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def say(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def seconds_until_held(folder: Path) -> float:
    began = time.monotonic()
    with build_lease(folder, lambda holder: None, 1.0):
        return time.monotonic() - began


def test_the_time_since_which_a_lease_is_held_is_utc_wherever_the_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.artifacts.lease.time.gmtime", lambda: (2026, 11, 30, 6, 5, 4, 0, 334, 0))
    with build_lease(tmp_path, pytest.fail):
        (lease,) = tmp_path.glob("*.lease")
        assert b'"2026-11-30 06:05:04 UTC"' in lease.read_bytes()


def test_a_lease_that_was_given_back_is_free_at_once_and_numbers_go_up(tmp_path: Path) -> None:
    tokens = []
    for _ in range(4):
        with build_lease(tmp_path, pytest.fail) as lease:
            tokens.append(lease.token)
            assert not lease.is_lost()
    assert [token.partition("-")[0] for token in tokens] == ["000001", "000002", "000003", "000004"]
    assert len(set(tokens)) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.lease", "4.lease"]


def test_a_builder_that_ends_without_giving_its_lease_back_ends(tmp_path: Path) -> None:
    script = "from tasks.artifacts.lease import *; held = build_lease(Path({!r}), print); held.__enter__()"
    subprocess.run([sys.executable, "-c", script.format(str(tmp_path))], check=True, timeout=30)


def test_a_living_holder_is_waited_for_and_named_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    heard: list[str] = []

    def on_wait(words: str) -> None:
        heard.append(words)
        holder.communicate("\n", timeout=10)

    with build_lease(tmp_path / "lease", on_wait, 1.0):
        assert holder.returncode == 0
    assert len(heard) == 1
    assert heard[0].startswith(f"process {holder.pid} on ")


def test_a_killed_holder_is_passed_over_at_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert seconds_until_held(tmp_path / "lease") < 0.5


def test_a_suspended_holder_loses_its_lease_after_the_lease_time_and_knows_it(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    os.kill(holder.pid, signal.SIGSTOP)
    waited = seconds_until_held(tmp_path / "lease")
    os.kill(holder.pid, signal.SIGCONT)
    assert 0.9 < waited < 3.0
    assert say(holder) == "lost"


@pytest.mark.parametrize("years", [10, -10])
def test_a_beating_holder_is_never_passed_over_though_the_clock_jumps(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    real = time.time
    observer = threading.Thread(target=seconds_until_held, args=[tmp_path / "lease"])
    observer.start()
    time.sleep(0.2)
    monkeypatch.setattr(time, "time", lambda: real() + years * 365 * 86400)
    observer.join(2.5)
    assert observer.is_alive()
    assert say(holder) == "kept"
    observer.join(10)
    assert not observer.is_alive()


def written(folder: Path, **changes: object) -> None:
    """A lease file as another process of this machine would have left it, but for `changes`."""
    record = {**leases.this_process(), "since": "then", **changes}
    folder.mkdir()
    (folder / "7.lease").write_bytes(leases._state("3") + seal(record))


def test_a_recycled_process_number_is_distinguished_from_the_holder(tmp_path: Path) -> None:
    written(tmp_path / "lease", started="1")
    assert seconds_until_held(tmp_path / "lease") < 0.5


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "an earlier start"}])
def test_of_a_holder_elsewhere_only_silence_decides(tmp_path: Path, change: dict[str, object]) -> None:
    written(tmp_path / "lease", pid=2**22 + 1, **change)
    assert 0.9 < seconds_until_held(tmp_path / "lease") < 3.0


def test_the_holder_of_a_damaged_lease_is_judged_by_silence_alone(tmp_path: Path) -> None:
    written(tmp_path / "lease", pid=2**22 + 1)
    file = tmp_path / "lease" / "7.lease"
    file.write_bytes(file.read_bytes().replace(b"4194305", b"4194304"))
    waited: list[str] = []
    with build_lease(tmp_path / "lease", waited.append, 0.3):
        assert waited == ["another process, which has just begun or whose lease is damaged"]


def test_every_flipped_bit_of_a_lease_is_detected(tmp_path: Path) -> None:
    with build_lease(tmp_path / "lease", ignore, 60.0):
        held = (tmp_path / "lease" / "1.lease").read_bytes()
    given_back = (tmp_path / "lease" / "1.lease").read_bytes()
    for record in (held, given_back):
        assert leases.problem_of(record) is None
        for at in range(8 * len(record)):
            flipped = bytearray(record)
            flipped[at // 8] ^= 1 << at % 8
            assert leases.problem_of(bytes(flipped)), (at, record)


def test_a_holder_that_has_not_written_itself_down_yet_is_given_its_time(tmp_path: Path) -> None:
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "1.lease").touch()
    assert 0.9 < seconds_until_held(tmp_path / "lease") < 3.0


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "an earlier start"}])
def test_a_holder_that_went_down_with_its_machine_holds_until_its_silence_decides(
    tmp_path: Path, change: dict[str, object]
) -> None:
    written(tmp_path / "lease", pid=2**22 + 1, **change)
    assert is_held(tmp_path / "lease")
    assert not is_alive(tmp_path / "lease", 0.5)
    assert not is_held(tmp_path / "lease")  # Who looks after this one need not wait again.


def test_of_a_holder_on_a_system_without_proc_only_silence_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "start_of", lambda pid: None)
    written(tmp_path / "lease")
    assert is_held(tmp_path / "lease")
    assert not is_alive(tmp_path / "lease", 0.1)


def test_who_would_not_wait_hears_at_once_of_a_holder_that_lives(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    class LivesError(Exception):
        pass

    def on_alive(words: str) -> None:
        raise LivesError(words)

    began = time.monotonic()
    with (
        pytest.raises(LivesError, match=f"process {holder.pid} on "),
        build_lease(tmp_path / "lease", ignore, 60.0, on_alive),
    ):
        pass
    assert is_alive(tmp_path / "lease", 60.0)
    assert time.monotonic() - began < 1.0
    assert say(holder) == "kept"


def test_a_holder_elsewhere_lives_when_it_is_seen_to_renew(tmp_path: Path) -> None:
    written(tmp_path / "lease", host="elsewhere", pid=2**22 + 1)

    def renewed() -> None:
        time.sleep(0.3)
        with (tmp_path / "lease" / "7.lease").open("r+b") as file:
            file.write(leases._state("4"))

    beating = threading.Thread(target=renewed)
    beating.start()
    assert is_alive(tmp_path / "lease", 5.0)
    beating.join()


def test_a_beat_that_the_file_system_refuses_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    write = os.pwrite

    def pwrite(handle: int, data: bytes, offset: int) -> int:
        if not refused:
            refused.append(handle)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return write(handle, data, offset)

    with build_lease(tmp_path / "lease", ignore, 0.5):
        (held,) = (tmp_path / "lease").glob("*.lease")
        first = held.read_bytes()
        monkeypatch.setattr(leases.os, "pwrite", pwrite)
        deadline = time.monotonic() + 20.0
        while held.read_bytes() == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert refused
        assert held.read_bytes() != first


def test_a_process_that_ends_while_it_is_looked_at_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel opens `/proc/PID/stat` for a live process, and reading it fails once it has ended."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def read_text(path: Path) -> str:
        with path.open() as stream:
            process.kill()
            process.wait()
            return stream.read()

    monkeypatch.setattr(Path, "read_text", read_text)
    assert leases.start_of(process.pid) is None
