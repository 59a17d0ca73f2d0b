"""Launch all ranks of a machine together, watch them, and end them together whatever happens to one of them."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from model.checkpoint.run_folder import complete_markers, steps_before
from model.config.train import TrainConfig
from model.distributed.heartbeat import Beat, read_beat
from model.distributed.protocol import StopRequest, create_rank_directory, error_file, heartbeat_file
from model.launch.diagnostics import private_memory
from model.launch.failures import Failure, RankExit, infra_failure, read_error_report, root_cause
from model.launch.rendezvous import Change, HostLost
from model.launch.replicas import HostRanks
from model.launch.template import RankProcess, Request, Template, Work
from model.launch.watchdog import Hang, RankMonitor, Straggler, innermost_call, process_state, request_stacks
from model.processes import write_log

POLL_SECONDS = 0.05

CHECK_SECONDS = 1.0
"""Seconds between checks of checkpoints, memory and speed."""

GRACE_SECONDS = 5.0
"""Seconds that the other ranks get to end by themselves and report why, once one has failed."""


class StopOfRanks(StopRequest):
    """Passes a request to stop on to the running processes."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[RankProcess] = []

    def pass_on(self) -> None:
        """Ask the processes to stop."""
        for process in self.processes:
            process.terminate()


@dataclass
class Launch:
    """The state of the ranks of one launch."""

    out: Path
    step: int = 0
    """Steps of the whole run made by the rank that is farthest."""
    saved_at: float | None = None
    """When a new checkpoint was last seen, by the monotonic clock."""
    memory: int = 0
    """Peak of the private memory of all ranks, in bytes."""
    failure: Failure | None = None
    finished: bool = False
    """Whether training is finished; with neither this nor a failure, the ranks were stopped at a checkpoint."""
    _before: frozenset[tuple[Path, int]] = field(default_factory=frozenset)

    def update(self, ranks: Sequence[RankProcess]) -> None:
        """Check for new checkpoints, and measure memory."""
        now = checkpoints(self.out)
        if now - self._before:
            self.saved_at = time.monotonic()
        self._before = now
        self.memory = max(self.memory, sum(private_memory(rank.pid) for rank in ranks))


def checkpoints(out: Path) -> frozenset[tuple[Path, int]]:
    """Return all complete checkpoints, each with the time of its marker, which differs in a later one of its name."""
    found: set[tuple[Path, int]] = set()
    for marker in complete_markers(out):
        try:
            found.add((marker.parent, marker.stat().st_mtime_ns))
        except FileNotFoundError:
            continue
    return frozenset(found)


def newest_step(out: Path) -> int:
    """Return the steps before the newest complete checkpoint; 0 without one."""
    return max((steps_before(folder) for folder, _ in checkpoints(out)), default=0)


def run_ranks(
    train: TrainConfig,
    out: Path,
    template: Template,
    arguments: Callable[[int, Path], list[str]],
    host_ranks: HostRanks,
    stop: StopOfRanks,
    on_straggler: Callable[[Straggler], None],
    *,
    until_checkpoint: bool = False,
    change: Callable[[], Change | None] = lambda: None,
    host: str = "",
) -> Launch:
    """Run this machine's ranks, each with `arguments(rank, rank_dir)`, until all end or one fails or hangs; kill the
    rest.

    The first of all ranks inherits stdout; output of the others goes to stderr. With `until_checkpoint`, or once
    `change` reports that a machine has returned, the ranks are asked to stop at the next checkpoint. Where `change`
    reports that a machine has restarted, or raises HostLost, the launch fails. `host` names this machine among several.
    """
    launch = Launch(out, _before=checkpoints(out))
    rank_dir = None
    try:
        rank_dir = create_rank_directory(out, host)
        requests = [arguments(rank, rank_dir) for rank in host_ranks.ranks]
        speaks = 0 in host_ranks.ranks
        with started(template, "rank", requests, host_ranks.local, stop, speaks=speaks) as ranks:
            _watch(launch, train, host_ranks, ranks, rank_dir, stop, on_straggler, change, until_checkpoint)
    except OSError as error:
        launch.failure = infra_failure(f"{type(error).__name__}: {error}")
    finally:
        if rank_dir is not None:
            shutil.rmtree(rank_dir, ignore_errors=True)
    launch.update([])
    return launch


