"""The stage finetune: a trained model and the examples of a task file in, a fine-tuned model out.

Finished seeds are kept in the unfinished build, so that a killed one goes on with the next.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from model.config.machine import CUDA, GPU, INSTRUCTION_SET
from model.digests import digest_bytes
from model.file_content import require_unchanged
from model.finetune.config import SPLITS, FinetuneConfig, read_task_file
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.identity import PYTHON, UNICODE, canonical_json
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import FinetuneResult
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.models.load import (
    ModelSource,
    chat_template,
    describe_source,
    load_source,
    write_vocabulary,
)

UNIT = "finetuned"


class FinetuneStageConfig(StrictConfig, FinetuneConfig):
    """All settings of a task file."""


def seed_files(scratch: Path) -> Iterator[tuple[Path, ...]]:
    """Yield the files of each finished seed, which another machine needs to go on with the next."""
    for record in sorted((scratch / UNIT).glob("seed-*.json")):
        yield record.with_suffix(".safetensors"), record


FINETUNE = Stage(
    "finetune",
    roots=("tasks.models.finetune:build_finetune",),
    libraries=("jinja2", "numpy", "safetensors", "sentencepiece", "tokenizers", "torch", INSTRUCTION_SET, PYTHON,
               UNICODE),
    resume_files=seed_files,
)  # fmt: skip


def build_finetune(
    context: RunContext, source: ModelSource, config: FinetuneStageConfig, on_log: Callable[[str], None]
) -> Artifact:
    """Build the fine-tuned model of `source`; `on_log` receives a sentence for each epoch."""
    from model.finetune.trainer import finetune
    from model.inference.device import trained_with

    config, external = _resolve(source, config)

    def run(workspace: Workspace) -> StageReport:
        from model.engines.runtime import flush_denormals

        finished = workspace.finished(UNIT)
        if finished is not None:
            return finished
        examples = [path for task in config.tasks for name in SPLITS if (path := getattr(task, name)) is not None]
        with require_unchanged([*source.files, *examples]), flush_denormals(), workspace.unit(UNIT) as unit:
            trained = load_source(source)
            found = finetune(
                trained.network,
                source.digest(),
                config,
                trained.tokenizer,
                workspace.scratch(UNIT),
                unit.folder,
                log=on_log,
                template=chat_template(trained),
                trained_on=trained_with(trained.description),
                identity=_digest(source, config, external),
            )
            write_vocabulary(unit.folder, trained.tokenizer)
            for path in sorted(unit.folder.iterdir()):
                unit.add_file(path.name)
            unit.report.facts = FinetuneResult(found).facts()
        return unit.report

    stage = FINETUNE if config.device == "cpu" else replace(FINETUNE, libraries=(*FINETUNE.libraries, GPU, CUDA))
    return build_artifact(context, stage, config, source.parents, run, external)


def _resolve(source: ModelSource, config: FinetuneStageConfig) -> tuple[FinetuneStageConfig, dict[str, str]]:
    """Return the settings with their device, and the digests of all that is no artifact."""
    from model.finetune.trainer import split_digest
    from model.inference.device import choose_device

    config = config.model_copy(update={"device": choose_device(config.device, describe_source(source))})
    files = {f"{task.name}/{name}": split_digest(task, name) for task in config.tasks for name in SPLITS}
    return config, {**source.external(), **{name: digest for name, digest in files.items() if digest is not None}}


def result_identity(source: ModelSource, config: FinetuneStageConfig) -> str:
    """Return the entry `identity` of the result's description: model, examples and settings, whatever the code."""
    return _digest(source, *_resolve(source, config))


def _digest(source: ModelSource, config: FinetuneStageConfig, external: dict[str, str]) -> str:
    whole = [config.identity_params(), external, source.digest(), source.tokenizer().digest]
    return digest_bytes(canonical_json(whole).encode())


def read_stage_config(path: Path) -> FinetuneStageConfig:
    """Return the settings in a task file; the errors are those of `read_task_file`."""
    return FinetuneStageConfig.model_validate(read_task_file(path).model_dump())
