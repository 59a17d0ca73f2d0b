"""The stages in their order, and the stretch of them that a run is asked for."""

from collections.abc import Sequence

from model.errors import RecipeError

STAGES = ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate")


def stretch(from_stage: str | None, only: str | None) -> Sequence[str]:
    """The stages that a run may build, in order; RecipeError for unknown names or for both words at once."""
    for word, name in (("--from", from_stage), ("--only", only)):
        if name is not None and name not in STAGES:
            raise RecipeError(f"{word} {name}: there is no such stage; the road is {' -> '.join(STAGES)}")
    if from_stage is not None and only is not None:
        raise RecipeError(f"--from {from_stage} and --only {only} exclude each other; give one of them")
    if only is not None:
        return (only,)
    return STAGES[STAGES.index(from_stage) :] if from_stage is not None else STAGES
