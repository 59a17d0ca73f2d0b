"""What can be known before the first stage is built: hours of work would come before the stage that needs it says so.

Only little is read: a base's file (0.4 s for 50,000 byte-level pieces, 0.1 s for 32,000 of SentencePiece), the
description of a trained model, and the first records of sources and benchmarks.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.metrics.formatting import size
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES, StageLimitReached
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.verify import artifacts_under
from model.errors import BessemerError, InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.sample.discovery import SourceFiles, find_files
from tasks.tokenizer.open import tokenizer_of

if TYPE_CHECKING:
    from tasks.tokenizer.base import Tokenizer


SPREAD = frozenset({"clean", "dedup", "decontaminate", "chunk"})
"""Stages whose parts may be worked on by other machines."""

CHECKED: ContextVar[Recipe | None] = ContextVar("CHECKED", default=None)
"""A recipe that passed `check_prerequisites` as it is about to be run, so that its flow does not check it again."""


def check_prerequisites(
    recipe: Recipe, stages: Sequence[str], root: Path | None = None, *, force: bool = False
) -> None:
    """Raise RecipeError or InputError where one of `stages` would refuse to begin, or could not fit this machine,
    whatever the text."""
    check_starting_points(recipe, stages)
    first = _first_to_build(recipe, None if force else root)
    check_first_records(recipe, stages, first)
    configs = {stage: getattr(recipe, stage) for stage in stages}
    if any(stage in SPREAD and config.machines.is_cluster for stage, config in configs.items()):
        from tasks.execution.dask import check_dask

        check_dask()
    # These load PyTorch, which takes seconds.
    if first is not None and "train" in stages:
        if recipe.train.device != "cpu":
            from model.engines.runtime import training_device

            training_device(recipe.train.trainer_config(), rank=0)

        check_memory(recipe)


def check_first_records(recipe: Recipe, stages: Sequence[str], first: str | None) -> None:
    """Raise RecipeError or InputError, with the line of the recipe, where the first records of a source or benchmark
    that `stages` read are not what the recipe says; what was read into an artifact before the stage `first`, the first
    to build, is not read again."""
    if first == "sample" and "sample" in stages:
        try:
            listings = find_files(recipe.sample)
        except BessemerError:
            listings = []  # The stage itself says what it cannot find, and waits for a server.
        check_sources(recipe, listings)
    if first in STAGES[: STAGES.index("decontaminate") + 1] and "decontaminate" in stages:
        check_benchmarks(recipe)


def _first_to_build(recipe: Recipe, root: Path | None) -> str | None:
    """Return the first stage up to train that has no artifact under `root`; None where all have."""
    # Without any artifact of sample nothing needs to be digested for the answer.
    if root is None or not artifacts_under(root, "sample"):
        return "sample"
    context = RunContext(root, run_id="", dry=True)
    reached = ""

    def step(stage: str, *inputs: Any) -> Artifact:
        nonlocal reached
        if reached == "train":
            raise StageLimitReached
        reached = stage
        return BUILDERS[stage](context, *inputs)

    try:
        run_stages(recipe, step)
    except StageLimitReached:
        return None
    except (WouldBuild, BessemerError):
        pass
    return reached


def check_sources(recipe: Recipe, listings: Sequence[SourceFiles]) -> None:
    """Raise RecipeError where a source lacks a field, or InputError where its files hold another format, by its first
    records."""
    from tasks.sample.first_records import find_mismatch

    for listing in listings:
        name = listing.source.name
        misfit = find_mismatch(listing)
        if misfit is None:
            continue
        place = recipe.place(("sources",), name, misfit.setting)
        kind = InputError if misfit.setting == "paths" else RecipeError
        cure = "Mend the files, or exclude them" if misfit.setting == "paths" else f"Correct `{misfit.setting}`"
        raise kind(f"{place}: sample: source `{name}`: {misfit.problem}. {cure} (`bessemer init FOLDER` shows fields).")


def check_benchmarks(recipe: Recipe) -> None:
    """Raise RecipeError where a benchmark's field map cannot fit, or InputError where its file is wrong, by its first
    records."""
    from tasks.decontaminate.benchmarks import check_first_items

    for benchmark in recipe.decontaminate.benchmarks:
        try:
            check_first_items(benchmark)
        except (RecipeError, InputError) as error:
            key = "fields" if isinstance(error, RecipeError) else "path"
            place = recipe.place(("benchmarks", "decontaminate.benchmarks"), benchmark.name, key)
            raise type(error)(f"{place}: {error}") from error


def check_starting_points(recipe: Recipe, stages: Sequence[str]) -> None:
    """Raise RecipeError or InputError where `vocab.base` or `train.base_model` cannot serve those of `stages` that
    start from them."""
    tokenizer = None
    if recipe.vocab.base is not None and not {"vocab", "chunk", "train"}.isdisjoint(stages):
        tokenizer = _opened_base(recipe)
    if tokenizer is not None and "chunk" in stages:
        from tasks.chunk.row_formats import row_format

        row_format(tokenizer, recipe.chunk)
    if recipe.train.base_model is not None and "train" in stages:
        from tasks.train.base_model import check_base_model

        pieces = tokenizer.vocab_size + recipe.vocab.pieces_to_find if tokenizer is not None else None
        check_base_model(recipe.train, pieces, recipe.vocab.base)


def _opened_base(recipe: Recipe) -> "Tokenizer":
    """The base as it will be extended, which has all special tokens already."""
    from tasks.vocab.base import prepare_base
    from tasks.vocab.special_tokens import check_special
    from tasks.vocab.stage import check_base_exists

    assert recipe.vocab.base is not None, "only a base is opened"
    check_base_exists(recipe.vocab.base)
    tokenizer = tokenizer_of(prepare_base(recipe.vocab))
    check_special(tokenizer, recipe.vocab.special_names)
    return tokenizer


def check_memory(recipe: Recipe) -> None:
    """Raise RecipeError where the recipe's training cannot fit this machine or its devices."""
    from flows.planning.cost_model import _cure, memory_words, recipe_memory
    from model.train import micro_batch

    memory, train = recipe_memory(recipe), recipe.train
    here = train.ranks // train.hosts.count
    if train.device == "cuda":
        import torch

        here, room, whose = 1, torch.cuda.get_device_properties(0).total_memory, "the device"
    else:
        room, whose = micro_batch.machine_memory(), "this machine"
    taken = here * memory.at_least
    if taken <= room:
        return
    ranks = f"{here} ranks take " if here > 1 else ""
    raise RecipeError(
        f"train: {ranks}at least {size(taken)}, and {whose} has {size(room)}. Each rank: {memory_words(memory)}."
        f" {_cure(memory)} `bessemer estimate` shows other layouts"
    )
