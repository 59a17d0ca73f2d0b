"""One night from the look for new files to the promotion, without Prefect."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.lineage import open_run, run_artifacts
from flows.nightly import nights as told_nights
from flows.nightly.messages import beginning_told, blocked_told, message
from flows.nightly.nights import Night, list_nights, new_files, taken_files
from flows.nightly.notify import tell
from flows.nightly.preflight import Needs, check_night
from flows.nightly.settings import Occasion
from flows.nightly.tonight import Base, RawRecipe, base_of, paths_of
from flows.nightly.verdict import Verdict, judge, mean_bits
from flows.promotions import current_promotion, history, promote
from flows.recipe import Recipe
from flows.record import check_writable, new_run_id
from flows.road import EndOfRoad
from flows.roots import refresh
from model.durable import write_atomically
from model.errors import BessemerError, GuardError, Infra, InputError, RecipeError
from tasks.artifact import Artifact
from tasks.lease import LEASE_SECONDS, build_lease
from tasks.sample.discovery import find_files
from tasks.sample.stage import file_digests
from tasks.store.backing import Backing

BYTES_PER_TOKEN = 4
"""Of a batch of new text, below which a night waits for more."""
CRASHED = "it ended without a word; what it had built stands, and the next night went on with its files"

Between = Callable[[Path, str, tuple[Any, ...]], tuple[Any, ...]]
"""(folder of the run, stage, its inputs) -> the inputs that the stage is given."""
Road = Callable[[Recipe, Path, str, Between], dict[str, Any]]
"""Takes a recipe down the road under a root and a run id, with a word before each stage; gives the run's record."""


class TooLittle(EndOfRoad):
    """What is left of the new text would not fill a batch; the run ends quietly."""

    def __init__(self, found: int, needed: int) -> None:
        super().__init__(f"{found:,} bytes of new text are left, and a night begins with {needed:,}")
        self.nothing = found == 0


class PromotionBlocked(GuardError):
    """A night's model is worse than the current one, which stays."""

    def __init__(self, words: str, run_id: str = "", current: str = "", worse: tuple[str, ...] = ()) -> None:
        super().__init__(words)
        self.run_id = run_id
        self.current = current
        self.worse = worse
        """Figures in which it is worse."""


@dataclass
class Tonight:
    """What is known before anything is built."""

    raw: RawRecipe
    whole: Recipe
    base: Base | None
    night: Night
    again: tuple[str, ...] = ()
    needs: Needs | None = None
    say: Callable[[str], None] = field(default=lambda sentence: None)

    @property
    def nothing_new(self) -> bool:
        return not self.night.files

    def recipe(self) -> Recipe:
        """What tonight runs."""
        if self.base is None:
            return self.whole
        return self.raw.of_night(paths_of(self.night.files), self.base)


@contextmanager
def alone(
    root: Path, say: Callable[[str], None] = lambda sentence: None, seconds: float = LEASE_SECONDS
) -> Iterator[None]:
    """Hold this around a night; Infra where one is under way, on this machine or on one that shares the root.

    One whose machine went down is told by its silence, which takes `seconds`; `say` is told of the wait.
    """

    def on_wait(holder: str) -> None:
        say(f"a night was begun by {holder}; whether it still goes on is known within {seconds:g} s")

    def on_alive(holder: str) -> None:
        raise Infra(f"nightly: another night is under way under {root} ({holder}); wait for its end")

    check_writable(root)
    among_machines = Backing.of(root).lease("nightly", on_wait, seconds, on_alive)
    with build_lease(root / "locks" / "nightly", on_wait, seconds, on_alive), among_machines:
        # What another machine's night did since this command began.
        refresh(root)
        yield


