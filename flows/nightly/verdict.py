"""Whether a night's model may follow the current one: both on the same held-out text and items, pair by pair."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flows.nightly.settings import NightlyConfig
from tasks.artifact import Artifact
from tasks.evaluate.chance import stand_together
from tasks.evaluate.comparison import Worse, fallen_scores, risen_bits

DOCUMENT_SCORES, ITEM_SCORES = "document_scores", "item_scores"
MOST_TOLD = 3


@dataclass(frozen=True)
class Verdict:
    """Each figure of both models, and those in which the later one is worse beyond chance."""

    figures: tuple[Worse, ...]
    worse: tuple[Worse, ...]

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


def _chance_told(chance: float) -> str:
    return f"p {chance:.1g}" if chance >= 1e-4 else "p < 0.0001"


def judge(after: Artifact, before: Artifact | None, config: NightlyConfig) -> Verdict:
    """The evaluation of a night beside that of the current model."""
    if before is None:
        return Verdict((), ())
    bits = risen_bits(after.table(DOCUMENT_SCORES), before.table(DOCUMENT_SCORES)) if _both(after, before) else []
    scores = fallen_scores(after.table(ITEM_SCORES), before.table(ITEM_SCORES))
    figures = (*bits, *scores)
    allowed = [config.max_rise] * len(bits) + [config.max_fall] * len(scores)
    beyond = stand_together([one.chance for one in figures], config.level)
    worse = [one for one, stands, most in zip(figures, beyond, allowed, strict=True) if stands and one.worse_by > most]
    return Verdict(figures, tuple(sorted(worse, key=lambda one: one.chance)))


def _both(after: Artifact, before: Artifact) -> bool:
    """Evaluations of earlier versions kept no bits of single documents."""
    return all(artifact.files(DOCUMENT_SCORES) for artifact in (after, before))


def mean_bits(evaluated: Artifact) -> float | None:
    """Bits per byte of held-out text, mean of the sources, under whatever name the network's kind has it."""
    headline: Mapping[str, float | None] = evaluated.report.facts.get("headline", {})
    names = ("heldout/all", "heldout/all/pseudo_bits_per_byte", "heldout/all/target_bits_per_byte")
    return next((headline[name] for name in names if headline.get(name) is not None), None)
