"""Which rank hangs and which is slow, from what each shows of itself (`model/distributed/heartbeat.py`).

Ranks work in lockstep: when one hangs, all fall silent, and it is the one that does not wait for others. When one is
slow, all steps take longer, and it is the one whose own work does. Time is this process's monotonic clock.

Where a silent rank hangs: its threads' stacks, and what the system says of its process.
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
"""Own work over those steps below which nobody is called slow: one busy millisecond more is no fault."""


@dataclass(frozen=True)
class Hang:
    """No sign for too long."""

    rank: int
    """The one that does not wait for others, or the first of those that do."""
    waits: bool
    """Whether it waits too, so that no rank of this machine is known to be the cause."""
    step: int
    silent_seconds: float
    limit: str
    """The setting that was passed."""


@dataclass(frozen=True)
class Slow:
    """A rank whose own work took much longer than that of the others."""

    rank: int
    step: int
    seconds_per_step: float
    others_seconds_per_step: float


@dataclass
class _Seen:
    beat: Beat | None = None
    changed_at: float = 0.0
    window: list[tuple[int, float]] = field(default_factory=list)
    """Steps and the seconds of own work up to them, over the last SLOW_STEPS steps or a few more."""
    told_slow: bool = False


class Watch:
    """Looks at the beats of all ranks of one attempt, again and again."""

    def __init__(self, size: int, hang_seconds: float, start_seconds: float, now: float) -> None:
        self._limits = {True: ("hang_seconds", hang_seconds), False: ("start_seconds", start_seconds)}
        self._ranks = [_Seen(changed_at=now) for _ in range(size)]

    @property
    def step(self) -> int:
        """Steps that are made by the rank that is farthest."""
        return max((seen.beat.step for seen in self._ranks if seen.beat is not None), default=0)

    def look(self, beats: Mapping[int, Beat], now: float) -> None:
        """Take in what ranks show now."""
        for rank, beat in beats.items():
            seen = self._ranks[rank]
            if seen.beat is None or beat.number != seen.beat.number:
                seen.beat, seen.changed_at = beat, now
                if beat.activity == STEPPING and (not seen.window or beat.step > seen.window[-1][0]):
                    seen.window.append((beat.step, beat.busy_seconds))
                    while len(seen.window) > 2 and seen.window[1][0] <= beat.step - SLOW_STEPS:
                        del seen.window[0]

    def hang(self, now: float, running: frozenset[int]) -> Hang | None:
        """Who of the ranks that still run is to blame where one has been silent for too long; None where none has."""
        there = [(rank, seen) for rank, seen in enumerate(self._ranks) if rank in running]
        limits = [self._limit(seen)[0] for _, seen in there if now - seen.changed_at > self._limit(seen)[1]]
        if not limits:
            return None
        rank, seen = max(there, key=lambda it: (not _waits(it[1]), now - it[1].changed_at))
        step = seen.beat.step if seen.beat else self.step
        return Hang(rank, _waits(seen), step, now - seen.changed_at, limits[0])

    def _limit(self, seen: _Seen) -> tuple[str, float]:
        return self._limits[seen.beat is not None and seen.beat.activity == STEPPING]

    def slow(self) -> list[Slow]:
        """Ranks that have become slow since they were last told, over the last SLOW_STEPS steps."""
        rates = [_seconds_per_step(seen) for seen in self._ranks]
        if len(rates) < 2 or None in rates:
            return []
        told: list[Slow] = []
        for rank, (rate, seen) in enumerate(zip(rates, self._ranks, strict=True)):
            others = statistics.median(
                other for place, other in enumerate(rates) if place != rank and other is not None
            )
            assert rate is not None, "looked at above"
            is_slow = rate > SLOW_RATIO * others and (rate - others) * SLOW_STEPS > SLOW_SECONDS
            if is_slow and not seen.told_slow:
                told.append(Slow(rank, self.step, rate, others))
            seen.told_slow = is_slow
        return told


def _waits(seen: _Seen) -> bool:
    return seen.beat is not None and seen.beat.waiting


def _seconds_per_step(seen: _Seen) -> float | None:
    """Of a rank's own work; None before SLOW_STEPS steps were seen."""
    if not seen.window or seen.window[-1][0] - seen.window[0][0] < SLOW_STEPS:
        return None
    (first, before), (last, after) = seen.window[0], seen.window[-1]
    return (after - before) / (last - first)


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
