"""Several ranks on one machine: started together, and ended together whatever happens to one of them.

Not torchrun: its agent answers SIGTERM by killing the ranks where ours write a checkpoint at the same step, exits with
1 whatever a rank exited with, and leaves the ranks behind when it is killed itself.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from model.config import TrainerRun
from model.errors import BessemerError, Infra
from model.link import REQUESTS_TO_STOP

MEETING = "ranks"
POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""What the other ranks get to end by themselves and say why, once one has failed."""


@dataclass(frozen=True)
class End:
    """How a rank ended: its exit code (negative: the signal) and its last words, none where it only lost the others."""

    rank: int
    code: int
    words: str | None


def words_file(meeting: Path, rank: int) -> Path:
    """Where a rank leaves its last words for the supervisor."""
    return meeting / f"rank-{rank}.words"


def rendezvous_file(meeting: Path) -> Path:
    """The file through which the ranks find each other."""
    return meeting / "rendezvous"


def supervise(run: TrainerRun, run_file: Path) -> int:
    """Run all ranks to their end; returns the exit code of the one to blame, whose words go to stderr.

    SIGTERM and Ctrl-C are passed on. As soon as a rank fails, the others are ended too. The first rank has our stdout,
    whatever else is printed goes to stderr.
    """
    for left_over in run.out.glob(f"{MEETING}-*"):
        shutil.rmtree(left_over)
    meeting = run.out / f"{MEETING}-{uuid.uuid4().hex[:8]}"
    meeting.mkdir(parents=True)
    ranks: list[subprocess.Popen[bytes]] = []

    def pass_on(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()

    handlers = {asked: signal.signal(asked, pass_on) for asked in REQUESTS_TO_STOP}
    try:
        for rank in range(run.train.ranks):
            arguments = [str(run_file), str(os.getpid()), str(rank), str(meeting)]
            stdout = None if rank == 0 else sys.stderr.fileno()
            ranks.append(subprocess.Popen([sys.executable, "-m", "model.train", *arguments], stdout=stdout))
        ends = _wait(ranks, meeting)
    finally:
        _kill(ranks)
        for asked, handler in handlers.items():
            signal.signal(asked, handler)
        shutil.rmtree(meeting, ignore_errors=True)
    return _judge(ends, run.train.ranks)


def _wait(ranks: list[subprocess.Popen[bytes]], meeting: Path) -> list[End]:
    """How the ranks ended by themselves: all of them, or all that did within the grace after the first failure."""
    deadline: float | None = None
    while True:
        codes = [rank.poll() for rank in ranks]
        if None not in codes or (deadline is not None and time.monotonic() > deadline):
            return [_end(rank, code, meeting) for rank, code in enumerate(codes) if code is not None]
        if deadline is None and any(codes):
            deadline = time.monotonic() + GRACE_SECONDS
        time.sleep(POLL_SECONDS)


def _end(rank: int, code: int, meeting: Path) -> End:
    words = words_file(meeting, rank)
    return End(rank, code, words.read_text() if words.exists() else None)


def _kill(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()


def _judge(ends: list[End], size: int) -> int:
    """The exit code to leave with. A cause counts before its consequence: an error of a rank's own, then a rank that
    was killed, then one that was asked to stop, then ranks that only lost the others."""
    failed = [end for end in ends if end.code != 0]
    if not failed:
        return 0
    own = [end for end in failed if end.words and end.code != Infra.exit_code]
    killed = [end for end in failed if end.code < 0]
    stopped = [end for end in failed if end.words]
    blamed = (own or killed or stopped or failed)[0]
    if blamed.words:
        sys.stderr.write(blamed.words)
        return blamed.code
    error = _lost(blamed, size)
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return error.exit_code


def _lost(end: End, size: int) -> BessemerError:
    who = f"rank {end.rank} of {size}"
    if end.code < 0:
        name = signal.Signals(-end.code).name
        hint = " (often the kernel, when memory runs out)" if -end.code == signal.SIGKILL else ""
        return Infra(f"{who} was killed by {name}{hint}. Run again, and training goes on from the last checkpoint")
    return Infra(f"{who} lost the others or did not start (exit code {end.code}). Run again, and training goes on")
