"""One night from what is new to the promotion, without Prefect.

Whether a night's model may follow the current one: both on the same held-out text and items, pair by pair.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flows.nightly import history as told_nights
from flows.nightly.config import NightlyConfig
from flows.nightly.finish import end, fail, stop
from flows.nightly.history import Night, list_nights
from flows.nightly.notify import beginning_told, blocked_told
from flows.nightly.preflight import check_night, data_pace
from flows.nightly.start import Tonight
from flows.recipe.schema import Recipe
from flows.recipe.stages import EndOfRoad
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.model_registry import Promotion, promote
from model.errors import GuardError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.evaluate.comparison import Regression, bits_regressions, holm_significant, score_regressions

BYTES_PER_TOKEN = 4
"""Of a batch of new text, below which a night waits for more."""

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


def idle(tonight: Tonight) -> Night:
    """End a night in which nothing is new."""
    taken = "every file was read by a night before"
    return end(tonight.raw, tonight.night, told_nights.NOTHING, f"no new data: {taken}", "nothing")


def spend(tonight: Tonight, road: Road, server: str | None) -> Night:
    """Check, build, score, compare, and promote or not; the night's record says what came of it.

    Raises PromotionBlocked where the model is worse and the current one stays, and what the preflight and the road
    raise; people are told beforehand.
    """
    night, root = tonight.night, tonight.raw.root
    try:
        night.save(root)
        before = run_artifacts(open_run(root, tonight.base.run_id)) if tonight.base else {}
        recipe = tonight.recipe()
        nights = list_nights(root)
        tonight.needs = check_night(recipe, night.files, root, tonight.raw.nightly, before, server, nights)
        tonight.say(beginning_told(night, tonight.needs))
        return _walked(tonight, recipe, before, road)
    except PromotionBlocked:
        raise
    except Exception as error:
        fail(tonight.raw, night, error)
        raise
    except BaseException:
        # Ctrl-C, or the signal by which Prefect ends a run that was cancelled.
        stop(tonight.raw, night)
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
            return end(tonight.raw, night, told_nights.NOTHING, why, "nothing")
        return end(
            tonight.raw, night, told_nights.TOO_LITTLE, f"{too_little[0]}; the next night takes it too", "nothing"
        )
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
    if tonight.base is not None and not verdict.passed:
        raise _blocked(tonight, verdict.told(), verdict)
    why = verdict.told() if tonight.base is not None else "the first night: nothing to compare with"
    try:
        promote(root, record, f"night {night.run_id}: {why}", partial(_check_compared, night.base))
    except NotComparedError as error:
        raise _blocked(tonight, str(error), verdict) from error
    return end(tonight.raw, night, told_nights.PROMOTED, why, "promoted")


class NotComparedError(Exception):
    """The current model is not the one that a night's was compared with."""


def _check_compared(compared: str | None, before: Promotion | None) -> None:
    current = before.run_id if before is not None else None
    if current != compared:
        raise NotComparedError(f"{current} was made the current model in the meantime, with which nobody compared it")


@dataclass(frozen=True)
class Verdict:
    """Each figure of both models, and those in which the later one is worse beyond chance."""

    figures: tuple[Regression, ...]
    worse: tuple[Regression, ...]

    @property
    def comparable(self) -> bool:
        """Whether both were scored on anything in common."""
        return bool(self.figures)

    @property
    def passed(self) -> bool:
        """Whether the later one may be promoted."""
        return self.comparable and not self.worse

    def told(self) -> str:
        """One sentence without its full stop."""
        if not self.comparable:
            return (
                "the two models were scored on nothing in common, so that nobody can say that it is no worse; promote"
                " it by hand if it should be"
            )
        if not self.worse:
            return f"no worse in {len(self.figures)} figures"
        named = ", ".join(
            f"{one.what} {one.before:.3f} -> {one.after:.3f} ({_chance_told(one.chance)})"
            for one in self.worse[:MOST_TOLD]
        )
        more = f" and {len(self.worse) - MOST_TOLD} more" if len(self.worse) > MOST_TOLD else ""
        return f"worse beyond chance: {named}{more}"

    def to_json(self) -> list[dict[str, Any]]:
        """Each figure as plain values, with whether it blocks."""
        return [{**asdict(one), "blocks": one in self.worse} for one in self.figures]


def _blocked(tonight: Tonight, why: str, verdict: Verdict) -> PromotionBlocked:
    night = tonight.night
    end(tonight.raw, night, told_nights.BLOCKED, why, "blocked")
    named = tuple(one.what for one in verdict.worse)
    return PromotionBlocked(blocked_told(night, why), night.run_id, night.base or "", named)


def _check_enough(documents: Artifact, recipe: Recipe, least: int | None) -> None:
    left = documents.report.total().bytes_out
    batch = BYTES_PER_TOKEN * recipe.train.batch_rows * recipe.chunk.row_length
    needed = batch if least is None else least
    if left < needed:
        raise TooLittle(left, needed)


def _with_what_is_left(folder: Path, inputs: tuple[Any, ...], recipe: Recipe) -> tuple[Any, ...]:
    """Chunk's inputs without a weight for sources of which nothing new is left; the run's recipe says so, too."""
    from flows.runs.record import write_recipe

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
    write_recipe(folder, changed)
    return (documents, *rest, config)


def _count(night: Night, artifacts: dict[str, Artifact]) -> None:
    night.read_bytes, night.data_seconds = data_pace(artifacts)
    night.documents = artifacts["decontaminate"].report.total().documents_out
    facts = artifacts["chunk"].report.facts
    night.tokens = facts["order"]["tokens"]
    night.epochs = {source: line["epochs"] for source, line in facts["mixture"].items()}
    night.unique_tokens = {source: line["tokens"] for source, line in facts["mixture"].items()}


DOCUMENT_SCORES, ITEM_SCORES = "document_scores", "item_scores"

MOST_TOLD = 3


def _chance_told(chance: float) -> str:
    return f"p {chance:.1g}" if chance >= 1e-4 else "p < 0.0001"


def judge(after: Artifact, before: Artifact | None, config: NightlyConfig) -> Verdict:
    """The evaluation of a night beside that of the current model."""
    if before is None:
        return Verdict((), ())
    bits = bits_regressions(after.table(DOCUMENT_SCORES), before.table(DOCUMENT_SCORES)) if _both(after, before) else []
    scores = score_regressions(after.table(ITEM_SCORES), before.table(ITEM_SCORES))
    figures = (*bits, *scores)
    allowed = [config.max_rise] * len(bits) + [config.max_fall] * len(scores)
    beyond = holm_significant([one.chance for one in figures], config.level)
    worse = [one for one, stands, most in zip(figures, beyond, allowed, strict=True) if stands and one.worse_by > most]
    return Verdict(figures, tuple(sorted(worse, key=lambda one: one.chance)))


def _both(after: Artifact, before: Artifact) -> bool:
    """Evaluations of earlier versions kept no bits of single documents."""
    return all(artifact.files(DOCUMENT_SCORES) for artifact in (after, before))


def mean_bits(evaluated: Artifact) -> float | None:
    """Bits per byte of held-out text, mean of the sources, under whatever name the network's kind has it."""
    key_figures: Mapping[str, float | None] = evaluated.report.facts.get("headline", {})
    names = ("heldout/all", "heldout/all/pseudo_bits_per_byte", "heldout/all/target_bits_per_byte")
    return next((key_figures[name] for name in names if key_figures.get(name) is not None), None)
