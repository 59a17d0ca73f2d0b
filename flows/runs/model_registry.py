"""Which model is the current one: a stable name, and the history of who promoted what, when and why.

`ROOT/promotions/NNNNNN/` is a promotion: `promotion.json`, and links to the run, its model and its tokenizer.
`ROOT/current` is a link to the latest, so that tools find `ROOT/current/model/model.safetensors` whatever is promoted.
A promotion is never changed: to take one back is a promotion too, of what stood before it. The one with the highest
number counts; the link follows it. Before an object store `promotions/NNNNNN.json` is created there first, and only if
none stands: of two machines that want a number one gets it.
"""

import getpass
import os
import platform
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.runs.record import RECORD, warn_once
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError, IntegrityError
from model.files import make_folders, sync_directory
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.metadata import (
    PROMOTION,
    PROMOTION_LOST,
    create_promotion,
    pull_metadata,
    put_run,
    read_record,
)
from tasks.artifacts.remote.metadata import PROMOTIONS as FOLDER
from tasks.artifacts.reuse import now

CURRENT = "current"
"""The name by which the current model's run is asked for."""

LINKED = {"model": "train", "tokenizer": "vocab"}
"""Links in a promotion's folder -> the stage whose artifact they lead to."""


@dataclass(frozen=True)
class Promotion:
    """A run became the current one."""

    number: int
    run_id: str
    who: str
    when: str
    why: str
    replaced: int | None
    """Number of the promotion whose run was the current one before; None of the first."""
    restores: int | None = None
    """Where a promotion was taken back: number of the one that holds again."""

    @property
    def place(self) -> int:
        """Number of the promotion by which the run first became the current one, as far as undoing goes."""
        return self.number if self.restores is None else self.restores


def history(root: Path) -> list[Promotion]:
    """All promotions under a root, oldest first; IntegrityError where one cannot be read."""
    found: list[Promotion] = []
    for path in sorted((root / FOLDER).glob(f"[0-9]*/{PROMOTION}")):
        found.append(Promotion(**read_sealed(path, PROMOTION_LOST)))
    return found


def current_promotion(root: Path) -> Promotion | None:
    """The promotion that holds; None where nothing was promoted yet."""
    return (history(root) or [None])[-1]


def current_run(root: Path) -> str:
    """The id of the current model's run; InputError where nothing was promoted yet."""
    found = current_promotion(root)
    if found is None:
        raise InputError(
            f"nothing under {root} was promoted yet, so that no model is `{CURRENT}`. `bessemer model promote RUN`"
            " makes a"
            f" run's model the current one, and `bessemer nightly RECIPE` does so each night."
        )
    return found.run_id


def promote(
    root: Path, record: dict[str, Any], why: str, check: Callable[[Promotion | None], None] = lambda before: None
) -> Promotion:
    """Make a run's model the current one; `check` is given the promotion that would be replaced, and may raise.

    Raises InputError where the run has no model that stands, or is the current one already.
    """
    run_id = record["run_id"]
    _check_stands(record, f"promote {run_id}")
    while True:
        before = current_promotion(root)
        check(before)
        if before is not None and before.run_id == run_id:
            raise InputError(f"promote {run_id}: it is the current model already; nothing was done")
        number = 1 if before is None else before.number + 1
        replaced = None if before is None else before.place
        made = Promotion(number, run_id, _who(), now(), why, replaced)
        if _publish(root, made, record):
            return made


def undo(root: Path, why: str) -> Promotion:
    """Take the latest promotion back: what was the current model before it is so again.

    Raises InputError where there was none before, or it no longer stands.
    """
    while True:
        told = history(root)
        if not told:
            current_run(root)
        by_number = {one.number: one for one in told}
        earlier = by_number[told[-1].place].replaced
        if earlier is None:
            raise InputError(
                f"promote --undo: {told[-1].run_id} was the first to be promoted, and nothing stood before it. Promote"
                f" another run: `bessemer model promote RUN`."
            )
        target = by_number[earlier]
        record = read_record(root / "runs" / target.run_id / RECORD)
        _check_stands(record, "promote --undo")
        why_told = why or f"{told[-1].run_id} was taken back"
        made = Promotion(
            told[-1].number + 1, target.run_id, _who(), now(), why_told, target.replaced, restores=target.place
        )
        if _publish(root, made, record):
            return made


