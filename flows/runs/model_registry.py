"""The model registry: which model is the current one, and the history of who promoted what, when and why.

`ROOT/promotions/NNNNNN/` is a promotion: `promotion.json`, and links to the run, its model and its tokenizer.
`ROOT/current` is a link to the latest, so that tools find `ROOT/current/model/model.safetensors` whatever is promoted.
A promotion is never changed; undoing one is a new promotion, of the model before it. The highest number counts, and the
link follows it. For a root in an object store `promotions/NNNNNN.json` is created there first, and only if it does not
exist: of two machines that want a number, one gets it.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.runs.record import RECORD, RunData, list_runs, read_run, stage_paths, this_user, warn_once
from flows.runs.shredding import certificates_under
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError, IntegrityError
from model.files import make_folders, sync_directory
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.metadata import (
    CERTIFICATE_LOST,
    FORGOTTEN,
    PROMOTION,
    PROMOTION_LOST,
    create_promotion,
    pull_metadata,
    put_run,
)
from tasks.artifacts.remote.metadata import PROMOTIONS as FOLDER
from tasks.artifacts.reuse import now

CURRENT = "current"
"""Name of the current model's run, in place of a run id."""

LINKED = {"model": "train", "tokenizer": "vocab"}
"""Links in a promotion's folder -> the stage whose artifact they lead to."""


@dataclass(frozen=True)
class Promotion:
    """A record that a run's model became the current one."""

    number: int
    run_id: str
    who: str
    when: str
    why: str
    replaced: int | None
    """Number of the promotion whose run was the current one before; None of the first."""
    restores: int | None = None
    """Where a promotion was undone: number of the one that is current again."""

    @property
    def place(self) -> int:
        """Number of the promotion by which the run first became the current one; undoing starts from there."""
        return self.number if self.restores is None else self.restores


def history(root: Path) -> list[Promotion]:
    """Return all promotions under a root, oldest first; IntegrityError where one cannot be read."""
    paths = sorted((root / FOLDER).glob(f"[0-9]*/{PROMOTION}"))
    return [Promotion(**read_sealed(path, PROMOTION_LOST)) for path in paths]


def current_promotion(root: Path) -> Promotion | None:
    """Return the latest promotion; None where nothing was promoted yet."""
    return (history(root) or [None])[-1]


def current_run(root: Path) -> str:
    """Return the id of the current model's run; InputError where nothing was promoted yet."""
    found = current_promotion(root)
    if found is None:
        raise InputError(
            f"nothing under {root} was promoted yet, so there is no `{CURRENT}` model. `bessemer model promote RUN`"
            f" makes a run's model the current one, and each successful `bessemer nightly RECIPE` does."
        )
    return found.run_id


def promote(
    root: Path, record: RunData, why: str, check: Callable[[Promotion | None], None] = lambda before: None
) -> Promotion:
    """Make a run's model the current one; `check` is called with the promotion that would be replaced, and may raise.

    Raises InputError where the run's model does not exist, or is the current one already.
    """
    run_id = record["run_id"]
    _check_artifacts_exist(record, f"promote {run_id}")
    while True:
        before = current_promotion(root)
        check(before)
        if before is not None and before.run_id == run_id:
            raise InputError(f"promote {run_id}: it is the current model already; nothing was done")
        number = 1 if before is None else before.number + 1
        replaced = None if before is None else before.place
        made = Promotion(number, run_id, this_user(), now(), why, replaced)
        if _publish(root, made, record):
            return made


def undo(root: Path, why: str) -> Promotion:
    """Undo the latest promotion: make the model before it the current one again that learnt no document which had to
    leave.

    Raises InputError where there was none before, or where its artifacts no longer exist, and IntegrityError where a
    certificate that may name it is damaged.
    """
    while True:
        current_run(root)
        had_it, damaged = _had_removed_documents(root)
        if damaged:
            raise IntegrityError(
                f"promote --undo: {damaged[0]} Without a copy, promote a model that learnt no removed document (the"
                " page beside it names those that did): `bessemer model promote RUN`."
            )
        latest, *earlier = _steps_back(root, had_it)
        if not earlier:
            first = "was the first to be promoted; there is no model before it"
            learnt = "has no model before it that had not learnt documents which `bessemer data forget` removed"
            raise InputError(
                f"promote --undo: {latest.run_id} {first if latest.replaced is None else learnt}. Promote another run:"
                f" `bessemer model promote RUN`."
            )
        target = earlier[0]
        record = read_run(root / "runs" / target.run_id)
        _check_artifacts_exist(record, "promote --undo")
        reason = why or f"promotion of {latest.run_id} undone"
        made = Promotion(
            latest.number + 1, target.run_id, this_user(), now(), reason, target.replaced, restores=target.place
        )
        if _publish(root, made, record):
            return made


