"""The pipeline without Prefect: its eight stages in order, and the function that builds each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.stage import build_chunk
from tasks.clean.stage import build_clean
from tasks.decontaminate.stage import build_decontaminate
from tasks.dedup.stage import build_dedup
from tasks.evaluate.stage import build_evaluate
from tasks.sample.stage import build_sample
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.vocab.stage import build_vocab

if TYPE_CHECKING:
    from flows.recipe.schema import Recipe


def run_stages(recipe: Recipe, run_stage: Callable[..., Artifact]) -> None:
    """Run the pipeline from raw text to an evaluated model; `run_stage(stage, *inputs, config)` returns an artifact."""
    documents = run_stage("sample", recipe.sample)
    cleaned = run_stage("clean", documents, recipe.clean)
    unique = run_stage("dedup", cleaned, recipe.dedup)
    unseen = run_stage("decontaminate", unique, recipe.decontaminate)
    tokenizer = run_stage("vocab", unseen, recipe.vocab)
    sequences = run_stage("chunk", unseen, tokenizer, recipe.chunk)
    model = run_stage("train", sequences, tokenizer, recipe.train)
    run_stage("evaluate", model, tokenizer, sequences, unseen, recipe.evaluate)


def _build_train(context: RunContext, sequences: Artifact, vocab: Artifact, config: TrainStageConfig) -> Artifact:
    return build_train(context, sequences, vocab, config, lambda message: None)


BUILDERS: dict[str, Callable[..., Any]] = {
    "sample": build_sample,
    "clean": build_clean,
    "dedup": build_dedup,
    "decontaminate": build_decontaminate,
    "vocab": build_vocab,
    "chunk": build_chunk,
    "train": _build_train,
    "evaluate": build_evaluate,
}
"""Stage -> `build(context, *inputs, config)`, as `flows.runs.pipeline.run_stages` calls it."""
