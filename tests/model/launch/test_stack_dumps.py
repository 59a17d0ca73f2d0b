"""Stacks of a process whose Python code hangs, and the state of one that is stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model.launch.watchdog import innermost_call, process_state, request_stacks

PROJECT = Path(__file__).resolve().parents[3]
HANGS = """
import pathlib, sys, threading, time
from model.launch.watchdog import dump_stacks_on_request
dump_stacks_on_request(pathlib.Path(sys.argv[1]), 3)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    print("hangs", flush=True)
    lock.acquire()
wait_for_a_lock()
"""


@pytest.fixture
def hanging(tmp_path: Path):
    command = [sys.executable, "-c", HANGS, str(tmp_path)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "hangs\n"
    yield process
    process.kill()
    process.communicate()


def test_all_threads_are_reported_and_the_main_one_s_call_is_named(hanging, tmp_path: Path) -> None:
    stacks = request_stacks(tmp_path, {3: hanging.pid})[3]
    assert stacks.count("hread 0x") == 2
    # It may not have come back from its print yet.
    assert innermost_call(stacks) in ("<string>:9 in wait_for_a_lock", "<string>:10 in wait_for_a_lock")
    assert hanging.poll() is None, "being asked ends nothing"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system has states in /proc")
def test_a_stopped_process_cannot_answer_and_is_reported_to_be_stopped(hanging, tmp_path: Path) -> None:
    assert process_state(hanging.pid) is None
    hanging.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    assert process_state(hanging.pid) == "stopped by a signal"
    assert request_stacks(tmp_path, {3: hanging.pid}) == {3: ""}
    hanging.kill()
    hanging.wait()
    assert process_state(hanging.pid) is None


def test_a_process_that_is_gone_has_nothing_to_say(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    began = time.monotonic()
    assert request_stacks(tmp_path, {0: process.pid}) == {0: ""}
    assert time.monotonic() - began < 10
    assert innermost_call("") is None
    assert os.listdir(tmp_path) == []
