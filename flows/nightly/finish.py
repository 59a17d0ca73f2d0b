"""How nights end: their last word is written down, and people are told."""

import logging
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flows.nightly import history as told_nights
from flows.nightly.config import NotifyConfig, Occasion, read_notify
from flows.nightly.history import Night
from flows.nightly.notify import message, notify
from flows.nightly.recipe import RawRecipe
from flows.recipe.load import apply_setting, find_recipe
from flows.runs.model_registry import history
from flows.runs.record import new_run_id
from model.errors import BessemerError, IntegrityError

log = logging.getLogger(__name__)

CRASHED = "it ended without a word; what it had built stands, and the next night went on with its files"


def end(raw: RawRecipe, night: Night, state: str, why: str, occasion: Occasion) -> Night:
    """Write down how a night ended, and tell people who asked for such an occasion.

    Raises OSError where it cannot be written, with people told all the same.
    """
    night.state, night.why, night.ended = state, why, time.time()
    try:
        # Before anybody is told: a kill while a server does not answer must not have the night spent again.
        night.save(raw.root)
    except OSError as unwritten:
        told = message(night, raw.root)
        notify(
            raw.notify, occasion, {**told, "text": f"{told['text']}\nIts record could not be written: {unwritten}\n"}
        )
        raise
    night.told = notify(raw.notify, occasion, message(night, raw.root))
    night.save(raw.root)
    return night


def fail(raw: RawRecipe, night: Night, error: Exception) -> None:
    """End a night with an error, and tell people; one whose end is written stays as it ended, and one whose model was
    promoted before the error is told as such."""
    if night.state != told_nights.UNDER_WAY:
        return
    state = told_nights.FAILED
    why = f"{type(error).__name__}: {error}" if isinstance(error, BessemerError | OSError) else type(error).__name__
    if _was_promoted(raw, night):
        state, why = told_nights.PROMOTED, f"promoted, and failed behind it: {why}"
    try:
        end(raw, night, state, why, "failed")
    except OSError as unwritten:
        error.add_note(f"the record of night {night.run_id} could not be written: {unwritten}")


def stop(raw: RawRecipe, night: Night) -> None:
    """Write down that a night was stopped by a person, or by the server, if its end is not written yet."""
    if night.state != told_nights.UNDER_WAY:
        return
    promoted = _was_promoted(raw, night)
    night.state = told_nights.PROMOTED if promoted else told_nights.INTERRUPTED
    night.why, night.ended = "it was stopped behind its promotion" if promoted else "it was stopped", time.time()
    night.save(raw.root)


def _was_promoted(raw: RawRecipe, night: Night) -> bool:
    try:
        return any(one.run_id == night.run_id for one in history(raw.root))
    except IntegrityError as error:
        log.warning("whether the night was promoted cannot be read: %s", error)
        return False


@contextmanager
def record_failures(raw: RawRecipe, night: Night) -> Iterator[None]:
    """Errors within the block end the night, and are raised."""
    try:
        yield
    except Exception as error:
        fail(raw, night, error)
        raise


@contextmanager
def notify_start_failures(recipe: str, root: str | Path, settings: Sequence[str]) -> Iterator[None]:
    """Errors within the block, where no night has a record yet, are told, and raised."""
    try:
        yield
    except (BessemerError, OSError) as error:
        night = Night(new_run_id(), Path(recipe).stem, told_nights.FAILED, f"{type(error).__name__}: {error}")
        notify(_notify_as_far_as_read(recipe, settings), "failed", message(night, root))
        raise


def _notify_as_far_as_read(recipe: str, settings: Sequence[str]) -> NotifyConfig:
    """Who is told where a recipe may be what is wrong: as it says, else as the environment says, else nobody."""
    of_recipe = [partial(_values, recipe, given) for given in dict.fromkeys((tuple(settings), ()))]
    for read in (*of_recipe, dict[str, Any]):
        try:
            return read_notify(read(), recipe)
        except (BessemerError, OSError, ValueError) as error:
            log.warning("who is to be told cannot be read: %s", error)
    return NotifyConfig()


def _values(recipe: str, settings: Sequence[str]) -> dict[str, Any]:
    values = tomllib.loads(find_recipe(recipe).read_text(encoding="utf-8"))
    for setting in settings:
        apply_setting(values, setting)
    return values
