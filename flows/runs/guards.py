"""What ends a run early: the forgetting gate, and Ctrl-C.

The gate compares a model with its base model on held-out text, and ends the run where it forgot too much.

Ctrl-C must never be lost. While a coroutine runs in the main thread, asyncio (3.11) turns the first SIGINT into a
cancellation of that coroutine, and a library that takes the cancellation for its own swallows Ctrl-C with it. asyncio
does not replace a handler that is not Python's default one, so `remember_interrupts` installs one. Where SIGINT is
ignored (`nohup bessemer run ... &`) it stays ignored.
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
    """Raise GuardError where the bits per byte of a source rose by more than the recipe's gate allows."""
    if config is None:
        return
    gate = {**evaluated.report.facts["gate"], "max_rise": config.max_rise}
    if _stopped(gate):
        raise GuardError(
            f"{describe_gate(gate)}. The model forgot too much of what its base model knew. Its weights and scores are"
            f" published, but nothing continues from them by itself. Give these sources more weight, train with a lower"
            f" schedule.peak_lr or for fewer steps, or raise evaluate.gate.max_rise."
        )


def describe_gate(gate: Mapping[str, Any]) -> str:
    """Return the outcome of the gate as a sentence without full stop; empty where the recipe has no gate."""
    if "rises" not in gate:
        return ""
    rises = ", ".join(f"{source} {rise:+.1%}" for source, rise in gate["rises"].items())
    stopped = _stopped(gate)
    verdict = f"{', '.join(stopped)} did not pass" if stopped else "passed"
    return f"Bits per byte relative to the base model: {rises}; the gate allows +{gate['max_rise']:.1%}: {verdict}"


def _stopped(gate: Mapping[str, Any]) -> list[str]:
    return [source for source, rise in gate["rises"].items() if rise > gate["max_rise"]]


_interrupted = threading.Event()


@contextmanager
def remember_interrupts() -> Iterator[None]:
    """Within this block SIGINT raises KeyboardInterrupt in the main thread, and is remembered."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    _interrupted.clear()
    signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _interrupted.clear()


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt where one was raised within `remember_interrupts` and swallowed."""
    if _interrupted.is_set():
        raise KeyboardInterrupt


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    _interrupted.set()
    raise KeyboardInterrupt
