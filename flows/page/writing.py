"""Puts the run page together: one HTML file beside the run's record."""

import html
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from flows.findings import FINDINGS, gone_artifacts
from flows.page.rendering import render
from flows.page.view import view_of
from flows.record import RECORD, read_record, same_artifacts
from flows.roots import put_record
from flows.run import Run
from model.durable import NOT_WRITABLE, write_atomically
from model.errors import BessemerError
from model.sealed import write_sealed

PAGE = "page.html"

log = logging.getLogger(__name__)
Value = TypeVar("Value")


def write_run_page(run: Run) -> Path:
    """Write the page of a run that ended; return that of an earlier run where this one built nothing.

    Raises OSError where it cannot be written, unless the run failed already: its own error is the one to report.
    """
    root, record = run.context.root, run.record
    earlier = same_artifacts(root, record.data)
    page = Path(earlier["page"]) if earlier is not None else run.folder / PAGE
    try:
        if earlier is None:
            page = write_page(run.folder, root)
        record.data["page"] = str(page)
        record.save()
        put_record(root, run.run_id, pages=True)
    except OSError as unwritten:
        if not run.failed:
            raise
        log.error("the page of run %s could not be written: %s", run.run_id, unwritten)
    return page


def write_page(run_folder: Path, root: Path) -> Path:
    """Write `page.html` of the run whose record is in `run_folder`, and return its path.

    A run that failed or covered some stages only has a page too. A section that cannot be drawn says why instead: no
    page may end a run that trained for days. The page that a run made at its end stays, and its path is returned, where
    less could be shown now: an artifact is gone or damaged.
    """
    record = read_record(run_folder / RECORD)
    fuller = Path(record["page"]) if record.get("page") and Path(record["page"]).is_file() else None
    gone = [f"{stage}: {told}" for stage, told in gone_artifacts(record).items()]
    if gone and fuller is not None:
        log.warning("%s stays as the run made it, for less could be shown now: %s", fuller, "; ".join(gone))
        return fuller
    problems: list[str] = []
    view = view_of(record, run_folder, root, partial(_attempt, problems))
    path = run_folder / PAGE
    if problems and fuller is not None:
        lost = ", ".join(problem.partition(":")[0] for problem in problems)
        log.warning("%s stays as the run made it, for less could be shown now: no %s", fuller, lost)
        return fuller
    try:
        page = render({**view, "problems": problems, "gone": gone})
    except Exception as error:
        log.exception("the run page could not be made")
        page = f"<!doctype html><title>Bessemer</title><pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"
    try:
        if not problems and not gone:
            write_sealed(run_folder / FINDINGS, view["findings"], indent=None)
        write_atomically(path, page.encode("utf-8", errors="replace"))
    except OSError as error:
        if fuller is None or error.errno not in NOT_WRITABLE:
            raise
        log.warning("%s stays as the run made it: %s cannot be written (%s)", fuller, run_folder, error.strerror)
        return fuller
    return path


def _attempt(problems: list[str], section: str, make: Callable[[], Value], instead: Value) -> Value:
    try:
        return make()
    except Exception as error:
        at_fault = not isinstance(error, BessemerError)  # Damaged data need no traceback.
        log.error("the section %s of the run page could not be made: %s", section, error, exc_info=at_fault)
        problems.append(f"{section}: {type(error).__name__}: {error}")
        return instead
