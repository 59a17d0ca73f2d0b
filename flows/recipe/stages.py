"""The road: the stages in their order, what each takes from those before, and the stretch that a run is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from model.errors import RecipeError

STAGES = ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate")


class StageLimitReached(Exception):
    """A run has come as far as it should; it ends quietly on this."""


def select_stages(from_stage: str | None = None, until: str | None = None, only: str | None = None) -> Sequence[str]:
    """The stages that a run may build, in order, both ends included; RecipeError for unknown names, for `only` beside
    another word, or where the end lies before the beginning."""
    words = {"--from": from_stage, "--until": until, "--only": only}
    given = {word: name for word, name in words.items() if name is not None}
    for word, name in given.items():
        if name not in STAGES:
            raise RecipeError(f"{word} {name}: there is no such stage; the road is {' -> '.join(STAGES)}")
    if only is not None:
        if len(given) > 1:
            both = " and ".join(f"{word} {name}" for word, name in given.items())
            raise RecipeError(f"{both} exclude each other: --only builds one stage")
        return (only,)
    first = STAGES.index(from_stage or STAGES[0])
    last = STAGES.index(until or STAGES[-1])
    if first > last:
        raise RecipeError(f"--from {from_stage} --until {until}: {until} comes before {from_stage} on the road")
    return STAGES[first : last + 1]