def needed_runs(root: Path) -> frozenset[str]:
    """Return the ids of the runs that the current model, and undoing its promotions one by one, need; with those that
    only a damaged certificate may exclude."""
    had_it, damaged = _had_removed_documents(root)
    for problem in damaged:
        warn_once(f"{problem} Until then earlier models that it may name are kept.")
    return frozenset(one.run_id for one in _steps_back(root, had_it))


def _had_removed_documents(root: Path) -> tuple[set[str], list[str]]:
    """Return the artifacts that had a document which had to leave, as `STAGE/IDENTITY`, and what is wrong with
    certificates that may name others; one whose page is there without it is lost."""
    pages = {path.with_suffix(".json") for path in (root / FORGOTTEN).glob("*.html")}
    had_it, damaged = set[str](), list[str]()
    for path in sorted({*pages, *certificates_under(root)}):
        try:
            certificate = read_sealed(path, CERTIFICATE_LOST)
            had_it |= {name.partition(" ")[0] for key in ("removed", "shared", "made") for name in certificate[key]}
        except FileNotFoundError:
            damaged.append(f"{path} is missing, and its page is there. {CERTIFICATE_LOST}")
        except IntegrityError as error:
            damaged.append(str(error))
    return had_it, damaged


def _steps_back(root: Path, had_it: Collection[str]) -> list[Promotion]:
    """Return the latest promotion and those that undoing leads to one by one, without models in `had_it`."""
    promotions = history(root)
    by_number = {one.number: one for one in promotions}
    models = {run["run_id"]: f"train/{path.name}" for run in list_runs(root) if (path := stage_paths(run).get("train"))}
    found = promotions[-1:]
    number = found[0].replaced if found else None
    while number is not None:
        if models.get(by_number[number].run_id) not in had_it:
            found.append(by_number[number])
        number = by_number[number].replaced
    return found


def _check_artifacts_exist(record: RunData, request: str) -> None:
    paths = stage_paths(record)
    for stage in LINKED.values():
        if stage not in paths:
            raise InputError(
                f"{request}: the run {record['run_id']} ended before `{stage}`; choose another (`bessemer runs list`)"
            )
        if not paths[stage].is_dir():
            raise InputError(
                f"{request}: {paths[stage]}, which the run {record['run_id']} made, no longer exists. Run its recipe"
                f" again, or choose another run."
            )


def _publish(root: Path, made: Promotion, record: RunData) -> bool:
    """Write a promotion and point the link to it; return False where another process took its number."""
    root = root.resolve()
    store = store_of(root)
    if store is not None:
        # A promotion in the store must never name a run that is not there yet.
        put_run(root, store, made.run_id)
        if not create_promotion(store, made.number, asdict(made)):
            pull_metadata(root, store)
            return False
    folder = root / FOLDER
    draft = folder / f".draft-{secrets.token_hex(4)}"
    make_folders(draft)
    _link(draft, root, made.run_id, record)
    # This makes the links durable too: a promotion lost with the power would be made twice.
    write_sealed(draft / PROMOTION, asdict(made))
    target = folder / f"{made.number:06d}"
    try:
        # A rename never replaces a folder that is not empty: of two that want the number, one gets it.
        os.rename(draft, target)
    except OSError:
        shutil.rmtree(draft)
        if not target.exists():
            raise
        if store is None:
            return False
        # The number is ours in the store, and another command here has fetched it from there already.
        link_promotions(root)
        return True
    sync_directory(folder)
    point_to_latest(root)
    return True


def link_promotions(root: Path) -> None:
    """Write the links of promotions fetched from a store, and point `ROOT/current` to the latest."""
    for promotion in history(root):
        folder = root / FOLDER / f"{promotion.number:06d}"
        record = root / "runs" / promotion.run_id / RECORD
        if not all((folder / name).is_symlink() for name in ("run", *LINKED)) and record.exists():
            try:
                _link(folder, root, promotion.run_id, read_run(record.parent))
            except IntegrityError as error:
                warn_once(str(error))
    point_to_latest(root)


def _link(folder: Path, root: Path, run_id: str, record: RunData) -> None:
    root = root.resolve()
    paths = stage_paths(record)
    places = {"run": root / "runs" / run_id, **{name: paths[stage].resolve() for name, stage in LINKED.items()}}
    for name, place in places.items():
        # Two commands may have fetched the promotion at once; both point its links to the same places.
        with suppress(FileExistsError):
            (folder / name).symlink_to(os.path.relpath(place, folder.resolve()))


def point_to_latest(root: Path) -> None:
    """Point `ROOT/current` to the latest promotion; a kill may have come between the two."""
    link = root / CURRENT
    # Repeat until nothing was promoted between the look and the link: the slower of two commands would set it back.
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
