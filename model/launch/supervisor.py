"""Trains to the end: starts the ranks, and starts them again from the last checkpoint where the machine failed them.

Every training has a supervisor, one of a single process too. It loads no PyTorch (30 MiB, a fifth of a second), so that
it lives where a rank dies for want of memory. Not torchrun: its agent passes SIGTERM on, and waits as long as
`--shutdown-timeout` says (torch 2.13), but exits with 1 whatever a rank exited with, and leaves ranks behind when it is
killed itself.

With several hosts each has its supervisor. They agree on who is there (`model/launch/rendezvous.py`), each starts and
judges its own ranks, and one whose machine computes wrongly does not come to the next meeting. The first host's writes
the record; where it ends, all do.

Who restarts what: this module restarts ranks, the train task retries the stage, an automation the flow.
"""

import json
import os
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from model.checkpoint.complete_marker import why_damaged
from model.checkpoint.run_folder import HEARTBEAT, RESULT
from model.config.train import TrainerRun
from model.distributed.protocol import create_rank_directory, error_file
from model.errors import Infra
from model.launch.diagnostics import shortage
from model.launch.failures import End, Failure, Patience, Record, infra, judge, read_words
from model.launch.launcher import Launch, StopRequest, newest_step, run_ranks, started
from model.launch.rendezvous import Lost, Place, Rendezvous
from model.launch.watchdog import Slow

DIAGNOSIS_SECONDS = 120.0

STRIKES = 3
"""Failures of one rank in a row, without progress, after which training goes on without it where it may."""


def supervise(run: TrainerRun, run_file: Path) -> int:
    """Train to the end, through as many restarts as `run.train.restarts` allows; returns the exit code of what ended
    it, whose words go to stderr.

    SIGTERM and Ctrl-C are passed on, and nothing is restarted after one. On stdout stand the messages of the first rank
    and those of this process.
    """
    return Supervisor(run, run_file).supervise()


