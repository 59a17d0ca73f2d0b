"""The folder in which the ranks of one launch meet: how they find each other, what they leave for the supervisor."""

import shutil
import time
import uuid
from pathlib import Path

from model.heartbeat import is_held

PREFIX = "ranks-"
SECONDS_TO_GO = 10.0
"""A killed process that the kernel still writes for, or one that is paused. The latter was given up."""


def new_meeting(out: Path, host: str = "") -> Path:
    """A folder for ranks of one machine to meet in; `host` names it among several that see the same files. Left-overs
    go, once the processes of a supervisor that was killed are gone too: the kernel ends them with it, but not within
    the same instant."""
    deadline = time.monotonic() + SECONDS_TO_GO
    prefix = f"{PREFIX}{host}-" if host else PREFIX
    for left_over in out.glob(f"{prefix}*"):
        while any(map(is_held, left_over.glob("*.beat"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(left_over, ignore_errors=True)
    meeting = out / f"{prefix}{uuid.uuid4().hex[:8]}"
    meeting.mkdir(parents=True)
    return meeting


def words_file(meeting: Path, rank: int) -> Path:
    """Where a rank leaves its last words."""
    return meeting / f"rank-{rank}.words"


def beat_file(meeting: Path, rank: int) -> Path:
    """Where a rank shows that it works."""
    return meeting / f"rank-{rank}.beat"


def stacks_file(meeting: Path, rank: int) -> Path:
    """Where a rank writes what its threads are at, when it is asked."""
    return meeting / f"rank-{rank}.stacks"


def rendezvous_file(meeting: Path) -> Path:
    """The file through which the ranks find each other."""
    return meeting / "rendezvous"
