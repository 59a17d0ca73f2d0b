"""Roots as people name them: a folder, or the address of an object store with a folder of its own on this machine."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.runs.model_registry import link_promotions
from model.errors import BessemerError
from tasks.artifacts.remote.attach import attached_root, is_address, store_of
from tasks.artifacts.remote.metadata import bring, put_night, put_pages, put_run

log = logging.getLogger(__name__)


def open_root(root: str | Path) -> Path:
    """The folder of a root. For one in an object store, what other machines left there is brought first, by manifests
    and records; files follow when they are read.

    Raises RecipeError for an address that is none, InputError where access is refused, Infra where the store does not
    answer.
    """
    folder = attached_root(str(root)) if is_address(root) else Path(root)
    refresh(folder)
    return folder


def refresh(root: Path) -> None:
    """Bring what other machines left in the store that a root stands before, if there is one."""
    store = store_of(root)
    if store is not None:
        bring(root, store)
        link_promotions(root)


def put_record(root: Path, run_id: str, *, pages: bool = False) -> None:
    """Put what is known of a run into the store that its root stands before, if there is one.

    A store that fails now does not end a run whose artifacts stand: the next command that opens the root puts it.
    """
    store = store_of(root)
    if store is None:
        return
    with _left_for_later(f"the record of run {run_id}"):
        put_run(root, store, run_id)
        if pages:
            put_pages(root, store, run_id)


def put_nightly_record(root: Path, run_id: str) -> None:
    """Put the record of a night into the store that its root stands before, if there is one.

    One that cannot be put now is put when the root is next opened, where the store has none of it.
    """
    store = store_of(root)
    if store is None:
        return
    with _left_for_later(f"the record of night {run_id}, as it is now,"):
        put_night(root, store, run_id)


@contextmanager
def _left_for_later(told: str) -> Iterator[None]:
    try:
        yield
    except BessemerError as error:
        log.warning("%s is not in the store yet: %s", told, error)
