"""What ends a run early: a vocabulary that is not the base model's, the forgetting gate, and Ctrl-C.

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
from pathlib import Path
from types import FrameType
from typing import NotRequired, TypedDict

from model.errors import GuardError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import EvaluateResult
from tasks.evaluate.config import GateConfig


def check_base_vocabulary(vocab: Artifact, base_model: Path | None) -> None:
    """Raise InputError where a vocabulary is neither the base model's nor extended from it.

    Of one that is trained anew, only this shows it: before the sequences are made, which may take hours.
    """
    if base_model is None:
        return
    from tasks.tokenizer.open import open_tokenizer
    from tasks.train.base_model import make_starting_model

    make_starting_model(base_model, vocab, open_tokenizer(vocab))


def check_gate(evaluated: Artifact, config: GateConfig | None) -> None:
    """Raise GuardError where the bits per byte of a source rose by more than the recipe's gate allows, or were not
    measured."""
    if config is None:
        return
    found = EvaluateResult.of(evaluated.report).gate
    if found is None:
        raise GuardError(
            f"the recipe has evaluate.gate, and {evaluated.path} measured no rise from a base model, so the model"
            f" cannot pass. Rename that folder and run again, which evaluates it with the gate."
        )
    if _stopped(found["rises"], config.max_rise):
        outcome = describe_gate({**found, "max_rise": config.max_rise})
        raise GuardError(
            f"{outcome}. The model forgot too much of what its base model knew. Its weights and scores are published,"
            f" but nothing continues from them by itself. Give these sources more weight, train with a lower"
            f" schedule.peak_lr or for fewer steps, or raise evaluate.gate.max_rise."
        )


class Gate(TypedDict):
    """The rise that the gate allows, and what it measured; neither where the recipe has none."""

    max_rise: float
    rises: NotRequired[Mapping[str, float | None]]
    """By source; None where the bits of the text are not finite, as of a network that broke down."""


def describe_gate(gate: Gate) -> str:
    """Return the outcome of the gate as a sentence without full stop; empty where the recipe has no gate."""
    if "rises" not in gate:
        return ""
    rises = ", ".join(
        f"{source} {'not finite' if rise is None else format(rise, '+.1%')}" for source, rise in gate["rises"].items()
    )
    stopped = _stopped(gate["rises"], gate["max_rise"])
    verdict = f"{', '.join(stopped)} did not pass" if stopped else "passed"
    return f"Bits per byte relative to the base model: {rises}; the gate allows +{gate['max_rise']:.1%}: {verdict}"


def _stopped(rises: Mapping[str, float | None], limit: float) -> list[str]:
    return [source for source, rise in rises.items() if rise is None or rise > limit]


_interrupted = threading.Event()


@contextmanager
def remember_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT in the main thread within this block, and remember that it came."""
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
