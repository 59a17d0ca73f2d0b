"""One launch: all ranks started together, watched, and ended together whatever happens to one of them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from model.checkpoint.run_folder import complete_markers, steps_before
from model.config.environment import trainer_environment
from model.config.train import TrainConfig
from model.distributed.heartbeat import Beat, read_beat
from model.distributed.protocol import STOP_SIGNALS, create_rank_directory, error_file, heartbeat_file
from model.launch.diagnostics import private_memory
from model.launch.failures import End, Failure, infra, judge, read_words
from model.launch.rendezvous import Change, Lost, Place
from model.launch.watchdog import Hang, Slow, Watch, ask_for_stacks, innermost_call, state_of

POLL_SECONDS = 0.05

SECONDS_BETWEEN_LOOKS = 1.0
"""At checkpoints, memory and speed."""

GRACE_SECONDS = 5.0
"""What the other ranks get to end by themselves and say why, once one has failed."""

Process = subprocess.Popen[bytes]


class StopRequest:
    """SIGTERM or Ctrl-C, heard while this is entered, and passed on to the processes that run then."""

    def __init__(self) -> None:
        self.asked = False
        self.processes: list[Process] = []

    def __enter__(self) -> "StopRequest":
        self._handlers = {asked: signal.signal(asked, self._hear) for asked in STOP_SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for asked, handler in self._handlers.items():
            signal.signal(asked, handler)

    def _hear(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self.asked = True
        self.pass_on()

    def pass_on(self) -> None:
        """Ask the processes to stop."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()


@dataclass
class Launch:
    """What has come of the ranks so far."""

    out: Path
    step: int = 0
    """Steps made, of the whole run, by the rank that is farthest."""
    saved_at: float | None = None
    """When a new checkpoint was seen last, by the monotonic clock."""
    memory: int = 0
    """Bytes that the ranks had for themselves at most."""
    failure: Failure | None = None
    finished: bool = False
    """Whether training came to its end; where there is no failure either, the ranks were stopped at a checkpoint."""
    _before: frozenset[tuple[Path, int]] = field(default_factory=frozenset)

    def look(self, ranks: Sequence[Process]) -> None:
        """At checkpoints and memory."""
        now = checkpoints(self.out)
        if now - self._before:
            self.saved_at = time.monotonic()
        self._before = now
        self.memory = max(self.memory, sum(private_memory(rank.pid) for rank in ranks))


def checkpoints(out: Path) -> frozenset[tuple[Path, int]]:
    """All complete checkpoints, and what tells one from a later one of the same name."""
    found: set[tuple[Path, int]] = set()
    for marker in complete_markers(out):
        try:
            found.add((marker.parent, marker.stat().st_mtime_ns))
        except FileNotFoundError:
            continue
    return frozenset(found)


def newest_step(out: Path) -> int:
    """Steps that the newest complete checkpoint holds; 0 before the first."""
    return max((steps_before(folder) for folder, _ in checkpoints(out)), default=0)


def run_ranks(
    train: TrainConfig,
    out: Path,
    command: Callable[[int, Path], list[str]],
    place: Place,
    stop: StopRequest,
    tell_slow: Callable[[Slow], None],
    *,
    until_checkpoint: bool = False,
    change: Callable[[], Change | None] = lambda: None,
    host: str = "",
) -> Launch:
    """Run this machine's ranks, each by `command(rank, meeting)`, until all end, one fails, or one hangs; then none is
    left.

    The first of all ranks has our stdout; whatever the others print goes to stderr. With `until_checkpoint`, or once
    `change` says that a machine has returned, they are asked to stop when there is a new checkpoint; where it says that
    one has restarted, or raises Lost, none of them goes on. `host` names this machine among several.
    """
    launch = Launch(out, _before=checkpoints(out))
    try:
        meeting = create_rank_directory(out, host)
    except OSError as error:
        launch.failure = infra(f"{type(error).__name__}: {error}")
        return launch
    try:
        commands = [command(rank, meeting) for rank in place.ranks]
        with started(commands, stop, train.given, first_speaks=place.first == 0) as ranks:
            _watch(launch, train, place, ranks, meeting, stop, tell_slow, change, until_checkpoint)
    finally:
        shutil.rmtree(meeting, ignore_errors=True)
    launch.look([])
    return launch


