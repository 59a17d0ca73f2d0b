"""Ctrl-C is never lost.

While a coroutine runs in the main thread, asyncio (3.11) takes the first SIGINT as a wish to cancel that coroutine, and
one that takes the cancellation for one of its own swallows Ctrl-C with it: a run would go on to its end. asyncio leaves
a handler alone that is not Python's own. Where SIGINT is ignored (`nohup bessemer run ... &`) it stays so.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_heard = threading.Event()


@contextmanager
def heard_interrupts() -> Iterator[None]:
    """Within this block SIGINT raises KeyboardInterrupt wherever the main thread is, and is remembered."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    _heard.clear()
    signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _heard.clear()


def raise_if_interrupted() -> None:
    """KeyboardInterrupt where one was raised within `heard_interrupts` and somebody swallowed it."""
    if _heard.is_set():
        raise KeyboardInterrupt


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    _heard.set()
    raise KeyboardInterrupt
