"""Roots as people name them: a folder, or the address of an object store with a folder of its own on this machine."""

import logging
from pathlib import Path

from model.errors import BessemerError
from tasks.store.attached import attached_root, is_address, store_of
from tasks.store.records import bring, put_pages, put_run

log = logging.getLogger(__name__)


def open_root(root: str | Path) -> Path:
    """The folder of a root. For one in an object store, what other machines left there is brought first, by manifests
    and records; files follow when they are read.

    Raises RecipeError for an address that is none, InputError where access is refused, Infra where the store does not
    answer.
    """
    folder = attached_root(str(root)) if is_address(root) else Path(root)
    store = store_of(folder)
    if store is not None:
        bring(folder, store)
    return folder


def put_record(root: Path, run_id: str, *, pages: bool = False) -> None:
    """Put what is known of a run into the store that its root stands before, if there is one.

    A store that fails now does not end a run whose artifacts stand: the next command that opens the root puts it.
    """
    store = store_of(root)
    if store is None:
        return
    try:
        put_run(root, store, run_id)
        if pages:
            put_pages(root, store, run_id)
    except BessemerError as error:
        log.warning("the record of run %s is not in the store yet: %s", run_id, error)
