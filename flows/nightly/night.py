"""One nightly run from the new files to the promotion, without Prefect.

Its model is promoted where it is not significantly worse than the current one, compared pair by pair on the same
held-out text and benchmark items (`judge`).
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flows.nightly.config import NightlyConfig
from flows.nightly.finish import end, fail, stop
from flows.nightly.history import BLOCKED, NOTHING, PROMOTED, TOO_LITTLE, JudgedFigure, Night, list_nights
from flows.nightly.notify import describe_blocked, describe_start
from flows.nightly.preflight import check_night, data_throughput
from flows.nightly.start import NightlyContext
from flows.recipe.schema import Recipe
from flows.recipe.stages import StageLimitReached
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.model_registry import Promotion, promote
from flows.runs.record import RunData, write_recipe
from model.errors import GuardError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import ChunkResult, EvaluateResult
from tasks.artifacts.tables.rows import HELDOUT_ALL
from tasks.evaluate.comparison import (
    Regression,
    bits_regressions,
    holm_significant,
    score_regressions,
    smallest_p_value,
)

BYTES_PER_TOKEN = 4
"""Bytes of new text per token of a batch; with less than one batch a nightly run waits for more."""

Between = Callable[[Path, str, tuple[Any, ...]], tuple[Any, ...]]
"""(folder of the run, stage, its inputs) -> the inputs that the stage is given."""

Pipeline = Callable[[Recipe, Path, str, Between], RunData]
"""Runs a recipe under a root and a run id, calling `Between` before each stage; returns the run's record."""


class NotEnoughData(StageLimitReached):
    """Raised where the remaining new text would not fill a batch; the run ends without an error."""

    def __init__(self, found: int, needed: int) -> None:
        super().__init__(f"{found:,} bytes of new text remain, and a nightly run needs {needed:,}")
        self.nothing = found == 0


class PromotionBlocked(GuardError):
    """Raised where a nightly run's model is worse than the current one, which stays."""

    def __init__(self, words: str, run_id: str = "", current: str = "", worse: tuple[str, ...] = ()) -> None:
        super().__init__(words)
        self.run_id = run_id
        self.current = current
        self.worse = worse
        """Figures in which it is worse."""


def skip_nightly(tonight: NightlyContext) -> Night:
    """End a nightly run without new files."""
    why = "no new data: every file was read by an earlier nightly run"
    return end(tonight.raw, tonight.night, NOTHING, why, "nothing")


def run_nightly(tonight: NightlyContext, pipeline: Pipeline, server: str | None) -> Night:
    """Check, build, score, compare, and promote or not; return the record of the nightly run.

    Raises PromotionBlocked where the model is worse, and what the preflight and the pipeline raise; people are notified
    first.
    """
    night, root = tonight.night, tonight.raw.root
    try:
        night.save(root)
        before = run_artifacts(open_run(root, tonight.base.run_id)) if tonight.base else {}
        recipe = tonight.recipe()
        nights = list_nights(root)
        needs = check_night(recipe, night.files, root, tonight.raw.nightly, before, server, nights)
        tonight.say(describe_start(night, needs))
        return _run_and_judge(tonight, recipe, before, pipeline)
    except PromotionBlocked:
        raise
    except Exception as error:
        fail(tonight.raw, night, error)
        raise
    except BaseException:
        # Ctrl-C, or the signal by which Prefect ends a cancelled run.
        stop(tonight.raw, night)
        raise


