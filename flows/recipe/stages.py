"""The stages of the pipeline in their order, and the range of them that a run may build."""

from collections.abc import Sequence

from model.errors import RecipeError

STAGES = ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate")

DATA_STAGES = STAGES[: STAGES.index("train")]

AFTERWARDS = ("finetune", "export")
"""Stages of trained models, each of which has runs of its own."""


class StageLimitReached(Exception):
    """Raised after the last stage that a run was asked for; it ends the run without an error."""


def select_stages(from_stage: str | None = None, until: str | None = None, only: str | None = None) -> Sequence[str]:
    """Return the stages that a run may build, in order, both ends included.

    Raises RecipeError for unknown names, for `only` together with another option, or where `until` comes before
    `from_stage`.
    """
    options = {"--from": from_stage, "--until": until, "--only": only}
    given = {option: name for option, name in options.items() if name is not None}
    for option, name in given.items():
        if name not in STAGES:
            raise RecipeError(f"{option} {name}: there is no such stage; the pipeline is {' -> '.join(STAGES)}")
    if only is not None:
        if len(given) > 1:
            both = " and ".join(f"{option} {name}" for option, name in given.items())
            raise RecipeError(f"{both} exclude each other: --only builds one stage")
        return (only,)
    first = STAGES.index(from_stage or STAGES[0])
    last = STAGES.index(until or STAGES[-1])
    if first > last:
        raise RecipeError(f"--from {from_stage} --until {until}: {until} comes before {from_stage} in the pipeline")
    return STAGES[first : last + 1]
