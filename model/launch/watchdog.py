"""Find the rank that hangs and ranks that are slow, from their heartbeats (`model/distributed/heartbeat.py`).

Ranks work in lockstep: when one hangs, all fall silent, and the cause is the one that does not wait for others. When
one is slow, all steps take longer, and the cause is the one whose own work takes longer. Time is this process's
monotonic clock. Where a silent rank hangs is read from its threads' stacks and the state of its process.
"""

import faulthandler
import os
import re
import signal
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from model.distributed.heartbeat import STEPPING, Beat
from model.distributed.protocol import stacks_file

SLOW_STEPS = 32
"""Steps over which a rank's own work is compared with that of the others."""

SLOW_RATIO = 3.0

SLOW_SECONDS = 0.5
"""Extra seconds of own work over those steps below which no rank counts as slow: a busy millisecond is no fault."""


@dataclass(frozen=True)
class Hang:
    """A rank without a heartbeat for too long."""

    rank: int
    """The one that does not wait for others, or the one silent for longest where all wait."""
    waits: bool
    """Whether it waits too, so that no rank of this machine is known to be the cause."""
    step: int
    silent_seconds: float
    limit: str
    """The setting whose limit was passed."""


@dataclass(frozen=True)
class Straggler:
    """A rank whose own work took much longer than that of the others."""

    rank: int
    step: int
    seconds_per_step: float
    others_seconds_per_step: float


@dataclass
class _RankState:
    beat: Beat | None = None
    changed_at: float = 0.0
    window: list[tuple[int, float]] = field(default_factory=list)
    """(step, seconds of own work up to it) over the last SLOW_STEPS steps or a few more."""
    reported_slow: bool = False


class RankMonitor:
    """Follows the heartbeats of all ranks of one launch."""

    def __init__(self, size: int, hang_seconds: float, start_seconds: float, now: float) -> None:
        self._limits = {True: ("hang_seconds", hang_seconds), False: ("start_seconds", start_seconds)}
        self._ranks = [_RankState(changed_at=now) for _ in range(size)]

    @property
    def step(self) -> int:
        """Steps made by the rank that is farthest."""
        return max((seen.beat.step for seen in self._ranks if seen.beat is not None), default=0)

    def update(self, beats: Mapping[int, Beat], now: float) -> None:
        """Add the newest heartbeats."""
        for rank, beat in beats.items():
            seen = self._ranks[rank]
            if seen.beat is None or beat.number != seen.beat.number:
                seen.beat, seen.changed_at = beat, now
                if beat.activity == STEPPING and (not seen.window or beat.step > seen.window[-1][0]):
                    seen.window.append((beat.step, beat.busy_seconds))
                    while len(seen.window) > 2 and seen.window[1][0] <= beat.step - SLOW_STEPS:
                        del seen.window[0]

    def hang(self, now: float, running: frozenset[int]) -> Hang | None:
        """Return the running rank that causes a hang where one has been silent for too long; None where none has."""
        alive = [(rank, seen) for rank, seen in enumerate(self._ranks) if rank in running]
        limits = [self._limit(seen)[0] for _, seen in alive if now - seen.changed_at > self._limit(seen)[1]]
        if not limits:
            return None
        rank, seen = max(alive, key=lambda it: (not _waits(it[1]), now - it[1].changed_at))
        step = seen.beat.step if seen.beat else self.step
        return Hang(rank, _waits(seen), step, now - seen.changed_at, limits[0])

    def _limit(self, seen: _RankState) -> tuple[str, float]:
        return self._limits[seen.beat is not None and seen.beat.activity == STEPPING]

    def slow(self) -> list[Straggler]:
        """Return the ranks that have become slow, over the last SLOW_STEPS steps, and were not reported since."""
        rates = [_seconds_per_step(seen) for seen in self._ranks]
        if len(rates) < 2 or None in rates:
            return []
        stragglers: list[Straggler] = []
        for rank, (rate, seen) in enumerate(zip(rates, self._ranks, strict=True)):
            others = statistics.median(
                other for number, other in enumerate(rates) if number != rank and other is not None
            )
            assert rate is not None, "checked above"
            is_slow = rate > SLOW_RATIO * others and (rate - others) * SLOW_STEPS > SLOW_SECONDS
            if is_slow and not seen.reported_slow:
                stragglers.append(Straggler(rank, self.step, rate, others))
            seen.reported_slow = is_slow
        return stragglers


def _waits(seen: _RankState) -> bool:
    return seen.beat is not None and seen.beat.waiting


def _seconds_per_step(seen: _RankState) -> float | None:
    """Return the seconds of a rank's own work per step; None before SLOW_STEPS steps were seen."""
    if not seen.window or seen.window[-1][0] - seen.window[0][0] < SLOW_STEPS:
        return None
    (first, before), (last, after) = seen.window[0], seen.window[-1]
    return (after - before) / (last - first)


STACKS_SIGNAL = signal.SIGUSR2

STACKS_SECONDS = 2.0
"""How long to wait for stacks."""

STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "within the system", "Z": "dead"}
"""States in /proc/PID/stat that explain why a process is silent."""


def dump_stacks_on_request(rank_dir: Path, rank: int) -> None:
    """Have this process write its threads' stacks on STACKS_SIGNAL; works while Python code hangs, too."""
    handle = os.open(stacks_file(rank_dir, rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    faulthandler.register(STACKS_SIGNAL, file=handle, all_threads=True)


def request_stacks(rank_dir: Path, pids: dict[int, int]) -> dict[int, str]:
    """Ask ranks, given as {rank: process id}, for their stacks, most recent call first; empty where none arrive.

    The signal kills a process that has not registered `dump_stacks_on_request` yet.
    """
    for pid in pids.values():
        try:
            os.kill(pid, STACKS_SIGNAL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + STACKS_SECONDS
    answers: dict[int, str] = {}
    while time.monotonic() < deadline:
        before, answers = answers, {rank: _read(stacks_file(rank_dir, rank)) for rank in pids}
        if all(answers.values()) and answers == before:
            break
        time.sleep(0.1)
    return answers


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def innermost_call(stacks: str) -> str | None:
    """Return the line that the main thread executes, such as `ranks.py:61 in sum_`; its block is the last one."""
    blocks = re.split(r"^(?:Current thread|Thread) 0x", stacks, flags=re.MULTILINE)
    for line in blocks[-1].splitlines():
        if line.strip().startswith("File "):
            file, _, rest = line.strip().removeprefix("File ").partition(", line ")
            number, _, function = rest.partition(" in ")
            return f"{Path(file.strip(chr(34))).name}:{number} in {function}"
    return None


def process_state(pid: int) -> str | None:
    """Return the state of a process where that explains why it is silent."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    return STATES.get(letter)