def needed_runs(root: Path) -> frozenset[str]:
    """Ids of the runs that the current model, and undoing its promotions one by one, need."""
    by_number = {one.number: one for one in history(root)}
    found: set[str] = set()
    place = max(by_number, default=None)
    while place is not None:
        found.add(by_number[place].run_id)
        place = by_number[by_number[place].place].replaced
    return frozenset(found)


def _check_stands(record: dict[str, Any], asked: str) -> None:
    paths = {entry["stage"]: Path(entry["path"]) for entry in record["stages"] if "path" in entry}
    for stage in LINKED.values():
        if stage not in paths:
            raise InputError(
                f"{asked}: the run {record['run_id']} ended before `{stage}`; choose another (bessemer runs list)"
            )
        if not paths[stage].is_dir():
            raise InputError(
                f"{asked}: {paths[stage]}, which the run {record['run_id']} made, no longer stands. Run its recipe"
                f" again, or choose another run."
            )


def _publish(root: Path, made: Promotion, record: dict[str, Any]) -> bool:
    """Write a promotion and lead the link to it; False where another took its number."""
    root = root.resolve()
    store = store_of(root)
    if store is not None:
        # Nobody is to find a promotion of a run that is not known there.
        put_run(root, store, made.run_id)
        if not create_promotion(store, made.number, asdict(made)):
            pull_metadata(root, store)
            return False
    folder = root / FOLDER
    draft = folder / f".draft-{secrets.token_hex(4)}"
    make_folders(draft)
    _link(draft, root, made.run_id, record)
    # Makes the links' names durable, too: a promotion that a loss of power took away would be made twice.
    write_sealed(draft / PROMOTION, asdict(made))
    target = folder / f"{made.number:06d}"
    try:
        # A folder that is not empty is never replaced: of two that want the number one gets it.
        os.rename(draft, target)
    except OSError:
        shutil.rmtree(draft)
        if not target.exists():
            raise
        if store is None:
            return False
        # The number is ours in the store; another command here has brought it from there already.
        link_promotions(root)
        return True
    sync_directory(folder)
    point_to_latest(root)
    return True


def link_promotions(root: Path) -> None:
    """Give promotions that were brought from a store their links, and lead `ROOT/current` to the latest."""
    for promotion in history(root):
        folder = root / FOLDER / f"{promotion.number:06d}"
        told = root / "runs" / promotion.run_id / RECORD
        if not all((folder / name).is_symlink() for name in ("run", *LINKED)) and told.exists():
            try:
                _link(folder, root, promotion.run_id, read_record(told))
            except IntegrityError as error:
                warn_once(str(error))
    point_to_latest(root)


def _link(folder: Path, root: Path, run_id: str, record: dict[str, Any]) -> None:
    root = root.resolve()
    paths = {entry["stage"]: Path(entry["path"]).resolve() for entry in record["stages"] if "path" in entry}
    places = {"run": root / "runs" / run_id, **{name: paths[stage] for name, stage in LINKED.items()}}
    for name, place in places.items():
        # Two commands may have brought the promotion at once, and both lead it to the same place.
        with suppress(FileExistsError):
            (folder / name).symlink_to(os.path.relpath(place, folder.resolve()))


def point_to_latest(root: Path) -> None:
    """Lead `ROOT/current` to the promotion that holds; a kill may have come between it and the link."""
    link = root / CURRENT
    # Again, until nothing was promoted between the look and the link: of two commands the slower would lead it back.
    while (latest := current_promotion(root)) is not None:
        target = Path(FOLDER) / f"{latest.number:06d}"
        if link.is_symlink() and Path(os.readlink(link)) == target:
            return
        if link.exists() and not link.is_symlink():
            raise InputError(f"{link} is in the way: it should be a link to the current model. Move it elsewhere.")
        draft = root / f".{CURRENT}-{secrets.token_hex(4)}"
        draft.symlink_to(target)
        os.replace(draft, link)
        sync_directory(root)


def _who() -> str:
    return f"{getpass.getuser()}@{platform.node()}"
