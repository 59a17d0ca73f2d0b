"""Open roots: a folder, or the address of an object store, which has a folder of its own on this machine."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from flows.runs.model_registry import link_promotions
from flows.runs.shredding import give_up_forgotten
from model.errors import BessemerError, InputError
from tasks.artifacts.remote.attach import attached_root, is_address, store_of
from tasks.artifacts.remote.metadata import pull_metadata, put_night, put_pages, put_run
from tasks.artifacts.remote.object_store import ObjectStore

log = logging.getLogger(__name__)


def open_root(root: str | Path) -> Path:
    """Return the folder of a root; for one in an object store, fetch manifests and records of other machines first.

    Files are fetched when they are read. Raises RecipeError for an invalid address, InputError for a file and where
    access is refused, Infra where the store does not answer.
    """
    folder = (attached_root(str(root)) if is_address(root) else Path(os.path.expanduser(root))).resolve()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"--root {root}: {existing} is a file; choose a folder of yours with --root")
    refresh(folder)
    return folder


def refresh(root: Path) -> None:
    """Fetch manifests and records of other machines from the object store behind a root, if there is one, and give up
    here what they made the store forget."""
    store = store_of(root)
    if store is not None:
        pull_metadata(root, store)
        give_up_forgotten(root, store)
        link_promotions(root)


def put_record(root: Path, run_id: str, *, pages: bool = False) -> None:
    """Upload the record of a run to the object store behind its root, if there is one."""
    _upload(root, f"the record of run {run_id}", run_id, put_run, *([put_pages] if pages else []))


def put_nightly_record(root: Path, run_id: str) -> None:
    """Upload the record of a nightly run to the object store behind its root, if there is one."""
    _upload(root, f"the current record of nightly run {run_id}", run_id, put_night)


def _upload(root: Path, what: str, run_id: str, *puts: Callable[[Path, ObjectStore, str], None]) -> None:
    """Upload to the store of a root. One that fails now does not end the run: the next command that opens the root
    uploads the record, if the store has none."""
    store = store_of(root)
    if store is None:
        return
    try:
        for put in puts:
            put(root, store, run_id)
    except BessemerError as error:
        log.warning("%s is not in the store yet: %s", what, error)
