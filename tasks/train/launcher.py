"""The trainer as a child process: started, heard, watched, and never left behind.

Launched and waited for in one thread, because Linux ties PR_SET_PDEATHSIG to the thread that started the child. The
child has its own process group, so that Ctrl-C reaches us alone and the trainer is asked to stop in order (SIGTERM,
checkpoint, exit 75).

The trainer's messages in words for a log: every start, event and end, and a step every twentieth of the way.
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
from typing import IO, Any

from model.config.environment import trainer_environment
from model.errors import BessemerError, Bug, GuardError, Infra, InputError, IntegrityError, Numerics, RecipeError
from tasks.common.code_fingerprint import PROJECT

OnLog = Callable[[dict[str, Any]], None]

ERROR_OF_EXIT_CODE: dict[int, type[BessemerError]] = {
    error.exit_code: error for error in (RecipeError, InputError, GuardError, IntegrityError, Bug, Infra, Numerics)
}

EXIT_CODE_OF_A_SIGNAL = 128
"""Shells add the signal's number to this."""

POLL_SECONDS = 0.5

_READ_BYTES = 1 << 16

_TOLD_BYTES = 4000


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
    """Run `python <arguments>` to its end; every JSON line of its stdout goes to `on_log`, all that it says to
    `log_path`. Its environment is that of a trainer with the variables `given`.

    Raises the error class of the trainer's exit code with its last words; Infra when it was killed by a signal or made
    no sign (`heartbeat` untouched for `hang_seconds`); GuardError when it passed `max_seconds`. However this function
    is left, the trainer is gone.
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
        patience = _Patience(heartbeat, hang_seconds, max_seconds, log_path)
        try:
            for line in _lines(trainer.stdout):
                if line:
                    _hear(line, on_log, log)
                patience.check(trainer)
            code = trainer.wait()
        except BaseException:
            _stop(trainer, stop_seconds)
            raise
        finally:
            trainer.stdout.close()
    if code != 0:
        raise _error_of(code, log_path, log_begin)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """That of a trainer with the variables `given`.

    This project's `model` is found whatever the working directory, and with PYTHONSAFEPATH too.
    """
    passing = trainer_environment(os.environ, given)
    known = passing.get("PYTHONPATH")
    return {**passing, "PYTHONPATH": os.pathsep.join([str(PROJECT), *([known] if known else [])])}


def _lines(stdout: IO[bytes]) -> Iterator[bytes]:
    """Lines as they come, and an empty one whenever POLL_SECONDS pass without any."""
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


def _hear(line: bytes, on_log: OnLog, log: IO[bytes]) -> None:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if isinstance(message, dict):
        on_log(message)
    log.write(line + b"\n")
    log.flush()


class _Patience:
    """How long a trainer may take, by this process's monotonic clock: the system's clock may jump over hours."""

    def __init__(self, heartbeat: Path, hang_seconds: float, max_seconds: float | None, log_path: Path) -> None:
        self._heartbeat = heartbeat
        self._hang_seconds = hang_seconds
        self._max_seconds = max_seconds
        self._log_path = log_path
        self._began = self._last_sign = time.monotonic()
        self._seen = self._beat()

    def check(self, trainer: subprocess.Popen[bytes]) -> None:
        """Kill a trainer that hangs and raise Infra; raise GuardError past `max_seconds`."""
        now, beat = time.monotonic(), self._beat()
        if beat != self._seen:
            self._seen, self._last_sign = beat, now
        if now - self._last_sign > self._hang_seconds:
            trainer.kill()
            raise Infra(
                f"train: neither the trainer nor its supervisor, which ends ranks that hang sooner, made a sign for"
                f" {self._hang_seconds:.0f} seconds, and they were killed. The next try goes on from the last"
                f" checkpoint. Look whether this machine or its disk stands still; the log is {self._log_path}."
            )
        if self._max_seconds is not None and now - self._began > self._max_seconds:
            raise GuardError(
                f"train: stopped after {self._max_seconds:.0f} seconds as train.max_seconds asks. A checkpoint was"
                f" written: raise train.max_seconds and run again, and training goes on from there."
            )

    def _beat(self) -> int | None:
        """What tells one touch of the heartbeat file from the next."""
        return self._heartbeat.stat().st_mtime_ns if self._heartbeat.exists() else None


def _stop(trainer: subprocess.Popen[bytes], stop_seconds: float) -> None:
    """Ask for a checkpoint and an end; insist after `stop_seconds`. What it still says is read and let go."""
    if trainer.poll() is None:
        trainer.terminate()
    assert trainer.stdout is not None
    deadline = time.monotonic() + stop_seconds
    while trainer.poll() is None:
        if time.monotonic() > deadline:
            trainer.kill()
            trainer.wait()
            return
        # A full pipe would keep the trainer from ever reaching its end.
        if not trainer.stdout.read(_READ_BYTES):
            time.sleep(0.02)


def _error_of(code: int, log_path: Path, log_begin: int) -> BessemerError:
    words = _last_words(log_path, log_begin)
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (often the kernel, when memory runs out)" if -code == signal.SIGKILL else ""
        return Infra(
            f"train: the trainer was killed by {name}{hint}. The next try goes on from its last checkpoint."
            f" Log: {log_path}. Its last words: {words}"
        )
    kind = ERROR_OF_EXIT_CODE.get(code)
    if kind is None:
        return Bug(f"train: the trainer ended with exit code {code}. Log: {log_path}. Its last words: {words}")
    return kind(f"train: {words.rpartition(f'{kind.__name__}: ')[2]} (log: {log_path})")


def _last_words(log_path: Path, log_begin: int) -> str:
    with log_path.open("rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(log_begin, end - _TOLD_BYTES))
        return log.read().decode(errors="replace").strip() or "none"


@contextmanager
def _terminate_raises() -> Iterator[None]:
    """SIGTERM raises SystemExit here, where nobody else would handle it; only the main thread may listen."""
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


STEPS_TOLD = 20

FOR_THE_TERMINAL = ("rollback", "recovered")
"""Events that the terminal of a run shows, besides the log."""


class MessageTeller:
    """Remembers how far the log has got, so that ten thousand steps do not become ten thousand lines."""

    def __init__(self) -> None:
        self._told = -1

    def sentences(self, message: dict[str, Any]) -> Iterator[str]:
        """No sentence or one for each message of the trainer."""
        kind = message.get("kind")
        if kind == "start":
            yield f"training {message['parameters']:,} parameters, step {message['step']} of {message['steps']}"
        elif kind == "step":
            reached = message["step"] * STEPS_TOLD // max(message["steps"], 1)
            if reached > self._told:
                self._told = reached
                yield (
                    f"step {message['step']} of {message['steps']}: loss {message['loss']:.4f},"
                    f" {message['tokens_s']:,} tokens/s, learning rate {message['lr']:.2e}"
                )
        elif kind == "paused":
            yield f"paused after step {message['step']} of {message['steps']}, with a checkpoint to go on from"
        elif message.get("event") == "base_model":
            yield _beginning(message)
        elif message.get("event") == "restart":
            yield _restart(message)
        elif message.get("event") == "rollback":
            yield _rollback(message)
        elif message.get("event") == "recovered":
            yield (
                f"recovered by step {message['step']}: what began at step {message['onset']} ({message['cause']}) has"
                f" not come back"
            )
        elif kind in ("event", "done"):
            rest = ", ".join(f"{key} {value}" for key, value in message.items() if key not in ("kind", "event"))
            yield f"{message.get('event', kind)}: {rest}"


def _restart(message: dict[str, Any]) -> str:
    return (
        f"restart {message['number']} after step {message['step']}: {message['words'].rstrip('.')}; training goes on"
        f" from step {message['checkpoint']}, {message['seconds_lost']:.0f} seconds are lost"
    )


def _rollback(message: dict[str, Any]) -> str:
    settings = message["settings"].items()
    named = (f"{path} to {value:g}" if isinstance(value, float) else f"{path} to {value}" for path, value in settings)
    changes = ", ".join(named) or "nothing else"
    place = f"the checkpoint after step {message['to_step']}" if message["to_step"] else "its start"
    begin, end = message["skipped"]
    return (
        f"rollback at step {message['step']}: {message['cause']}; it began at step {message['onset']}, training goes"
        f" back to {place}, leaves out positions {begin:,} to {end:,} of ORDER"
        f" ({end - begin:,} rows) and changes {changes}"
    )


def _beginning(message: dict[str, Any]) -> str:
    told = f"starting from the trained weights {message['weights']}"
    rows = message.get("new_rows")
    if rows is None:
        return told
    lost = message["without_meaning"]
    besides = f"; for {lost:,} the base's ids say nothing, so that they start near the mean of all" if lost else ""
    return f"{told}, with {rows:,} new rows that start as {message['start']}{besides}"
