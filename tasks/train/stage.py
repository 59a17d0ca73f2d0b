"""The train stage: what decides its identity, and how it is built."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from model.config.machine import deciding_parts
from model.distributed.messages import Message
from model.engines import check_engine
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.train.base_model import base_model_digest
from tasks.train.config import TrainStageConfig
from tasks.train.launcher import TERMINAL_EVENTS, MessageFormatter
from tasks.train.limits import RollbackLimits


def _kept_files(scratch: Path) -> Iterator[tuple[Path, ...]]:
    # PyArrow and the supervisor of ranks take longer to import than a run without anything to build.
    from tasks.train.run import kept_files

    return kept_files(scratch)


TRAIN = Stage(
    "train",
    roots=("tasks.train.stage:build_train", "model.train.rank:main"),
    libraries=("llvmlite", "numba", "numpy", "pyarrow", "safetensors", "sentencepiece", "torch"),
    resume_files=_kept_files,
)
LOG_FILE = "train.log"


def train_stage(config: TrainStageConfig) -> Stage:
    """Return TRAIN with the libraries and parts of the machine that decide the result under the settings; raise
    RecipeError where an engine or compiler that they need is missing."""
    check_engine(config)
    more = [*deciding_parts(config)]
    if config.engine == "deepspeed":
        more.append("deepspeed")
    if config.compile and config.device == "cuda":
        more.append("triton")
    return replace(TRAIN, libraries=(*TRAIN.libraries, *more), given=config.given)


def build_train(
    context: RunContext,
    sequences: Artifact,
    vocab: Artifact,
    config: TrainStageConfig,
    on_log: Callable[[Message], None],
) -> Artifact:
    """Build MODEL from `sequences` (a chunk artifact) in their ORDER; `on_log` receives each message of the trainer.

    A base model is a parent by its content. The trainer's own log is appended to `runs/RUN_ID/train.log`.
    """

    def run(workspace: Workspace) -> StageReport:
        from tasks.train.run import train_model

        def listen(message: Message) -> None:
            if message["kind"] == "event" and message["event"] in TERMINAL_EVENTS:
                for sentence in MessageFormatter().format(message):
                    context.listener.note("train", sentence)
            on_log(message)

        log_path = context.root / "runs" / context.run_id / LOG_FILE
        base_digest = external.get("base_model")
        return train_model(
            sequences,
            vocab,
            config,
            workspace,
            on_log=listen,
            log_path=log_path,
            base_digest=base_digest,
            replay=None if context.replay_of is None else Artifact.open(context.replay_of),
        )

    external = base_model_digest(context.root, config.base_model)
    parents = {"sequences": sequences, "vocab": vocab}
    limits = RollbackLimits(config.guard.most_rollbacks)
    return build_artifact(context, train_stage(config), config, parents, run, external, limits)
