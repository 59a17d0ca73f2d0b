"""Finish a nightly run: write how it ended, and notify people."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flows.nightly.config import NotifyConfig, Occasion, read_notify
from flows.nightly.history import FAILED, INTERRUPTED, PROMOTED, UNDER_WAY, Night
from flows.nightly.notify import message, notify
from flows.nightly.recipe import RawRecipe
from flows.recipe.load import find_recipe, read_toml
from flows.runs.model_registry import history
from flows.runs.record import new_run_id
from model.errors import BessemerError, IntegrityError

log = logging.getLogger(__name__)


def end(raw: RawRecipe, night: Night, state: str, why: str, occasion: Occasion) -> Night:
    """Write how a nightly run ended, and notify people who asked for this occasion.

    Raises OSError where it cannot be written; people are notified all the same.
    """
    night.state, night.why, night.ended = state, why, time.time()
    try:
        # Saved before the notification: a kill while a server does not answer must not repeat the nightly run.
        night.save(raw.root)
    except OSError as unwritten:
        content = message(night, raw.root)
        content["text"] += f"\nIts record could not be written: {unwritten}\n"
        notify(raw.notify, occasion, content)
        raise
    night.notified = notify(raw.notify, occasion, message(night, raw.root))
    night.save(raw.root)
    return night


def fail(raw: RawRecipe, night: Night, error: Exception) -> None:
    """End a nightly run with an error, and notify people; do nothing where its end is written already.

    Its state is `promoted` where its model was promoted before the error.
    """
    if night.state != UNDER_WAY:
        return
    state = FAILED
    why = f"{type(error).__name__}: {error}" if isinstance(error, BessemerError | OSError) else type(error).__name__
    if _was_promoted(raw, night):
        state, why = PROMOTED, f"promoted, and failed afterwards: {why}"
    try:
        end(raw, night, state, why, "failed")
    except OSError as unwritten:
        error.add_note(f"the record of nightly run {night.run_id} could not be written: {unwritten}")


def stop(raw: RawRecipe, night: Night) -> None:
    """Write that a nightly run was stopped by a user or the server, if its end is not written yet."""
    if night.state != UNDER_WAY:
        return
    promoted = _was_promoted(raw, night)
    night.state = PROMOTED if promoted else INTERRUPTED
    night.why, night.ended = "it was stopped after its promotion" if promoted else "it was stopped", time.time()
    night.save(raw.root)


def _was_promoted(raw: RawRecipe, night: Night) -> bool:
    try:
        return any(one.run_id == night.run_id for one in history(raw.root))
    except IntegrityError as error:
        log.warning("whether the nightly run was promoted cannot be read: %s", error)
        return False


@contextmanager
def record_failures(raw: RawRecipe, night: Night) -> Iterator[None]:
    """End the nightly run with any error raised within the block."""
    try:
        yield
    except Exception as error:
        fail(raw, night, error)
        raise


@contextmanager
def notify_start_failures(recipe: str, root: str | Path, settings: Sequence[str]) -> Iterator[None]:
    """Notify people of errors within the block, in which the nightly run has no record yet."""
    try:
        yield
    except (BessemerError, OSError) as error:
        night = Night(new_run_id(), Path(recipe).stem, FAILED, f"{type(error).__name__}: {error}")
        notify(_notify_config(recipe, settings, error), "failed", message(night, root))
        raise


def _notify_config(recipe: str, settings: Sequence[str], raised: Exception) -> NotifyConfig:
    """Return whom to notify where the recipe may be wrong: as it says, else as the environment says, else nobody."""
    for given in (*dict.fromkeys((tuple(settings), ())), None):
        try:
            return read_notify({} if given is None else read_toml(find_recipe(recipe), given)[1], recipe)
        except (BessemerError, OSError, ValueError) as error:
            why = "the error below" if str(error) == str(raised) else error
            log.warning("whom to notify cannot be read: %s", why)
    return NotifyConfig()
