"""Supervise a training: start the ranks, and restart them from the last checkpoint when the machine fails.

Every training has a supervisor, that of a single process too. It loads no PyTorch (30 MiB, a fifth of a second to
start), so that it survives where a rank runs out of memory. torchrun is not used: its agent passes SIGTERM on and waits
for `--shutdown-timeout` (torch 2.13), but exits with 1 whatever a rank exited with, and leaves ranks behind when it is
killed itself.

A replica that fails again and again is left out where that is allowed (`model/launch/replicas.py`).

With several hosts each has a supervisor. They agree on the machines of a round (`model/launch/rendezvous.py`), each
starts and judges its own ranks, and one whose machine computes wrongly, or fails again and again where the others can
go on without it, does not join the next round. The first host's
supervisor writes the record; when it ends, all end.

Who restarts what: this module restarts ranks, the train task retries the stage, an automation the flow.
"""

import json
import shutil
import signal
import sys
import time
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path

from model.checkpoint.complete_marker import find_damage
from model.checkpoint.run_folder import HEARTBEAT, RESULT
from model.config.train import TrainerRun
from model.distributed.protocol import create_rank_directory, error_file
from model.errors import Infra
from model.launch.diagnostics import find_shortage
from model.launch.failures import (
    LOST_CONNECTION,
    Failure,
    RankExit,
    RestartBudget,
    RestartLog,
    infra_failure,
    read_error_report,
    root_cause,
)
from model.launch.launcher import Launch, StopOfRanks, newest_step, run_ranks, started
from model.launch.rendezvous import HostLost, Rendezvous
from model.launch.replicas import MOST_FAILURES, HostRanks, Replicas
from model.launch.template import Template
from model.processes import write_log

DIAGNOSIS_SECONDS = 120.0


