"""Check what the tables of a recipe, each valid by itself, must agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.recipe.stages import STAGES
from model.errors import RecipeError
from model.optim.schedules import TrainingSchedule

if TYPE_CHECKING:
    from flows.recipe.schema import Recipe

MEAN_OF_SOURCES = "all"
"""The name that the mean of all sources has in the place of a source's (`tasks.evaluate.scores`)."""


def check_consistency(recipe: Recipe, origin: str) -> None:
    """Raise RecipeError where tables contradict each other; `origin` names the recipe."""
    _check_source_names(recipe, origin)
    _check_length_of_rows(recipe, origin)
    _check_sentinels(recipe, origin)
    _check_gate(recipe, origin)
    _check_benchmarks(recipe, origin)
    _check_schedule(recipe, origin)
    _check_weights(recipe, origin)


def row_length_settings(context: int, objective: str) -> dict[str, int]:
    """Return the settings of chunk that follow from the context; causal_lm shifts targets by one token."""
    if objective == "span_corruption":
        return {"input_length": context}
    return {"row_length": context if objective == "masked_lm" else context + 1}


def _check_source_names(recipe: Recipe, origin: str) -> None:
    """Raise where a table keyed by source names no source: a typing error would otherwise have no effect; and where a
    source has the name of the mean of all."""
    names = {source.name for source in recipe.sample.sources}
    if MEAN_OF_SOURCES in names:
        raise RecipeError(
            f"{origin}: a source has the name `{MEAN_OF_SOURCES}`, under which scores give the mean of all sources."
            f" Give it another name."
        )
    keyed = ("weights", "priorities", "presets", "kinds", "wipe_out_overrides")
    named = {f"{stage}.{key}": getattr(getattr(recipe, stage), key, None) or {} for stage in STAGES for key in keyed}
    if recipe.clean.quality is not None:
        named["clean.quality.good"] = recipe.clean.quality.good
    for classifier in recipe.clean.classifiers:
        named[f"clean.classifiers `{classifier.name}`"] = (*classifier.good, *classifier.bad)
    # Text that earlier runs held out is of their sources, which this run may not read.
    if recipe.evaluate.gate is not None and not recipe.evaluate.earlier:
        named["evaluate.gate.sources"] = recipe.evaluate.gate.sources
    named |= {f"train.phases[{at}].weights": phase.weights for at, phase in enumerate(recipe.train.phases)}
    for place, given in named.items():
        for name in given:
            if name not in names:
                raise RecipeError(
                    f"{origin}: {place} names the source `{name}`, but the sources are {', '.join(sorted(names))}"
                )


def _check_length_of_rows(recipe: Recipe, origin: str) -> None:
    """Raise where rows have another length than the model reads, which the trainer would find only after all stages."""
    objective, context = recipe.chunk.objective, recipe.train.model.context
    for key, needed in row_length_settings(context, objective).items():
        found = getattr(recipe.chunk, key)
        if found != needed:
            raise RecipeError(
                f"{origin}: chunk.{key} = {found}, and {objective} with train.model.context = {context} reads"
                f" {needed}. Leave chunk.{key} out; train.model.context decides it."
            )


def _check_sentinels(recipe: Recipe, origin: str) -> None:
    """Raise where a vocabulary trained here has too few sentinels; chunk counts those of a base."""
    if recipe.chunk.objective != "span_corruption" or recipe.vocab.base is not None:
        return
    if recipe.vocab.sentinels < recipe.chunk.noise_spans == 1:
        raise RecipeError(
            f"{origin}: chunk.denoising = {recipe.chunk.denoising} replaces corrupted spans by a sentinel, and"
            f" vocab.sentinels = 0. Set vocab.sentinels = 1 or more."
        )
    if recipe.vocab.sentinels < recipe.chunk.noise_spans:
        raise RecipeError(
            f"{origin}: span_corruption with a context of {recipe.chunk.input_length} takes {recipe.chunk.noise_spans}"
            f" spans out of each row, and vocab.sentinels = {recipe.vocab.sentinels}; each span needs one. Set"
            f" vocab.sentinels = {recipe.chunk.noise_spans} or more, or lower train.model.context."
        )


def _check_gate(recipe: Recipe, origin: str) -> None:
    """Raise where the gate has nothing to compare, which would show only after all of training."""
    gate = recipe.evaluate.gate
    if gate is None:
        return
    if recipe.train.base_model is None:
        raise RecipeError(
            f"{origin}: evaluate.gate compares with the model that training starts from, and train.base_model is not"
            f" set. Name a trained model there, or leave evaluate.gate out."
        )
    if recipe.train.model.architecture != "gpt":
        raise RecipeError(
            f"{origin}: evaluate.gate compares bits per byte, which a {recipe.train.model.architecture} does not have,"
            f" for it does not predict each next token. Leave evaluate.gate out."
        )


def _check_benchmarks(recipe: Recipe, origin: str) -> None:
    known = [benchmark.name for benchmark in recipe.decontaminate.benchmarks]
    for name in recipe.evaluate.benchmarks:
        if name not in known:
            raise RecipeError(
                f"{origin}: evaluate.benchmarks.{name} says how a benchmark is scored that the run does not read (it"
                f" reads {', '.join(known) or 'none'}). Name it under [[benchmarks]] with its file, or leave it out."
            )


def _check_weights(recipe: Recipe, origin: str) -> None:
    """Raise where no part of training reads a source."""
    for name, weight in recipe.chunk.weights.items():
        if not weight and not any(phase.weights.get(name) for phase in recipe.chunk.phases):
            raise RecipeError(
                f"{origin}: source `{name}` has weight 0, and no phase reads it. Give it a weight here or in"
                f" train.phases, or leave the source out."
            )


def _check_schedule(recipe: Recipe, origin: str) -> None:
    """Raise where parts of the schedule in steps or tokens are longer than the budget; training may read less still."""
    positions = -(-recipe.chunk.budget_tokens // recipe.chunk.most_tokens)
    try:
        TrainingSchedule(recipe.train, positions, recipe.train.model.context)
    except RecipeError as error:
        raise RecipeError(f"{origin}: {error}") from error


def table_at(found: Any, place: str, origin: str) -> dict[str, Any]:
    """Return what was found at a place; RecipeError where it is no table."""
    if not isinstance(found, dict):
        raise RecipeError(f"{origin}: {place} is {found!r}, and must be a table of settings")
    return found
