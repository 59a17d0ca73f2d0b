"""Processes that a template forks: what they are given, how they end, and what is left of them when it ends."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from model.launch.template import RankProcess, Request, Template
from tests.model.rank_processes import is_alive

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ranks are forks on Linux only")

PROJECT = Path(__file__).parents[3]
PROBE = """
import os, signal, sys, time
from pathlib import Path

sys.modules["model.launch.diagnostics"] = sys.modules[__name__]

def main(arguments):
    first, word = arguments
    if word == "waits":
        time.sleep(60)
    if word == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "raises":
        raise ValueError("a probe")
    torch = "torch" in sys.modules
    Path(first).write_text(f"{os.environ['LOCAL_RANK']} {os.environ['GIVEN']} {torch}")
    return 7
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """A template with no run to read, whose processes do what the probe says instead of diagnosing.

    All tests share it, since it imports PyTorch when it starts: again only where one has ended it.
    """
    folder = tmp_path_factory.mktemp("template")
    (folder / "sitecustomize.py").write_text(PROBE)
    path = filter(None, [str(PROJECT), str(folder), os.environ.get("PYTHONPATH")])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(path)):
        template = Template(folder / "run.json", {"GIVEN": "a word"}, 60.0)
        yield template
        template.close()


def start(template: Template, word: str, local: int = 0, file: str = "") -> RankProcess:
    return template.start(Request("diag", [file, word], local, speaks=False))


def test_each_process_has_its_arguments_and_number_and_pytorch_is_there(template: Template, tmp_path: Path) -> None:
    files = [str(tmp_path / str(number)) for number in range(3)]
    processes = [start(template, "writes", 5 + number, file) for number, file in enumerate(files)]
    assert [process.wait() for process in processes] == [7, 7, 7]
    assert [Path(file).read_text() for file in files] == ["5 a word True", "6 a word True", "7 a word True"]


def test_a_process_that_ends_before_its_start_is_read_is_started_and_ended(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start(template, "writes", file=str(tmp_path / "0")).wait() == 7
    waiting = select.select

    def late(*words: Any) -> Any:
        time.sleep(0.5)
        return waiting(*words)

    monkeypatch.setattr("model.launch.template.select.select", late)
    process = start(template, "writes", file=str(tmp_path / "1"))
    assert process.returncode == 7


def test_exit_codes_are_those_of_programs(template: Template) -> None:
    assert start(template, "dies").wait() == -signal.SIGSEGV
    assert start(template, "raises").wait() == 1
    waiting = start(template, "waits")
    assert waiting.poll() is None
    waiting.kill()
    assert waiting.wait() == -signal.SIGKILL
    waiting.kill()


def test_a_request_to_stop_is_not_lost_while_a_process_starts(template: Template) -> None:
    for _ in range(100):
        process = start(template, "waits")
        process.terminate()
        assert process.wait() == -signal.SIGTERM


def test_processes_end_with_their_template_and_the_next_one_starts_another(template: Template, tmp_path: Path) -> None:
    first, second = start(template, "waits"), start(template, "waits")
    parent = int(Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    assert [first.wait(), second.wait()] == [-signal.SIGKILL, -signal.SIGKILL]
    assert start(template, "writes", file=str(tmp_path / "later")).wait() == 7


def test_closing_it_leaves_no_process(template: Template) -> None:
    process = start(template, "waits")
    template.close()
    assert process.poll() == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while is_alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_does_not_reach_it_while_python_starts(tmp_path: Path) -> None:
    template = Template(tmp_path / "run.json", {}, 60.0)
    try:
        template._launch()
        assert template._program is not None
        status = Path(f"/proc/{template._program.pid}/status").read_text()
        blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk:")).split()[1], 16)
        assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM))
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGINT, signal.SIGTERM} == set()
    finally:
        template.close()


def test_imports_that_take_too_long_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "safetensors.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), str(tmp_path)]))
    template = Template(tmp_path / "run.json", {}, 1.0)
    with pytest.raises(OSError, match=r"took more than 1 seconds \(train.start_seconds\)"):
        template.start(Request("diag", ["", "waits"], 0, speaks=False))
    template.close()
