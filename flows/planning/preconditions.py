"""Check a recipe before its first stage is built, so that a mistake is not found after hours of work.

Little is read: the file of a base vocabulary (0.4 s for 50,000 byte-level tokens, 0.1 s for 32,000 of SentencePiece),
the description of a trained model, and the first records of sources and benchmarks.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from flows.metrics.formatting import format_bytes
from flows.planning.cost_model import format_memory, memory_bound, memory_hint, recipe_memory
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.record import Asked, stages_of
from model.config import machine
from model.errors import AccessError, BessemerError, Infra, InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.artifacts.published import artifacts_under
from tasks.sample.discovery import SourceFiles, find_files
from tasks.tokenizer.open import tokenizer_of

if TYPE_CHECKING:
    from flows.runs.run import Run
    from tasks.tokenizer.base import Tokenizer

DISTRIBUTED_STAGES = frozenset({"clean", "dedup", "decontaminate", "chunk"})
"""Stages whose parts may be processed by other machines."""

CHECKED: ContextVar[Recipe | None] = ContextVar("CHECKED", default=None)
"""A recipe that passed `check_prerequisites` already, so that its flow does not check it again."""


def check_prerequisites(
    recipe: Recipe, stages: Sequence[str], root: Path | None = None, *, force: bool = False
) -> None:
    """Raise RecipeError or InputError where one of `stages` could not start, or does not fit this machine."""
    check_starting_points(recipe, stages)
    first = _first_to_build(recipe, None if force else root)
    check_first_records(recipe, stages, first)
    if any(stage in DISTRIBUTED_STAGES and getattr(recipe, stage).machines.is_cluster for stage in stages):
        from tasks.execution.dask import check_dask

        check_dask()
    # These load PyTorch, which takes seconds.
    if first is not None and "train" in stages:
        if recipe.train.device != "cpu":
            from model.engines.runtime import training_device

            training_device(recipe.train.trainer_config())

        check_memory(recipe)


def _first_to_build(recipe: Recipe, root: Path | None) -> str | None:
    """Return the first stage up to train that has no artifact under `root`, or None."""
    # Without an artifact of sample, no digests need to be computed.
    if root is None or not artifacts_under(root, "sample"):
        return "sample"
    context = RunContext(root, run_id="", dry=True)
    reached = ""

    def step(stage: str, *inputs: Any) -> Artifact:
        nonlocal reached
        reached = stage
        return BUILDERS[stage](context, *inputs)

    try:
        run_stages(recipe, step, until="train")
    except (WouldBuild, BessemerError):
        return reached
    return None


def check_first_records(recipe: Recipe, stages: Sequence[str], first: str | None) -> None:
    """Raise RecipeError or InputError, with the line of the recipe, where first records do not match the recipe.

    Checks the sources and benchmarks that `stages` read, unless an existing artifact before `first`, the first stage
    to build, contains them already.
    """
    if first == "sample" and "sample" in stages:
        try:
            listings = find_source_files(recipe)
        except (AccessError, Infra):
            listings = []  # The stage reports servers that do not answer, and asks them again.
        check_sources(recipe, listings)
    if first in STAGES[: STAGES.index("decontaminate") + 1] and "decontaminate" in stages:
        check_benchmarks(recipe)


def find_source_files(recipe: Recipe) -> list[SourceFiles]:
    """Return the files of every source; InputError or RecipeError, with the line of the recipe, where one has none."""
    try:
        return find_files(recipe.sample)
    except (InputError, RecipeError) as error:
        names = [source.name for source in recipe.sample.sources if f"source `{source.name}`" in str(error)]
        place = recipe.place(("sources",), names[0], "paths") if names else recipe.place((), "", "")
        raise type(error)(f"{place}: {error}") from error


def check_sources(recipe: Recipe, listings: Sequence[SourceFiles]) -> None:
    """Raise RecipeError where the first records of a source lack a field, InputError where its files have another
    format."""
    from tasks.sample.first_records import find_mismatch

    for listing in listings:
        name = listing.source.name
        misfit = find_mismatch(listing)
        if misfit is None:
            continue
        place = recipe.place(("sources",), name, misfit.setting)
        kind = InputError if misfit.setting == "paths" else RecipeError
        hint = "Repair the files, or exclude them" if misfit.setting == "paths" else f"Correct `{misfit.setting}`"
        raise kind(f"{place}: sample: source `{name}`: {misfit.problem}. {hint} (`bessemer init FOLDER` shows fields).")


def check_benchmarks(recipe: Recipe) -> None:
    """Raise RecipeError where a benchmark's field map does not match its first records, InputError where its file is
    wrong."""
    from tasks.decontaminate.benchmarks import check_first_items

    for benchmark in recipe.decontaminate.benchmarks:
        try:
            check_first_items(benchmark)
        except (RecipeError, InputError) as error:
            key = "fields" if isinstance(error, RecipeError) else "path"
            place = recipe.place(("benchmarks", "decontaminate.benchmarks"), benchmark.name, key)
            raise type(error)(f"{place}: {error}") from error


def check_starting_points(recipe: Recipe, stages: Sequence[str]) -> None:
    """Raise RecipeError or InputError where `stages` cannot start from `vocab.base` or `train.base_model`."""
    tokenizer = None
    if recipe.vocab.base is not None and not {"vocab", "chunk", "train"}.isdisjoint(stages):
        tokenizer = _open_base(recipe)
    if tokenizer is not None and "chunk" in stages:
        from tasks.chunk.row_formats import row_format

        row_format(tokenizer, recipe.chunk)
    if recipe.train.base_model is not None and "train" in stages:
        from tasks.train.base_model import check_base_model

        pieces = tokenizer.vocab_size + recipe.vocab.pieces_to_find if tokenizer is not None else None
        anew = recipe.vocab.vocab_size if recipe.vocab.base is None else None
        unextended = tokenizer.digest if tokenizer is not None and not recipe.vocab.extend else None
        check_base_model(recipe.train, pieces, recipe.vocab.base, _base_rows(recipe), anew, unextended)


def _base_rows(recipe: Recipe) -> int | None:
    """Return how many rows the base vocabulary takes before anything is added; None without a base."""
    from tasks.tokenizer.released import read_base
    from tasks.vocab.extenders import vocabulary_size

    if recipe.vocab.base is None:
        return None
    return max(vocabulary_size(read_base(recipe.vocab.base)), recipe.vocab.embedding_rows)


def _open_base(recipe: Recipe) -> "Tokenizer":
    """Return the base tokenizer as it will be extended, with all special tokens."""
    from tasks.vocab.base import prepare_base
    from tasks.vocab.special_tokens import check_special
    from tasks.vocab.stage import check_base_exists

    assert recipe.vocab.base is not None, "the recipe has no base vocabulary"
    check_base_exists(recipe.vocab.base)
    tokenizer = tokenizer_of(prepare_base(recipe.vocab))
    check_special(tokenizer, recipe.vocab.special_names)
    return tokenizer


def export_remark(recipe: Recipe) -> str:
    """Return why `bessemer model export` could not write the network that the recipe trains; empty where it could."""
    from model.huggingface.registry import fitting_family

    try:
        fitting_family(recipe.train.model)
    except RecipeError as error:
        return f"`bessemer model export` cannot write this network: {error}"
    return ""


def check_memory(recipe: Recipe) -> None:
    """Raise RecipeError where the recipe's training does not fit this machine or its devices."""
    train = recipe.train
    here = train.ranks // train.hosts.count
    if train.device == "cpu" and here * memory_bound(recipe) <= machine.machine_memory():
        return  # A small network: PyTorch, which takes two seconds to load, need not count.
    memory = recipe_memory(recipe)
    if train.device == "cuda":
        import torch

        here, available, where = 1, torch.cuda.get_device_properties(0).total_memory, "the device"
    else:
        available, where = machine.machine_memory(), "this machine"
    needed = here * memory.at_least
    if needed <= available:
        return
    ranks = f"{here} ranks take " if here > 1 else ""
    raise RecipeError(
        f"train: {ranks}at least {format_bytes(needed)}, and {where} has {format_bytes(available)}. Each rank:"
        f" {format_memory(memory)}. {_what_fits(recipe, available / here) or memory_hint(memory)} `bessemer estimate`"
        f" shows other layouts"
    )