def look(raw: RawRecipe, again: tuple[str, ...] = (), say: Callable[[str], None] = lambda sentence: None) -> Tonight:
    """What is new since the nights before, for the current model.

    Raises RecipeError and InputError as a run does before work begins, of which people are told, and InputError for a
    night `again` that is none or whose text the current model has learnt.
    """
    root = raw.root
    whole = raw.whole()
    nights = list_nights(root)
    _tell_what_became_of(nights, root)
    promotion = current_promotion(root)
    base = base_of(root, promotion.run_id) if promotion is not None else None
    again = tuple(_named_night(name, nights, base) for name in again)
    night = Night(
        run_id=new_run_id(),
        recipe=whole.name,
        base=base.run_id if base else None,
        chain=base.chain if base else [],
    )
    tonight = Tonight(raw, whole, base, night, again, say=say)
    try:
        found = file_digests(find_files(whole.sample), root / "inputs.json")
    except BessemerError as error:
        fail(tonight, error)
        raise
    night.files = new_files({source: dict(files) for source, files in found.items()}, taken_files(nights, again))
    return tonight


def _tell_what_became_of(nights: list[Night], root: Path) -> None:
    """Nights that ended without a word: nobody else spends one now, so that they are not under way."""
    promoted = {one.run_id for one in history(root)}
    for night in nights:
        if night.state == told_nights.UNDER_WAY:
            ended_well = night.run_id in promoted
            night.state = told_nights.PROMOTED if ended_well else told_nights.INTERRUPTED
            night.why, night.ended = night.why if ended_well else CRASHED, time.time()
            night.save(root)


def idle(tonight: Tonight) -> Night:
    """End a night in which nothing is new."""
    night = tonight.night
    taken = "every file was read by a night before"
    return _end(tonight, told_nights.NOTHING, f"no new data: {taken}", "nothing", night)


def spend(tonight: Tonight, road: Road, server: str | None) -> Night:
    """Check, build, score, compare, and promote or not; the night's record says what came of it.

    Raises PromotionBlocked where the model is worse and the current one stays, and what the preflight and the road
    raise; people are told beforehand.
    """
    night, root = tonight.night, tonight.raw.root
    night.save(root)
    try:
        before = run_artifacts(open_run(root, tonight.base.run_id)) if tonight.base else {}
        recipe = tonight.recipe()
        tonight.needs = check_night(recipe, night.files, root, tonight.raw.nightly, before, server)
        tonight.say(beginning_told(night, tonight.needs))
        return _walked(tonight, recipe, before, road)
    except PromotionBlocked:
        raise
    except Exception as error:
        fail(tonight, error)
        raise
    except BaseException:
        # Ctrl-C, or the signal by which Prefect ends a run that was cancelled.
        night.state, night.why, night.ended = told_nights.INTERRUPTED, "it was stopped", time.time()
        night.save(root)
        raise


