"""How processes begin and end: with few collections of garbage; with their parent, and without the interpreter's
shutdown; and what they say before."""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

PR_SET_PDEATHSIG = 1


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Look for garbage after every 10,000 new objects within the block, instead of 700: what imports make lives to the
    end, and going through it again and again takes a fifth of their time."""
    before = gc.get_threshold()
    gc.set_threshold(10_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends (`PR_SET_PDEATHSIG`, prctl(2)).

    Every process must call it, because the setting does not survive `fork`. Exits at once (code 75) if the parent has
    ended already: `parent` is its process id, if the launcher passed it. Having process 1 as parent proves nothing,
    since in a container the launcher may be process 1. Does nothing on systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = parent or os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        # The parent ended before the call above.
        os._exit(75)


def exit_now(code: int) -> NoReturn:
    """End this process without the interpreter's shutdown.

    DeepSpeed keeps references to process groups, whose threads killed one of four finished ZeRO-3 trainings by SIGABRT
    during shutdown. Callers must have synced all files; the standard streams are flushed here.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def signal_name(number: int) -> str:
    """Return the name of a signal; most real-time signals have none."""
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


def write_log(text: str) -> None:
    """Write `text` to stderr, which is a log: on a full disk it waits for the next line instead of raising."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
