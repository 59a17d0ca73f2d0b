"""What builds each stage, without Prefect: for those who look ahead, or build a part of the road by themselves."""

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


def run_stages(recipe: Recipe, step: Callable[..., Artifact]) -> None:
    """The road from raw text to an evaluated model: `step(stage, *inputs, config)` gives each stage's artifact."""
    documents = step("sample", recipe.sample)
    cleaned = step("clean", documents, recipe.clean)
    unique = step("dedup", cleaned, recipe.dedup)
    unseen = step("decontaminate", unique, recipe.decontaminate)
    tokenizer = step("vocab", unseen, recipe.vocab)
    sequences = step("chunk", unseen, tokenizer, recipe.chunk)
    model = step("train", sequences, tokenizer, recipe.train)
    step("evaluate", model, tokenizer, sequences, unseen, recipe.evaluate)