class Supervisor:
    """Counts what failed, and decides what follows."""

    def __init__(self, run: TrainerRun, run_file: Path) -> None:
        self._run = run
        self._run_file = run_file
        self._size = run.train.ranks
        self._rendezvous = Rendezvous(run) if run.train.hosts.count > 1 else None
        self._place: Place | None = None
        self._stop = StopRequest()
        self._patience = Patience(run.train.restarts)
        self._record = Record(run.out)
        self._restarts = 0
        self._step = 0
        """Steps made when the ranks last ended."""
        self._memory = 0
        self._saved_at = time.monotonic()
        """When there was a new checkpoint last; before any, when this process began."""
        self._blamed: list[int | None] = []
        """Ranks to blame for the failures since there was progress."""

    def supervise(self) -> int:
        """Returns the exit code."""
        with self._stop:
            while (failure := self._launch()) is not None:
                while failure is not None:
                    end = self._wait_for_another(failure)
                    if end is not None:
                        sys.stderr.write(f"{end.words}\n")
                        return end.code
                    failure = self._diagnose()
        return 0

    def _launch(self) -> Failure | None:
        """Train until all is done (None) or something fails."""
        while True:
            if why_damaged(self._run.out / RESULT) is None:
                # The other machines, which are no longer there, came to the end without this one.
                return None
            try:
                place = self._meet()
            except Lost as lost:
                return infra(str(lost))
            if place is None:
                return infra("asked to stop while it waited for other machines")
            launch = run_ranks(
                self._run.train,
                self._run.out,
                lambda rank, meeting, place=place: self._command("model.train", rank, meeting, place.size, place.store),
                place,
                self._stop,
                self._tell_slow,
                **self._news(place),
            )
            self._take_stock(launch)
            if launch.finished or launch.failure is not None:
                return launch.failure
            if self._stop.asked:
                return infra("asked to stop; a checkpoint was written, run again to go on")
            if self._rendezvous is None:
                self._size = self._run.train.ranks
                self._tell("all_ranks", step=self._step, ranks=self._size)

    def _meet(self) -> Place | None:
        """Which ranks are this machine's; None where it is asked to stop before others are there."""
        if self._rendezvous is None:
            return Place(0, self._size, self._size)
        before = self._run.train.hosts.count if self._place is None else self._place.hosts
        place = self._rendezvous.meet(self._keep_waiting)
        if place is not None:
            self._place = place
            if place.hosts != before:
                facts = {"hosts": place.hosts, "of": self._run.train.hosts.count, "ranks": place.size}
                self._tell("hosts", step=self._step, **facts)
        return place

    def _news(self, place: Place) -> dict[str, Any]:
        """What a launch is to look out for."""
        if self._rendezvous is None:
            return {"until_checkpoint": place.size < self._run.train.ranks}
        return {"change": self._rendezvous.change, "host": self._rendezvous.name}

    def _keep_waiting(self) -> bool:
        self._show_life()
        return not self._stop.asked

    def _command(self, module: str, rank: int, meeting: Path, size: int, store: str | None = None) -> list[str]:
        place = [str(os.getpid()), str(rank), str(meeting), str(size), *([store] if store else [])]
        return [sys.executable, "-m", module, str(self._run_file), *place]

    def _take_stock(self, launch: Launch) -> None:
        self._memory = max(self._memory, launch.memory)
        if launch.saved_at is not None:
            self._saved_at = launch.saved_at
            self._patience.progress()
            self._blamed.clear()
        self._step = max(launch.step, newest_step(self._run.out))
        if launch.failure is not None:
            self._blamed.append(launch.failure.rank)

    def _wait_for_another(self, failure: Failure) -> Failure | None:
        """Record the restart that is to come and wait as long as it takes; instead, what training ends with."""
        if self._stop.asked or not failure.restarts:
            return failure
        self._leave_out()
        pause = self._patience.next_pause()
        if pause is None:
            return self._given_up(failure)
        self._restarts += 1
        self._tell(
            "restart",
            step=self._step,
            checkpoint=newest_step(self._run.out),
            words=failure.words,
            rank=failure.rank,
            signal=failure.signal,
            number=self._restarts,
            in_a_row=self._patience.in_a_row,
            ranks=self._size if self._place is None else self._place.size,
            pause_seconds=pause,
            seconds_lost=round(time.monotonic() - self._saved_at + pause, 3),
        )
        sys.stderr.write(f"{failure.words}; ranks are started again from the last checkpoint in {pause:g} seconds\n")
        until = time.monotonic() + pause
        while not self._stop.asked and (left := until - time.monotonic()) > 0:
            self._show_life()
            time.sleep(min(left, 1.0))
        return failure if self._stop.asked else None

    def _leave_out(self) -> None:
        """Go on with fewer ranks, where that may be and one rank has failed again and again."""
        last = self._blamed[-STRIKES:]
        again_and_again = len(last) == STRIKES and len(set(last)) == 1 and last[0] is not None
        if self._rendezvous is not None or not (
            self._run.train.restarts.fewer_ranks and again_and_again and self._size > 1
        ):
            return
        rows = self._run.train.batch_rows
        self._size = next(size for size in range(self._size - 1, 0, -1) if rows % size == 0)
        self._patience.progress()
        self._blamed.clear()

    def _given_up(self, failure: Failure) -> Failure:
        most = self._run.train.restarts.most
        again = "Run again, and training goes on from the last checkpoint"
        if most == 0:
            return infra(f"{_message(failure)}. {again}", failure.rank, failure.signal)
        return infra(
            f"training failed {most + 1} times in a row without a checkpoint behind step"
            f" {newest_step(self._run.out)}, and is given up (train.restarts.most). The last time:"
            f" {_message(failure)}. {again}",
            failure.rank,
            failure.signal,
        )

    def _diagnose(self) -> Failure | None:
        """Look at the machine before ranks are started again; None where it has and does what it should."""
        self._show_life()
        lacking = shortage(self._run.out, self._memory)
        if lacking is not None:
            return infra(lacking)
        try:
            meeting = create_rank_directory(self._run.out, "" if self._rendezvous is None else self._rendezvous.name)
        except OSError as error:
            return infra(f"{type(error).__name__}: {error}")
        here = self._size // self._run.train.hosts.count
        commands = [self._command("model.launch.diagnostics", rank, meeting, here) for rank in range(here)]
        try:
            with started(commands, self._stop, self._run.train.given, first_speaks=False) as processes:
                deadline = time.monotonic() + DIAGNOSIS_SECONDS
                while any(process.poll() is None for process in processes):
                    if time.monotonic() > deadline:
                        return infra(f"the diagnosis of this machine took more than {DIAGNOSIS_SECONDS:.0f} seconds")
                    time.sleep(0.02)
                codes = [process.poll() or 0 for process in processes]
            ends = [End(rank, code, read_words(error_file(meeting, rank))) for rank, code in enumerate(codes)]
        finally:
            shutil.rmtree(meeting, ignore_errors=True)
        failure = judge(ends, here)
        # One that left words has found something wrong; one that did not was killed, or lost the others.
        return failure and replace(failure, final=any(end.words for end in ends))

    def _tell(self, kind: str, step: int, **facts: object) -> None:
        if self._rendezvous is not None and not self._rendezvous.is_head:
            # The record of a run has one writer.
            sys.stderr.write(json.dumps({"event": kind, "step": step, **facts}) + "\n")
            return
        self._record.append(kind, step=step, **facts)
        sys.stdout.write(json.dumps({"kind": "event", "event": kind, "step": step, **facts}) + "\n")
        sys.stdout.flush()

    def _tell_slow(self, slow: Slow) -> None:
        self._tell("slow_rank", **asdict(slow))

    def _show_life(self) -> None:
        """To the launcher: a pause is no hang."""
        with suppress(OSError):
            (self._run.out / HEARTBEAT).touch()


def _message(failure: Failure) -> str:
    return failure.words.removeprefix(f"{Infra.__name__}: ").rstrip(".")