def _run_and_judge(tonight: NightlyContext, recipe: Recipe, before: dict[str, Artifact], pipeline: Pipeline) -> Night:
    night, root = tonight.night, tonight.raw.root
    too_little: list[NotEnoughData] = []

    def between(folder: Path, stage: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if stage == "vocab" and (error := _shortage(inputs[0], recipe, tonight.raw.nightly.least_bytes)):
            too_little.append(error)
            raise error
        if stage == "chunk":
            return _without_exhausted_sources(folder, inputs, recipe)
        return inputs

    record = pipeline(recipe, root, night.run_id, between)
    artifacts = run_artifacts(record)
    if too_little:
        if too_little[0].nothing:
            # None of the files needs to be read again: their text is known, or they have none.
            return end(tonight.raw, night, NOTHING, "no new data: the new files hold no new text", "nothing")
        return end(tonight.raw, night, TOO_LITTLE, f"{too_little[0]}; the next nightly run takes it too", "nothing")
    if "evaluate" not in artifacts:
        raise RecipeError(
            "nightly: training paused (train.pause_share), and models are compared only after a whole training. Leave"
            " train.pause_share out; the next nightly run continues from the pause."
        )
    _count(night, artifacts)
    verdict = judge(artifacts["evaluate"], before.get("evaluate"), tonight.raw.nightly)
    night.bits_after = mean_bits(artifacts["evaluate"])
    night.bits_before = mean_bits(before["evaluate"]) if "evaluate" in before else None
    night.verdict = verdict.to_json()
    # Of the first nightly run, the figures by which later ones will be compared with it.
    compared = verdict if before else judge(artifacts["evaluate"], artifacts["evaluate"], tonight.raw.nightly)
    night.warnings = [warning] if (warning := compared.too_few()) else []
    if tonight.base is not None and not verdict.passed:
        raise _blocked(tonight, verdict.describe(), verdict)
    why = verdict.describe() if tonight.base is not None else "the first nightly run: nothing to compare with"
    try:
        promote(root, record, f"nightly run {night.run_id}: {why}", partial(_check_compared, night.base))
    except NotComparedError as error:
        raise _blocked(tonight, str(error), verdict) from error
    return end(tonight.raw, night, PROMOTED, why, "promoted")


class NotComparedError(Exception):
    """Raised where the current model is not the one that the new model was compared with."""


def _check_compared(compared: str | None, before: Promotion | None) -> None:
    current = before.run_id if before is not None else None
    if current != compared:
        raise NotComparedError(f"{current} became the current model in the meantime, with which it was not compared")


@dataclass(frozen=True)
class Verdict:
    """Each figure of both models, and those in which the new one is significantly worse."""

    figures: tuple[Regression, ...]
    worse: tuple[Regression, ...]
    level: float = NightlyConfig().level
    """Probability that a model that is no worse is blocked, over all figures."""

    @property
    def passed(self) -> bool:
        """Whether the new model may be promoted; not where both models were scored on nothing in common."""
        return bool(self.figures) and not self.worse

    def describe(self) -> str:
        """Return the verdict as a sentence without full stop."""
        if not self.figures:
            return (
                "the two models were scored on nothing in common, so they cannot be compared; promote it manually if"
                " you want it"
            )
        if not self.worse:
            rose = sum(one.worse_by > 0 for one in self.figures)
            if not rose:
                return f"no worse in {len(self.figures)} figures"
            return f"worse in {rose} of {len(self.figures)} figures, in none beyond chance and what [nightly] allows"
        named = ", ".join(
            f"{one.what} {one.before:.3f} -> {one.after:.3f} ({_format_chance(one)})" for one in self.worse[:MAX_SHOWN]
        )
        more = f" and {len(self.worse) - MAX_SHOWN} more" if len(self.worse) > MAX_SHOWN else ""
        return f"significantly worse: {named}{more}"

    def too_few(self) -> str:
        """Return, without full stop, which figures have too few documents or items to block a promotion by themselves;
        empty where all have enough."""
        limit = self.level / max(1, len(self.figures))
        small = sorted((one for one in self.figures if smallest_p_value(one.n) > limit), key=lambda one: one.n)
        if not small:
            return ""
        needed = next((n for n in range(1, ENOUGH) if smallest_p_value(n) <= limit), None)
        named = ", ".join(f"{one.what} has {one.n}" for one in small[:MAX_SHOWN])
        more = f" and {len(small) - MAX_SHOWN} more too few" if len(small) > MAX_SHOWN else ""
        return (
            f"{len(small)} of {len(self.figures)} figures cannot block a promotion by themselves, however much worse"
            f" they are: {named}{more}, and with so many figures"
            f" {f'{needed} documents or items are' if needed else 'a larger level is'} needed. Raise"
            f" decontaminate.heldout_min_documents in the recipe (at most a fifth of a source is held out, so join"
            f" small ones), run it whole, and promote that run"
        )

    def to_json(self) -> list[JudgedFigure]:
        """Return each figure as JSON values, with whether it blocks the promotion."""
        return [JudgedFigure(**asdict(one), blocks=one in self.worse) for one in self.figures]


def _blocked(tonight: NightlyContext, why: str, verdict: Verdict) -> PromotionBlocked:
    night = tonight.night
    end(tonight.raw, night, BLOCKED, why, "blocked")
    named = tuple(one.what for one in verdict.worse)
    return PromotionBlocked(describe_blocked(night, why, tonight.raw.root), night.run_id, night.base or "", named)


def _shortage(documents: Artifact, recipe: Recipe, least: int | None) -> NotEnoughData | None:
    left = documents.report.total().bytes_out
    needed = BYTES_PER_TOKEN * recipe.train.batch_rows * recipe.chunk.row_length if least is None else least
    return NotEnoughData(left, needed) if left < needed else None


def _without_exhausted_sources(folder: Path, inputs: tuple[Any, ...], recipe: Recipe) -> tuple[Any, ...]:
    """Return chunk's inputs with weight 0 for sources without remaining new text; update the run's recipe too."""
    documents, *rest, config = inputs
    left = documents.report.sources
    weights = {
        source: weight if source in left and left[source].documents_out else 0.0
        for source, weight in config.weights.items()
    }
    if weights == config.weights:
        return inputs
    config = config.model_copy(update={"weights": weights})
    write_recipe(folder, recipe.model_copy(update={"chunk": config}))
    return (documents, *rest, config)


def _count(night: Night, artifacts: dict[str, Artifact]) -> None:
    night.read_bytes, night.data_seconds = data_throughput(artifacts)
    night.documents = artifacts["decontaminate"].report.total().documents_out
    packed = ChunkResult.of(artifacts["chunk"].report)
    night.tokens = packed.order["tokens"]
    night.epochs = {source: line["epochs"] for source, line in packed.mixture.items()}
    night.unique_tokens = {source: line["tokens"] for source, line in packed.mixture.items()}


MAX_SHOWN = 3

ENOUGH = 100
"""Documents or items with which the smallest p-value is that of any larger number."""


def _format_chance(one: Regression) -> str:
    if not math.isfinite(one.after):
        return "not finite"
    return f"p {one.chance:.1g}" if one.chance >= 1e-4 else "p < 0.0001"


def judge(after: Artifact, before: Artifact | None, config: NightlyConfig) -> Verdict:
    """Compare the evaluation of a nightly run with that of the current model. A figure that is not finite, as of a
    network that broke down, is worse than any other."""
    if before is None:
        return Verdict((), ())
    bits = bits_regressions(after.table("document_scores"), before.table("document_scores"))
    scores = score_regressions(after.table("item_scores"), before.table("item_scores"))
    figures = (*bits, *scores)
    allowed = [config.max_rise] * len(bits) + [config.max_fall] * len(scores)
    beyond = holm_significant([one.chance for one in figures], config.level)
    worse = [
        one
        for one, sure, most in zip(figures, beyond, allowed, strict=True)
        if not math.isfinite(one.after) or (sure and one.worse_by > most)
    ]
    return Verdict(figures, tuple(sorted(worse, key=lambda one: one.chance)), config.level)


def mean_bits(evaluated: Artifact) -> float | None:
    """Return bits per byte of held-out text, mean of the sources, under the name of the network's kind."""
    key_figures = EvaluateResult.of(evaluated.report).headline
    names = (HELDOUT_ALL, f"{HELDOUT_ALL}/pseudo_bits_per_byte", f"{HELDOUT_ALL}/target_bits_per_byte")
    return next((key_figures[name] for name in names if key_figures.get(name) is not None), None)
