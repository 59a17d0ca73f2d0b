"""The gate behind which a run goes on: what a model still knows of its base model's text.

Ctrl-C is never lost.

While a coroutine runs in the main thread, asyncio (3.11) takes the first SIGINT as a wish to cancel that coroutine, and
one that takes the cancellation for one of its own swallows Ctrl-C with it: a run would go on to its end. asyncio leaves
a handler alone that is not Python's own. Where SIGINT is ignored (`nohup bessemer run ... &`) it stays so.
"""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from model.errors import GuardError
from tasks.artifacts.artifact import Artifact
from tasks.evaluate.config import GateConfig


def check_gate(evaluated: Artifact, config: GateConfig | None) -> None:
    """Raise GuardError where the bits per byte of a source rose by more than the recipe's gate lets pass."""
    if config is None:
        return
    gate = {**evaluated.report.facts["gate"], "max_rise": config.max_rise}
    if _stopped(gate):
        raise GuardError(
            f"{describe_gate(gate)}. The model forgot too much of what its base model knew. Its weights and scores are"
            f" written, and nothing goes on from them by itself. Give these sources more weight, train with a lower"
            f" schedule.peak_lr or for fewer steps, or raise evaluate.gate.max_rise."
        )


def describe_gate(gate: Mapping[str, Any]) -> str:
    """One sentence without its full stop; empty where there is no gate. `max_rise` is that of the run's recipe."""
    if "rises" not in gate:
        return ""
    rises = ", ".join(f"{source} {rise:+.1%}" for source, rise in gate["rises"].items())
    stopped = _stopped(gate)
    verdict = f"{', '.join(stopped)} did not pass" if stopped else "passed"
    return f"Bits per byte beside the base model's: {rises}; the gate lets +{gate['max_rise']:.1%} pass: {verdict}"


def _stopped(gate: Mapping[str, Any]) -> list[str]:
    return [source for source, rise in gate["rises"].items() if rise > gate["max_rise"]]


_heard = threading.Event()


@contextmanager
def remember_interrupts() -> Iterator[None]:
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
    """KeyboardInterrupt where one was raised within `remember_interrupts` and somebody swallowed it."""
    if _heard.is_set():
        raise KeyboardInterrupt


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    _heard.set()
    raise KeyboardInterrupt
