"""The road: the stages in their order, what each takes from those before, and the stretch that a run is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from model.errors import RecipeError

if TYPE_CHECKING:
    from flows.recipe import Recipe
    from tasks.artifact import Artifact

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


def walk(recipe: Recipe, step: Callable[..., Artifact]) -> None:
    """The road from raw text to an evaluated model: `step(stage, *inputs, config)` gives each stage's artifact."""
    documents = step("sample", recipe.sample)
    cleaned = step("clean", documents, recipe.clean)
    unique = step("dedup", cleaned, recipe.dedup)
    unseen = step("decontaminate", unique, recipe.decontaminate)
    tokenizer = step("vocab", unseen, recipe.vocab)
    sequences = step("chunk", unseen, tokenizer, recipe.chunk)
    model = step("train", sequences, tokenizer, recipe.train)
    step("evaluate", model, tokenizer, sequences, unseen, recipe.evaluate)
