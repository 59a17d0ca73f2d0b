"""Where a silent rank hangs: its threads' stacks, and what the system says of its process."""

import faulthandler
import os
import re
import signal
import time
from pathlib import Path

from model.meeting import stacks_file

ASK = signal.SIGUSR2
SECONDS_TO_ANSWER = 2.0
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "within the system", "Z": "dead"}
"""Letters of /proc/PID/stat that explain a silence."""


def answer_with_stacks(meeting: Path, rank: int) -> None:
    """Have this process write the stacks of its threads whenever it is asked; works while Python code hangs, too."""
    handle = os.open(stacks_file(meeting, rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    faulthandler.register(ASK, file=handle, all_threads=True)


def ask_for_stacks(meeting: Path, pids: dict[int, int]) -> dict[int, str]:
    """What each rank (by its process id) is at: its stacks, most recent call first; empty where it does not answer.

    A process that has not come so far as to answer ends of the question.
    """
    for pid in pids.values():
        try:
            os.kill(pid, ASK)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + SECONDS_TO_ANSWER
    answers: dict[int, str] = {}
    while time.monotonic() < deadline:
        before, answers = answers, {rank: _read(stacks_file(meeting, rank)) for rank in pids}
        if all(answers.values()) and answers == before:
            break
        time.sleep(0.1)
    return answers


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def innermost_call(stacks: str) -> str | None:
    """The line at which the main thread is, such as `ranks.py:61 in sum_`; its block is the last one."""
    blocks = re.split(r"^(?:Current thread|Thread) 0x", stacks, flags=re.MULTILINE)
    for line in blocks[-1].splitlines():
        if line.strip().startswith("File "):
            file, _, rest = line.strip().removeprefix("File ").partition(", line ")
            number, _, function = rest.partition(" in ")
            return f"{Path(file.strip(chr(34))).name}:{number} in {function}"
    return None


def state_of(pid: int) -> str | None:
    """What the system says of a process, where that explains its silence."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    return STATES.get(letter)