@contextmanager
def started(
    template: Template,
    work: Work,
    requests: Sequence[list[str]],
    local_ranks: Sequence[int],
    stop: StopOfRanks,
    *,
    speaks: bool,
) -> Iterator[list[RankProcess]]:
    """Start a process for each request that receives requests to stop, and kill those left on exit.

    Each trains or diagnoses with its arguments, in the environment of a trainer with its number among all ranks
    of this machine, that of its CUDA device (LOCAL_RANK, as torch and DeepSpeed read it too). The first one `speaks`.
    """
    processes = stop.processes = []
    try:
        for number, (arguments, local) in enumerate(zip(requests, local_ranks, strict=True)):
            processes.append(template.start(Request(work, arguments, local, speaks and number == 0)))
        if stop.stop_requested:
            stop.pass_on()
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        stop.processes = []


def _watch(
    launch: Launch,
    train: TrainConfig,
    host_ranks: HostRanks,
    ranks: Sequence[RankProcess],
    rank_dir: Path,
    stop: StopOfRanks,
    on_straggler: Callable[[Straggler], None],
    change: Callable[[], Change | None],
    until_checkpoint: bool,
) -> None:
    began = time.monotonic()
    monitor = RankMonitor(len(ranks), train.hang_seconds, train.start_seconds, began)
    ends: dict[int, RankExit] = {}
    check_at, give_up_at, returning = began, float("inf"), False
    while True:
        now = time.monotonic()
        for at, (rank, process) in enumerate(zip(host_ranks.ranks, ranks, strict=True)):
            if at not in ends and (code := process.poll()) is not None:
                ends[at] = RankExit(rank, code, read_error_report(error_file(rank_dir, rank)))
        monitor.update(_beats(host_ranks, rank_dir), now)
        launch.step = monitor.step
        if len(ends) == len(ranks) or now > give_up_at:
            break
        if give_up_at == float("inf"):
            if any(end.code for end in ends.values()):
                give_up_at = now + GRACE_SECONDS
            elif hang := monitor.hang(now, frozenset(range(len(ranks))) - set(ends)):
                launch.failure = _hang_failure(hang, host_ranks, ranks, rank_dir)
                return
        if now >= check_at:
            check_at = now + CHECK_SECONDS
            launch.update(ranks)
            for straggler in monitor.slow():
                on_straggler(replace(straggler, rank=host_ranks.ranks[straggler.rank]))
            try:
                changed = change()
            except HostLost as lost:
                launch.failure = infra_failure(str(lost))
                return
            if changed == "restarted":
                launch.failure = infra_failure("another machine starts its ranks again")
                return
            until_checkpoint |= changed == "returned"
            if until_checkpoint and not returning and launch.saved_at is not None:
                returning = True
                stop.pass_on()
        time.sleep(POLL_SECONDS)
    launch.failure = root_cause(list(ends.values()), host_ranks.size)
    launch.finished = launch.failure is None
    if returning and launch.failure is not None and launch.failure.restarts:
        launch.failure = None


def _beats(host_ranks: HostRanks, rank_dir: Path) -> dict[int, Beat]:
    """Return the heartbeats of this machine's ranks, by their index among them."""
    beats = {at: read_beat(heartbeat_file(rank_dir, rank)) for at, rank in enumerate(host_ranks.ranks)}
    return {at: beat for at, beat in beats.items() if beat is not None}


def _hang_failure(hang: Hang, host_ranks: HostRanks, ranks: Sequence[RankProcess], rank_dir: Path) -> Failure:
    """Return a failure of the rank that hangs, or of none where all wait, and where it hangs; write the stacks of all
    ranks to stderr."""
    alive = zip(host_ranks.ranks, ranks, strict=True)
    running = {rank: process.pid for rank, process in alive if process.poll() is None}
    states = {rank: state for rank, pid in running.items() if (state := process_state(pid)) is not None}
    # A rank that cannot run is the cause, even where it fell silent while it waited.
    silent = host_ranks.ranks[hang.rank]
    culprit = silent if silent in states else next(iter(states), silent)
    stacks = request_stacks(rank_dir, running)
    for rank, text in stacks.items():
        write_log(f"stacks of rank {rank} of {host_ranks.size} when it hung:\n{text or 'no answer'}\n")
    call = innermost_call(stacks.get(culprit, ""))
    who = "the trainer" if host_ranks.size == 1 else f"rank {culprit} of {host_ranks.size}"
    nobody_known = hang.waits and culprit not in states
    details = [
        f"{who} hung: no heartbeat for {hang.silent_seconds:.0f} seconds after step {hang.step} (train.{hang.limit})",
        *([f"it is {states[culprit]}"] if culprit in states else []),
        *([f"it was at {call}"] if call else []),
        *(["all ranks wait for each other"] if nobody_known else []),
    ]
    return infra_failure(", ".join(details), None if nobody_known else culprit)
