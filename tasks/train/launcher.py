"""Run the trainer as a child process: launch it, pass its messages on, stop it when it hangs; and format messages for
logs.

Launched and waited for in one thread, because Linux ties PR_SET_PDEATHSIG to the thread that started the child. The
child has its own process group, so that Ctrl-C reaches only this process and the trainer is stopped in order (SIGTERM,
checkpoint, exit 75).
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, cast

from model.distributed.messages import BaseModel, Message, Restart, Rollback
from model.environment import trainer_environment
from model.errors import BessemerError, Bug, GuardError, Infra, InputError, IntegrityError, Numerics, RecipeError
from model.processes import signal_name
from tasks.common.code_fingerprint import PROJECT

OnLog = Callable[[Message], None]
ERROR_OF_EXIT_CODE: dict[int, type[BessemerError]] = {
    error.exit_code: error for error in (RecipeError, InputError, GuardError, IntegrityError, Bug, Infra, Numerics)
}
EXIT_CODE_OF_A_SIGNAL = 128
"""Shells add the signal's number to this."""
POLL_SECONDS = 0.5
_READ_BYTES = 1 << 16
_LOG_TAIL_BYTES = 4000
STEP_MESSAGES = 20
"""Steps that a log shows of a whole training."""
TERMINAL_EVENTS = ("rollback", "recovered")
"""Events that are shown in the terminal of a run, in addition to the log."""


def run_trainer(
    arguments: list[str],
    *,
    given: Mapping[str, str],
    log_path: Path,
    heartbeat: Path,
    on_log: OnLog,
    hang_seconds: float,
    max_seconds: float | None,
    stop_seconds: float,
) -> None:
    """Run `python <arguments>` to its end; every JSON line of its stdout goes to `on_log`, all its output to
    `log_path`. Its environment is that of a trainer with the variables `given`.

    Raises the error class of the trainer's exit code with the end of its log; Infra when it was killed by a signal or
    hangs (`heartbeat` untouched for `hang_seconds`); GuardError when it ran longer than `max_seconds`. The trainer has
    ended whenever this function returns or raises.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log, _terminate_raises():
        log_begin = log.tell()
        trainer = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=PROJECT,
            env=environment(given),
            process_group=0,
        )
        assert trainer.stdout is not None
        watchdog = _Watchdog(heartbeat, hang_seconds, max_seconds, log_path)
        try:
            for line in _lines(trainer.stdout):
                if line:
                    _dispatch_line(line, on_log, log)
                watchdog.check(trainer)
            code = trainer.wait()
        except BaseException:
            _stop_trainer(trainer, stop_seconds)
            raise
        finally:
            trainer.stdout.close()
        if code != 0:
            if not _log_tail(log_path, log_begin):
                # The trainer wrote no reason. Where its disk is full, this line fails as well, and that is the reason.
                log.write(f"the trainer ended with exit code {code}\n".encode())
                log.flush()
            raise _exit_error(code, log_path, log_begin)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a trainer with the variables `given`.

    This project's `model` is found whatever the working directory, and with PYTHONSAFEPATH too.
    """
    passing = trainer_environment(os.environ, given)
    known = passing.get("PYTHONPATH")
    return {**passing, "PYTHONPATH": os.pathsep.join([str(PROJECT), *([known] if known else [])])}


def _lines(stdout: IO[bytes]) -> Iterator[bytes]:
    """Yield lines as they come, and an empty one whenever POLL_SECONDS pass without any."""
    os.set_blocking(stdout.fileno(), False)
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(POLL_SECONDS):
                yield b""
                continue
            data = os.read(stdout.fileno(), _READ_BYTES)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            yield from lines
    if pending:
        yield pending


def _dispatch_line(line: bytes, on_log: OnLog, log: IO[bytes]) -> None:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    # A library may print JSON of its own.
    if isinstance(message, dict) and "kind" in message:
        on_log(cast(Message, message))
    log.write(line + b"\n")
    log.flush()


class _Watchdog:
    """Time limits of a trainer, by this process's monotonic clock: the system clock may jump by hours."""

    def __init__(self, heartbeat: Path, hang_seconds: float, max_seconds: float | None, log_path: Path) -> None:
        self._heartbeat = heartbeat
        self._hang_seconds = hang_seconds
        self._max_seconds = max_seconds
        self._log_path = log_path
        self._started = self._last_heartbeat = time.monotonic()
        self._last_beat = self._beat()

    def check(self, trainer: subprocess.Popen[bytes]) -> None:
        """Kill a trainer that hangs and raise Infra; raise GuardError after `max_seconds`."""
        now, beat = time.monotonic(), self._beat()
        if beat != self._last_beat:
            self._last_beat, self._last_heartbeat = beat, now
        if now - self._last_heartbeat > self._hang_seconds:
            trainer.kill()
            raise Infra(
                f"train: no heartbeat for {self._hang_seconds:.0f} seconds, neither of the trainer nor of its"
                f" supervisor, which restarts hanging ranks sooner; both were killed. The next attempt resumes from the"
                f" last checkpoint. Check whether this machine or its disk hangs; the log is {self._log_path}."
            )
        if self._max_seconds is not None and now - self._started > self._max_seconds:
            raise GuardError(
                f"train: stopped after {self._max_seconds:.0f} seconds, the limit of train.max_seconds. A checkpoint"
                f" was written: raise train.max_seconds and run again, and training resumes from there."
            )

    def _beat(self) -> int | None:
        """Return a number that differs between two touches of the heartbeat file."""
        return self._heartbeat.stat().st_mtime_ns if self._heartbeat.exists() else None