@contextmanager
def started(
    commands: Sequence[list[str]], stop: StopRequest, given: Mapping[str, str], *, first_speaks: bool = True
) -> Iterator[list[Process]]:
    """Processes that get our requests to stop, and are gone afterwards; their environment is that of a trainer with
    the variables `given`."""
    processes = stop.processes = []
    environment = trainer_environment(os.environ, given)
    try:
        for number, command in enumerate(commands):
            stdout = None if number == 0 and first_speaks else sys.stderr.fileno()
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, env=environment))
        if stop.asked:
            stop.pass_on()
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        stop.processes = []


def _watch(
    launch: Launch,
    train: TrainConfig,
    place: Place,
    ranks: Sequence[Process],
    meeting: Path,
    stop: StopRequest,
    tell_slow: Callable[[Slow], None],
    change: Callable[[], Change | None],
    until_checkpoint: bool,
) -> None:
    began = time.monotonic()
    watch = Watch(len(ranks), train.hang_seconds, train.start_seconds, began)
    ends: dict[int, End] = {}
    look_at, give_up_at, returning = began, float("inf"), False
    while True:
        now = time.monotonic()
        ends |= {at: _end(place.first + at, code, meeting) for at, code in _ended(ranks) if at not in ends}
        watch.look(_beats(place, meeting), now)
        launch.step = watch.step
        if len(ends) == len(ranks) or now > give_up_at:
            break
        if give_up_at == float("inf"):
            if any(end.code for end in ends.values()):
                give_up_at = now + GRACE_SECONDS
            elif hang := watch.hang(now, frozenset(range(len(ranks))) - set(ends)):
                launch.failure = _hung(hang, place, ranks, meeting)
                return
        if now >= look_at:
            look_at = now + SECONDS_BETWEEN_LOOKS
            launch.look(ranks)
            for slow in watch.slow():
                tell_slow(replace(slow, rank=place.first + slow.rank))
            try:
                changed = change()
            except Lost as lost:
                launch.failure = infra(str(lost))
                return
            if changed == "restarted":
                launch.failure = infra("another machine starts its ranks again")
                return
            until_checkpoint |= changed == "returned"
            if until_checkpoint and not returning and launch.saved_at is not None:
                returning = True
                stop.pass_on()
        time.sleep(POLL_SECONDS)
    launch.failure = judge(list(ends.values()), place.size)
    launch.finished = launch.failure is None
    if returning and launch.failure is not None and launch.failure.restarts:
        launch.failure = None


def _ended(ranks: Sequence[Process]) -> list[tuple[int, int]]:
    return [(rank, code) for rank, process in enumerate(ranks) if (code := process.poll()) is not None]


def _end(rank: int, code: int, meeting: Path) -> End:
    return End(rank, code, read_words(error_file(meeting, rank)))


def _beats(place: Place, meeting: Path) -> dict[int, Beat]:
    """By place among the machine's own."""
    beats = {at: read_beat(heartbeat_file(meeting, rank)) for at, rank in enumerate(place.ranks)}
    return {at: beat for at, beat in beats.items() if beat is not None}


def _hung(hang: Hang, place: Place, ranks: Sequence[Process], meeting: Path) -> Failure:
    """Say which rank hangs and where; the stacks of all go to stderr."""
    alive = zip(place.ranks, ranks, strict=True)
    running = {rank: process.pid for rank, process in alive if process.poll() is None}
    states = {rank: state for rank, pid in running.items() if (state := state_of(pid)) is not None}
    # One that cannot run is the cause, even where it fell silent while it waited.
    silent = place.first + hang.rank
    culprit = silent if silent in states else next(iter(states), silent)
    stacks = ask_for_stacks(meeting, running)
    for rank, text in stacks.items():
        sys.stderr.write(f"rank {rank} of {place.size}, when it was found silent:\n{text or 'no answer'}\n")
    call = innermost_call(stacks.get(culprit, ""))
    who = "the trainer" if place.size == 1 else f"rank {culprit} of {place.size}"
    told = [
        f"{who} hung: no sign for {hang.silent_seconds:.0f} seconds after step {hang.step} (train.{hang.limit})",
        *([f"it is {states[culprit]}"] if culprit in states else []),
        *([f"it was at {call}"] if call else []),
        *(["it waits for the others, as they do"] if hang.waits and culprit not in states else []),
    ]
    return infra(", ".join(told), culprit)