def _walked(tonight: Tonight, recipe: Recipe, before: dict[str, Artifact], road: Road) -> Night:
    night, root = tonight.night, tonight.raw.root
    too_little: list[TooLittle] = []

    def between(folder: Path, stage: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if stage == "vocab":
            try:
                _check_enough(inputs[0], recipe, tonight.raw.nightly.least_bytes)
            except TooLittle as error:
                too_little.append(error)
                raise
        if stage == "chunk":
            return _with_what_is_left(folder, inputs, recipe)
        return inputs

    record = road(recipe, root, night.run_id, between)
    artifacts = run_artifacts(record)
    if too_little:
        if too_little[0].nothing:
            # Nothing of it needs to be read again: all of it is known, or no text.
            why = "no new data: what is new in the files was known before, or is no text"
            return _end(tonight, told_nights.NOTHING, why, "nothing", night)
        return _end(tonight, told_nights.TOO_LITTLE, f"{too_little[0]}; the next night takes it too", "nothing", night)
    if "evaluate" not in artifacts:
        raise RecipeError(
            "nightly: training paused on its way (train.pause_share), and a night is compared with the one before at"
            " its end. Leave train.pause_share out, and the next night goes on from the pause."
        )
    _count(night, artifacts)
    verdict = judge(artifacts["evaluate"], before.get("evaluate"), tonight.raw.nightly)
    night.bits_after = mean_bits(artifacts["evaluate"])
    night.bits_before = mean_bits(before["evaluate"]) if "evaluate" in before else None
    night.verdict = verdict.to_json()
    if why := _why_not(tonight, verdict):
        _end(tonight, told_nights.BLOCKED, why, "blocked", night)
        named = tuple(one.what for one in verdict.worse)
        raise PromotionBlocked(blocked_told(night, why), night.run_id, night.base or "", named)
    why = verdict.told() if tonight.base is not None else "the first night: nothing to compare with"
    promote(root, record, f"night {night.run_id}: {why}")
    return _end(tonight, told_nights.PROMOTED, why, "promoted", night)


def _why_not(tonight: Tonight, verdict: Verdict) -> str:
    """What keeps a night's model from being promoted; empty where nothing does."""
    promotion = current_promotion(tonight.raw.root)
    current = promotion.run_id if promotion is not None else None
    if current != tonight.night.base:
        return f"{current} was made the current model in the meantime, with which nobody compared it"
    return "" if tonight.base is None or verdict.passed else verdict.told()


def _check_enough(documents: Artifact, recipe: Recipe, least: int | None) -> None:
    left = documents.report.total().bytes_out
    batch = BYTES_PER_TOKEN * recipe.train.batch_rows * recipe.chunk.row_length
    needed = batch if least is None else least
    if left < needed:
        raise TooLittle(left, needed)


def _with_what_is_left(folder: Path, inputs: tuple[Any, ...], recipe: Recipe) -> tuple[Any, ...]:
    """Chunk's inputs without a weight for sources of which nothing new is left; the run's recipe says so, too."""
    from flows.record import RECIPE

    documents, *rest, config = inputs
    left = documents.report.sources
    weights = {
        source: weight if source in left and left[source].documents_out else 0.0
        for source, weight in config.weights.items()
    }
    if weights == config.weights:
        return inputs
    config = config.model_copy(update={"weights": weights})
    changed = recipe.model_copy(update={"chunk": config})
    write_atomically(folder / RECIPE, changed.model_dump_json(indent=1).encode())
    return (documents, *rest, config)


def _count(night: Night, artifacts: dict[str, Artifact]) -> None:
    night.documents = artifacts["decontaminate"].report.total().documents_out
    facts = artifacts["chunk"].report.facts
    night.tokens = facts["order"]["tokens"]
    night.epochs = {source: line["epochs"] for source, line in facts["mixture"].items()}
    night.unique_tokens = {source: line["tokens"] for source, line in facts["mixture"].items()}


def _end(tonight: Tonight, state: str, why: str, occasion: Occasion, night: Night) -> Night:
    night.state, night.why, night.ended = state, why, time.time()
    # Before anybody is told: a kill while a server does not answer must not have the night spent again.
    night.save(tonight.raw.root)
    night.told = tell(tonight.raw.notify, occasion, message(night, tonight.raw.root))
    night.save(tonight.raw.root)
    return night


def fail(tonight: Tonight, error: Exception) -> None:
    """End a night with an error, and tell people."""
    why = str(error) if isinstance(error, BessemerError) else type(error).__name__
    _end(tonight, told_nights.FAILED, f"{type(error).__name__}: {why}", "failed", tonight.night)


def _named_night(name: str, nights: list[Night], base: Base | None) -> str:
    found = [night.run_id for night in nights if night.run_id.startswith(name)]
    if len(found) != 1:
        raise InputError(
            f"nightly --again {name}: {'no night' if not found else f'{len(found)} nights'} with an id that begins so;"
            f" `bessemer nightly --list` shows them"
        )
    if base is not None and found[0] in base.chain:
        raise InputError(
            f"nightly --again {name}: the current model has learnt the text of this night already, and deduplication"
            f" would remove all of it. Take the night back first: `bessemer promote --undo`."
        )
    return found[0]