def _stop_trainer(trainer: subprocess.Popen[bytes], stop_seconds: float) -> None:
    """Ask for a checkpoint and an end; kill the trainer after `stop_seconds`. Its remaining output is discarded."""
    if trainer.poll() is None:
        trainer.terminate()
    assert trainer.stdout is not None
    deadline = time.monotonic() + stop_seconds
    while trainer.poll() is None:
        if time.monotonic() > deadline:
            trainer.kill()
            trainer.wait()
            return
        # A full pipe would block the trainer forever.
        if not trainer.stdout.read(_READ_BYTES):
            time.sleep(0.02)


def _exit_error(code: int, log_path: Path, log_begin: int) -> BessemerError:
    log_tail = _log_tail(log_path, log_begin)
    if code < 0:
        name = signal_name(-code)
        hint = " (often the kernel, when memory runs out)" if -code == signal.SIGKILL else ""
        return Infra(
            f"train: the trainer was killed by {name}{hint}. The next attempt resumes from its last checkpoint."
            f" Log: {log_path}, which ends in: {log_tail}"
        )
    kind = ERROR_OF_EXIT_CODE.get(code)
    if kind is None:
        return Bug(f"train: the trainer ended with exit code {code}. Log: {log_path}, which ends in: {log_tail}")
    return kind(f"train: {log_tail.rpartition(f'{kind.__name__}: ')[2]} (log: {log_path})")


def _log_tail(log_path: Path, log_begin: int) -> str:
    with log_path.open("rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(log_begin, end - _LOG_TAIL_BYTES))
        return log.read().decode(errors="replace").strip()


@contextmanager
def _terminate_raises() -> Iterator[None]:
    """Make SIGTERM raise SystemExit where it has its default handler; only the main thread may set handlers."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def on_terminate(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(EXIT_CODE_OF_A_SIGNAL + signum)

    signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class MessageFormatter:
    """Formats the trainer's messages for a log: every start, event and end, and about every twentieth part of the
    steps."""

    def __init__(self) -> None:
        self._reported = -1

    def format(self, message: Message) -> Iterator[str]:
        """Yield one sentence for a message that the log shows, else none."""
        if message["kind"] == "start":
            yield f"training {message['parameters']:,} parameters, step {message['step']} of {message['steps']}"
        elif message["kind"] == "step":
            reached = message["step"] * STEP_MESSAGES // max(message["steps"], 1)
            if reached > self._reported:
                self._reported = reached
                yield (
                    f"step {message['step']} of {message['steps']}: loss {message['loss']:.4f},"
                    f" {message['tokens_s']:,} tokens/s, learning rate {message['lr']:.2e}"
                )
        elif message["kind"] == "paused":
            yield f"paused after step {message['step']} of {message['steps']}, with a checkpoint to resume from"
        elif message["kind"] == "done":
            yield f"done: steps {message['steps']}, folder {message['folder']}"
        elif message["kind"] != "event":
            return
        elif message["event"] == "base_model":
            yield _format_base_model(message)
        elif message["event"] == "restart":
            yield _format_restart(message)
        elif message["event"] == "rollback":
            yield _format_rollback(message)
        elif message["event"] == "recovered":
            yield (
                f"recovered by step {message['step']}: the divergence that began at step {message['onset']}"
                f" ({message['cause']}) has not recurred"
            )
        else:
            rest = ", ".join(f"{key} {value}" for key, value in message.items() if key not in ("kind", "event"))
            yield f"{message['event']}: {rest}"


def _format_restart(message: Restart) -> str:
    return (
        f"restart {message['number']} after step {message['step']}: {message['words'].rstrip('.')}; training"
        f" resumes from step {message['checkpoint']}, {message['seconds_lost']:.0f} seconds were lost"
    )


def _format_rollback(message: Rollback) -> str:
    settings = message["settings"].items()
    named = (f"{path} to {value:g}" if isinstance(value, float) else f"{path} to {value}" for path, value in settings)
    changes = ", ".join(named) or "nothing else"
    place = f"the checkpoint after step {message['to_step']}" if message["to_step"] else "its start"
    begin, end = message["skipped"]
    return (
        f"rollback at step {message['step']}: {message['cause']}; it began at step {message['onset']}, training rolls"
        f" back to {place}, skips positions {begin:,} to {end:,} of ORDER ({end - begin:,} sequences) and changes"
        f" {changes}"
    )


def _format_base_model(message: BaseModel) -> str:
    start = f"starting from the trained weights {message['weights']}"
    rows = message.get("new_rows")
    if rows is None:
        return start
    unmapped = message.get("without_meaning")
    note = f"; {unmapped:,} of them have no ids in the base and start near the mean of all" if unmapped else ""
    return f"{start}, with {rows:,} new rows initialised by {message.get('start')}{note}"
