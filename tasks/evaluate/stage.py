"""The evaluate stage: what decides its identity, and how it is built."""

from dataclasses import replace

from model.config.machine import CUDA, GPU, INSTRUCTION_SET
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.identity import PYTHON, UNICODE
from tasks.artifacts.references import resolve_artifacts
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.evaluate.config import EvaluateConfig

EVALUATE = Stage(
    "evaluate",
    roots=("tasks.evaluate.stage:build_evaluate",),
    libraries=(
        "llvmlite",
        "numba",
        "numpy",
        "pyarrow",
        "regex",
        "sacrebleu",
        "safetensors",
        "sentencepiece",
        "tokenizers",
        "torch",
        INSTRUCTION_SET,
        PYTHON,
        UNICODE,
    ),
)


def build_evaluate(
    context: RunContext,
    model: Artifact,
    vocab: Artifact,
    sequences: Artifact,
    decontaminated: Artifact,
    config: EvaluateConfig,
) -> Artifact:
    """Build SCORES and samples of `model` on the benchmark items of `decontaminated`, and on the held-out text of it
    and of the earlier runs that the settings name."""
    earlier = resolve_artifacts(config.earlier, context.root, "decontaminate", "evaluate.earlier")

    def run(workspace: Workspace) -> StageReport:
        from tasks.evaluate.pipeline import evaluate_model

        return evaluate_model(model, vocab, sequences, (*earlier, decontaminated), config, workspace)

    parents = {"model": model, "vocab": vocab, "sequences": sequences, "decontaminated": decontaminated}
    parents |= {f"earlier-{number}": artifact for number, artifact in enumerate(earlier)}
    return build_artifact(context, evaluate_stage(config), config, parents, run)


def evaluate_stage(config: EvaluateConfig) -> Stage:
    """Return EVALUATE with the parts of the machine that decide the result under the settings."""
    if config.device == "cpu":
        return EVALUATE
    return replace(EVALUATE, libraries=(*EVALUATE.libraries, GPU, CUDA))
