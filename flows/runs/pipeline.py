"""The pipeline without Prefect: what each of its eight stages reads, and the function that builds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flows.recipe.stages import STAGES
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


READS: dict[str, tuple[str, ...]] = {
    "sample": (),
    "clean": ("sample",),
    "dedup": ("clean",),
    "decontaminate": ("dedup",),
    "vocab": ("decontaminate",),
    "chunk": ("decontaminate", "vocab"),
    "train": ("chunk", "vocab"),
    "evaluate": ("train", "vocab", "chunk", "decontaminate"),
}
"""Stage -> the stages whose artifacts it reads, as its builder takes them."""


def run_stages(recipe: Recipe, run_stage: Callable[..., Artifact], until: str = STAGES[-1]) -> dict[str, Artifact]:
    """Run the pipeline from raw text to the stage `until`, an evaluated model by default, and return the artifacts by
    stage; `run_stage(stage, *inputs, config)` returns one."""
    made: dict[str, Artifact] = {}
    for stage in STAGES[: STAGES.index(until) + 1]:
        made[stage] = run_stage(stage, *(made[name] for name in READS[stage]), getattr(recipe, stage))
    return made


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
