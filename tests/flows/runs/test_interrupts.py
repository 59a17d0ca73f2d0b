"""Ctrl-C is never lost."""

import asyncio
import os
import signal

import pytest

from flows.runs.guards import heard_interrupts, raise_if_interrupted


async def _swallow() -> None:
    """What a library may do that takes a cancellation for one of its own."""
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return


def test_asyncio_alone_loses_an_interrupt_that_a_coroutine_swallows() -> None:
    """The reason for the module; where this fails one day, it may go."""
    asyncio.run(_swallow())


def test_within_the_block_it_is_raised_at_once() -> None:
    with heard_interrupts(), pytest.raises(KeyboardInterrupt):
        asyncio.run(_swallow())


def test_one_that_was_swallowed_is_raised_again() -> None:
    with heard_interrupts():
        raise_if_interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            raise_if_interrupted()
    raise_if_interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