class Supervisor:
    """Starts ranks, counts failures, and decides about restarts."""

    def __init__(self, run: TrainerRun, run_file: Path) -> None:
        self._run = run
        self._run_file = run_file
        self._rendezvous = Rendezvous(run) if run.train.hosts.count > 1 else None
        self._replicas = Replicas(run.train)
        self._host_ranks: HostRanks | None = None
        """Those of the last round of several machines; None before the first."""
        self._stop = StopOfRanks()
        self._template = Template(run_file, run.train.given, run.train.start_seconds)
        self._budget = RestartBudget(run.train.restarts)
        self._record = RestartLog(run.out)
        self._restarts = 0
        self._step = 0
        """Steps made when the ranks last ended."""
        self._memory = 0
        self._saved_at = time.monotonic()
        """When a new checkpoint was last seen; before the first, when this process began."""

    def supervise(self) -> int:
        """Train to the end, through as many restarts as `run.train.restarts` allows; return the exit code.

        The failure that ended training is written to stderr. SIGTERM and Ctrl-C are passed on to the ranks, and nothing
        is restarted after one. stdout carries the messages of the first rank and of this process.
        """
        with self._stop, closing(self._template):
            while (failure := self._launch()) is not None:
                while failure is not None:
                    final = self._wait_for_restart(failure)
                    if final is not None:
                        write_log(f"{final.message}\n")
                        return final.code
                    failure = self._diagnose()
        return 0

    def _launch(self) -> Failure | None:
        """Run the ranks until training is finished (None) or fails."""
        while True:
            if find_damage(self._run.out / RESULT) is None:
                # The other machines finished the training without this one.
                return None
            try:
                host_ranks = self._join_round()
            except HostLost as lost:
                return infra_failure(str(lost))
            if host_ranks is None:
                return infra_failure("asked to stop while it waited for other machines")
            launch = run_ranks(
                self._run.train,
                self._run.out,
                self._template,
                lambda rank, rank_dir, host_ranks=host_ranks: self._arguments(rank, rank_dir, host_ranks),
                host_ranks,
                self._stop,
                lambda slow: self._report("slow_rank", **asdict(slow)),
                until_checkpoint=bool(host_ranks.left_out),
                change=(lambda: None) if self._rendezvous is None else self._rendezvous.change,
                host=self._host,
            )
            self._record_launch(launch)
            if launch.finished or launch.failure is not None:
                return launch.failure
            if self._stop.stop_requested:
                return infra_failure("asked to stop; a checkpoint was written, run again to go on")
            if self._rendezvous is None:
                back = self._replicas.take_back()
                if (failure := self._diagnose()) is not None:
                    return failure
                self._report("all_ranks", step=self._step, ranks=self._run.train.ranks, replicas=back)

    def _join_round(self) -> HostRanks | None:
        """Return this machine's ranks in the next round; None where it is asked to stop before."""
        if self._rendezvous is None:
            return self._replicas.ranks()
        before = self._run.train.hosts.count if self._host_ranks is None else self._host_ranks.hosts
        host_ranks = self._rendezvous.next_round(self._keep_waiting)
        if host_ranks is not None:
            self._host_ranks = host_ranks
            if host_ranks.hosts != before:
                facts = {"hosts": host_ranks.hosts, "of": self._run.train.hosts.count, "ranks": host_ranks.size}
                self._report("hosts", step=self._step, **facts)
        return host_ranks

    def _keep_waiting(self) -> bool:
        self._touch_heartbeat()
        return not self._stop.stop_requested

    def _arguments(self, rank: int, rank_dir: Path, launch: HostRanks) -> list[str]:
        left_out = ",".join(map(str, launch.left_out))
        return [str(self._run_file), str(rank), str(rank_dir), str(launch.size), left_out, launch.store or ""]

    def _record_launch(self, launch: Launch) -> None:
        self._memory = max(self._memory, launch.memory)
        if launch.saved_at is not None:
            self._saved_at = launch.saved_at
            self._budget.progress()
            self._replicas.saved()
        self._step = max(launch.step, newest_step(self._run.out))

    def _wait_for_restart(self, failure: Failure) -> Failure | None:
        """Record the restart that is to come and wait as long as it takes; instead, what training ends with."""
        if self._stop.stop_requested and failure.signal == signal.SIGTERM.name:
            # Ranks take no request before they have begun to train, which is when the signal kills them.
            return infra_failure("asked to stop while the ranks were starting; run again to go on")
        if self._stop.stop_requested or not failure.restarts:
            return failure
        if self._run.train.restarts.fewer_ranks and (leaves := self._leave_out_failing(failure)) is not None:
            return leaves
        pause = self._budget.next_pause()
        if pause is None:
            return self._out_of_restarts(failure)
        self._restarts += 1
        self._report(
            "restart",
            step=self._step,
            checkpoint=newest_step(self._run.out),
            words=failure.message,
            rank=failure.rank,
            signal=failure.signal,
            number=self._restarts,
            in_a_row=self._budget.consecutive,
            ranks=self._expected_size,
            pause_seconds=pause,
            seconds_lost=round(time.monotonic() - self._saved_at + pause, 3),
        )
        write_log(f"{failure.message}; ranks are restarted from the last checkpoint in {pause:g} seconds\n")
        until = time.monotonic() + pause
        while not self._stop.stop_requested and (left := until - time.monotonic()) > 0:
            self._touch_heartbeat()
            time.sleep(min(left, 1.0))
        return failure if self._stop.stop_requested else None

    @property
    def _host(self) -> str:
        """Name of this machine among several."""
        return "" if self._rendezvous is None else self._rendezvous.name

    @property
    def _expected_size(self) -> int:
        """Ranks of the next launch; with several machines, where none leaves or returns."""
        if self._rendezvous is None:
            return self._replicas.ranks().size
        return self._run.train.ranks if self._host_ranks is None else self._host_ranks.size

    def _leave_out_failing(self, failure: Failure) -> Failure | None:
        """Continue without the replica that has failed repeatedly; return a failure where this whole machine leaves."""
        rank = None if failure.message.endswith(LOST_CONNECTION) else failure.rank
        if self._rendezvous is None:
            if self._replicas.failed(rank) and rank is not None and self._replicas.leave_out(rank):
                self._budget.progress()
            return None
        # The others go on without this machine, whichever of its ranks fail. Without the first one none can.
        if not self._replicas.failed(None if rank is None else 0) or self._rendezvous.is_head:
            return None
        again = "The other machines continue; call `bessemer training join` here once this one is repaired"
        return infra_failure(
            f"{_message(failure)}, {MOST_FAILURES} times without a checkpoint. {again}", rank, failure.signal
        )

    def _out_of_restarts(self, failure: Failure) -> Failure:
        most = self._run.train.restarts.most
        again = "Run again to resume from the last checkpoint"
        if most == 0:
            return infra_failure(f"{_message(failure)}. {again}", failure.rank, failure.signal)
        return infra_failure(
            f"training failed {most + 1} times in a row without a checkpoint after step"
            f" {newest_step(self._run.out)}; no more restarts (train.restarts.most). The last failure:"
            f" {_message(failure)}. {again}",
            failure.rank,
            failure.signal,
        )

    def _diagnose(self) -> Failure | None:
        """Check the machine before ranks are restarted; return what is wrong with it, if anything."""
        self._touch_heartbeat()
        lacking = find_shortage(self._run.out, self._memory)
        if lacking is not None:
            return infra_failure(lacking)
        try:
            rank_dir = create_rank_directory(self._run.out, self._host)
        except OSError as error:
            return infra_failure(f"{type(error).__name__}: {error}")
        here = self._replicas.ranks()
        if self._rendezvous is not None:
            local = tuple(range(self._run.train.ranks // self._run.train.hosts.count))
            here = HostRanks(local, local, len(local))
        requests = [self._arguments(rank, rank_dir, here) for rank in here.ranks]
        try:
            with started(self._template, "diag", requests, here.local, self._stop, speaks=False) as processes:
                deadline = time.monotonic() + DIAGNOSIS_SECONDS
                # One that has failed leaves others waiting for it.
                while not any(codes := [process.poll() for process in processes]) and None in codes:
                    if time.monotonic() > deadline:
                        return infra_failure(
                            f"the diagnosis of this machine took more than {DIAGNOSIS_SECONDS:.0f} seconds"
                        )
                    time.sleep(0.02)
            ends = [
                RankExit(rank, code or 0, read_error_report(error_file(rank_dir, rank)))
                for rank, code in enumerate(codes)
            ]
        except OSError as error:
            return infra_failure(f"{type(error).__name__}: {error}")
        finally:
            shutil.rmtree(rank_dir, ignore_errors=True)
        failure = root_cause(ends, here.size)
        # A process with an error report has found a fault; one without was killed, or lost the others. Ranks on
        # processors share them, and training may go on without a device that computes wrongly.
        is_final = any(end.error for end in ends) and not self._can_lose_devices
        return failure and replace(failure, final=is_final)

    @property
    def _can_lose_devices(self) -> bool:
        train = self._run.train
        return train.restarts.fewer_ranks and train.device == "cuda" and self._rendezvous is None

    def _report(self, kind: str, step: int, **facts: object) -> None:
        if self._rendezvous is not None and not self._rendezvous.is_head:
            # Only the first host's supervisor writes the record of a run.
            write_log(json.dumps({"event": kind, "step": step, **facts}) + "\n")
            return
        self._record.append(kind, step=step, **facts)
        sys.stdout.write(json.dumps({"kind": "event", "event": kind, "step": step, **facts}) + "\n")
        sys.stdout.flush()

    def _touch_heartbeat(self) -> None:
        """Show the launcher that a pause is no hang."""
        with suppress(OSError):
            (self._run.out / HEARTBEAT).touch()


def _message(failure: Failure) -> str:
    return failure.message.removeprefix(f"{Infra.__name__}: ").rstrip(".")
