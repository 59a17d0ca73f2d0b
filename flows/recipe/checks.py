"""What the tables of a recipe must agree on, each of which is right by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flows.recipe.stages import STAGES
from model.errors import RecipeError

if TYPE_CHECKING:
    from flows.recipe.schema import Recipe


def check_consistency(recipe: Recipe, origin: str) -> None:
    """Raise RecipeError where they do not; `origin` names the recipe."""
    _check_source_names(recipe, origin)
    _check_length_of_rows(recipe, origin)
    _check_sentinels(recipe, origin)
    _check_gate(recipe, origin)
    _check_benchmarks(recipe, origin)


def row_length_settings(context: int, objective: str) -> dict[str, int]:
    """What chunk is told of the model's context: inputs and targets of causal_lm are shifted by one."""
    if objective == "span_corruption":
        return {"input_length": context}
    return {"row_length": context if objective == "masked_lm" else context + 1}


def _check_source_names(recipe: Recipe, origin: str) -> None:
    """Tables keyed by source must name sources that exist: a typing error would otherwise have no effect."""
    names = {source.name for source in recipe.sample.sources}
    keyed = ("weights", "priorities", "presets", "wipe_out_overrides", "heldout_shares")
    named = {f"{stage}.{key}": getattr(getattr(recipe, stage), key, None) or {} for stage in STAGES for key in keyed}
    if recipe.clean.quality is not None:
        named["clean.quality.good"] = recipe.clean.quality.good
    if recipe.evaluate.gate is not None:
        named["evaluate.gate.sources"] = recipe.evaluate.gate.sources
    for place, given in named.items():
        for name in given:
            if name not in names:
                raise RecipeError(
                    f"{origin}: {place} names the source `{name}`, but the sources are {', '.join(sorted(names))}"
                )


def _check_length_of_rows(recipe: Recipe, origin: str) -> None:
    """Rows of another length would be found out by the trainer alone, after all the work on the text."""
    objective, context = recipe.chunk.objective, recipe.train.model.context
    for key, needed in row_length_settings(context, objective).items():
        found = getattr(recipe.chunk, key)
        if found != needed:
            raise RecipeError(
                f"{origin}: chunk.{key} = {found}, and {objective} with train.model.context = {context} reads"
                f" {needed}. Leave chunk.{key} out; train.model.context decides it."
            )


def _check_sentinels(recipe: Recipe, origin: str) -> None:
    """A vocabulary that is trained here has the sentinels that were asked for; a base's are counted by chunk."""
    if recipe.chunk.objective != "span_corruption" or recipe.vocab.base is not None:
        return
    if recipe.vocab.sentinels < recipe.chunk.noise_spans == 1:
        raise RecipeError(
            f"{origin}: chunk.denoising = {recipe.chunk.denoising} puts a sentinel in place of what is corrupted, and"
            f" vocab.sentinels = 0. Set vocab.sentinels = 1 or more."
        )
    if recipe.vocab.sentinels < recipe.chunk.noise_spans:
        raise RecipeError(
            f"{origin}: span_corruption with a context of {recipe.chunk.input_length} takes {recipe.chunk.noise_spans}"
            f" spans out of each row, and vocab.sentinels = {recipe.vocab.sentinels}; each span needs one. Set"
            f" vocab.sentinels = {recipe.chunk.noise_spans} or more, or lower train.model.context."
        )


def _check_gate(recipe: Recipe, origin: str) -> None:
    """What the gate could not compare would be found out behind all of training."""
    gate = recipe.evaluate.gate
    if gate is None:
        return
    if recipe.train.base_model is None:
        raise RecipeError(
            f"{origin}: evaluate.gate compares with the model that training goes on from, and train.base_model is not"
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
