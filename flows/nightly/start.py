"""Start a nightly run: take the lock of its root, read the recipe, and find the files that are new."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flows.nightly.finish import end, notify_start_failures, record_failures
from flows.nightly.history import INTERRUPTED, PROMOTED, UNDER_WAY, Files, Night, list_nights, new_files, taken_files
from flows.nightly.recipe import Base, RawRecipe, base_of, read_raw
from flows.planning.preconditions import find_source_files
from flows.recipe.schema import Recipe
from flows.runs.model_registry import current_promotion, history
from flows.runs.record import check_writable, new_run_id
from flows.runs.roots import open_root, refresh
from model.errors import Infra, InputError
from tasks.artifacts.lease import LEASE_SECONDS, build_lease, ignore
from tasks.artifacts.remote.mirror import RemoteMirror
from tasks.common.digests import INPUTS
from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.stage import digested, file_digests

Say = Callable[[str], None]

BLANK_BYTES = 1 << 16
"""Larger files are not searched for text."""


@dataclass
class NightlyContext:
    """What a nightly run knows before anything is built."""

    raw: RawRecipe
    whole: Recipe
    base: Base | None
    night: Night
    say: Say = ignore

    @property
    def nothing_new(self) -> bool:
        return not self.night.files

    def warnings(self) -> list[str]:
        """Return sentences without full stop about what may not be intended."""
        found = self.raw.warnings()
        if self.base is not None and self.base.recipe.name != self.whole.name:
            found.append(
                f"the current model is of recipe `{self.base.recipe.name}`, and this nightly run of `{self.whole.name}`"
                " goes on from it: a root has one current model. For a chain of its own name another --root"
            )
        return found

    def recipe(self) -> Recipe:
        return self.whole if self.base is None else self.raw.of_night(self.night.files, self.base)


class AnotherNightError(Exception):
    """Raised where another nightly run is under way, which notifies people itself."""


@contextmanager
def start_nightly(
    recipe: str,
    root: str | Path,
    again: Sequence[str] = (),
    settings: Sequence[str] = (),
    say: Say = ignore,
    check: Callable[[], None] = lambda: None,
) -> Iterator[NightlyContext]:
    """Yield a nightly run before anything is built, holding the lock of its root; notify people if it cannot start.

    `check` may raise a reason not to start. Raises Infra, without a notification, where another nightly run is under
    way, and what opening the root and reading the recipe raise.
    """
    with ExitStack() as held:
        try:
            with notify_start_failures(recipe, root, settings):
                folder = open_root(root).resolve()
                check()
                held.enter_context(exclusive_nightly(folder, say))
                raw = read_raw(recipe, folder, settings)
        except AnotherNightError as error:
            raise Infra(str(error)) from error
        yield find_new_data(raw, again, say)


@contextmanager
def exclusive_nightly(root: Path, say: Say = ignore, seconds: float = LEASE_SECONDS) -> Iterator[None]:
    """Hold the lock of a root's nightly run; AnotherNightError where one is under way, here or on a machine that
    shares the root.

    A nightly run whose machine died shows only by its silence for `seconds`; `say` is called before this wait.
    """

    def on_wait(holder: str) -> None:
        say(f"a nightly run was started by {holder}; checking for up to {seconds:g} s whether it is still running")

    def on_alive(holder: str) -> None:
        raise AnotherNightError(f"nightly: another nightly run is under way under {root} ({holder}); wait for its end")

    check_writable(root)
    among_machines = RemoteMirror.of(root).lease("nightly", on_wait, seconds, on_alive)
    with build_lease(root / "locks" / "nightly", on_wait, seconds, on_alive), among_machines:
        # Fetch what another machine's nightly run did since this command began.
        refresh(root)
        yield


def find_new_data(raw: RawRecipe, again: Sequence[str] = (), say: Say = ignore) -> NightlyContext:
    """Find what is new since the earlier nightly runs, for the current model.

    Raises RecipeError and InputError as a run does before work begins, with a notification, and InputError where
    `again` names no nightly run, or one whose text the current model has learnt.
    """
    root = raw.root
    night = Night(new_run_id(), raw.name)
    with record_failures(raw, night):
        whole = raw.whole()
        night.recipe = whole.name
        nights = list_nights(root)
        _close_interrupted(raw, nights)
        promotion = current_promotion(root)
        base = base_of(root, promotion.run_id) if promotion is not None else None
        if base is None:
            raw.check_later(whole)
    if base is not None:
        night.base, night.chain = base.run_id, base.chain
    again = [_named_night(name, nights, base) for name in again]
    with record_failures(raw, night):
        listings = digested(find_source_files(whole), root / INPUTS)
        found = {source: dict(files) for source, files in file_digests(listings).items()}
        night.files = _without_blank_files(new_files(found, taken_files(nights, again)), listings)
    return NightlyContext(raw, whole, base, night, say=say)


def _without_blank_files(new: Files, listings: Sequence[SourceFiles]) -> Files:
    """Return the new files without those that are empty or hold white space alone, whose text may still be written:
    nothing in them is new, and a source whose new files are all blank would end the nightly run."""
    files = (file for listing in listings for file in listing.files if file.relative in new.get(file.source, ()))
    blank = {(file.source, file.relative) for file in files if _is_blank(file)}
    left = {
        source: {path: digest for path, digest in files.items() if (source, path) not in blank}
        for source, files in new.items()
    }
    return {source: files for source, files in left.items() if files}


def _is_blank(file: InputFile) -> bool:
    if file.content is None or file.size > BLANK_BYTES:
        return file.size == 0
    with file.open() as stream:
        return not stream.read().decode("utf-8-sig", errors="replace").strip()


def _close_interrupted(raw: RawRecipe, nights: Sequence[Night]) -> None:
    """Write the end of nightly runs that died; this process holds the lock, so none of them is under way."""
    promoted = {one.run_id: one for one in history(raw.root)}
    for night in nights:
        if night.state != UNDER_WAY:
            continue
        if night.run_id in promoted:
            end(raw, night, PROMOTED, promoted[night.run_id].why, "promoted")
        else:
            why = "it died; finished artifacts are kept, and the next nightly run takes its files"
            end(raw, night, INTERRUPTED, why, "failed")


def _named_night(name: str, nights: list[Night], base: Base | None) -> str:
    found = [night.run_id for night in nights if night.run_id.startswith(name)]
    if len(found) != 1:
        raise InputError(
            f"nightly --again {name}: {'no nightly run has' if not found else f'{len(found)} nightly runs have'} such"
            f" an id; `bessemer nightly --list` shows them"
        )
    if base is not None and found[0] in base.chain:
        raise InputError(
            f"nightly --again {name}: the current model has learnt the text of this nightly run already,"
            f" and deduplication would remove all of it. Undo its promotion first: `bessemer model promote"
            f" --undo`."
        )
    return found[0]