def _what_fits(recipe: Recipe, available: float) -> str:
    """Return the number to set with which a rank fits so many bytes; empty where none is known."""
    train = recipe.train
    changes: list[tuple[str, dict[str, int]]] = []
    if train.micro_batch_rows != "auto":
        powers = reversed(range(train.rows_at_once.bit_length()))
        rows = [2**power for power in powers if 2**power < train.rows_at_once and train.rows_at_once % 2**power == 0]
        changes += [(f"train.micro_batch_rows = {size}", {"micro_batch_rows": size}) for size in rows]
    if train.engine == "fsdp" and train.device == "cuda":
        more = [train.ranks * 2**power for power in range(1, 8)]
        changes += [(f"train.ranks = {n}", {"ranks": n}) for n in more if train.batch_rows % n == 0]
    for setting, change in changes:
        memory = recipe_memory(recipe.model_copy(update={"train": train.model_copy(update=change)}))
        if memory.total is not None and memory.total <= available:
            return f"Set {setting}, which fits;"
    return ""


def start_run(recipe: Recipe, root: Path, *, run_id: str | None = None, **asked: Unpack[Asked]) -> "Run":
    """Return a run of the selected stages, after `check_prerequisites` passed, here or before the flow began."""
    from flows.runs.run import Run  # Imports Prefect, and the command line checks a recipe before it does.

    if CHECKED.get() != recipe:
        stages = stages_of(asked)
        check_prerequisites(recipe, stages, root, force=asked.get("force", False))
    return Run(recipe, root, run_id=run_id, **asked)
