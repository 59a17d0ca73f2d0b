"""Fine-tune a trained model on a task, and predict with the fine-tuned model."""

import json
from pathlib import Path
from typing import Any

from flows.models.load import copy_files, find_source, holds, new_folder, open_trained
from model.checkpoint.run_folder import DESCRIPTION
from model.errors import InputError
from model.finetune.description import FINETUNED
from model.model_files import is_published, read_json
from tasks.artifacts.artifact import Artifact
from tasks.models.finetune import FinetuneStageConfig, read_stage_config, result_identity
from tasks.models.load import ModelSource

FOLDER = "finetuned"
"""Folder under the root for results, unless another is named."""


def prepare_finetune(root: Path, model: str, task_file: Path) -> tuple[ModelSource, FinetuneStageConfig]:
    """Return the model of a run or folder, and the settings of a task file.

    Raises InputError for examples that the stage would refuse, before a run begins and a network is loaded.
    """
    from model.finetune.trainer import read_splits, task_labels

    config, source = read_stage_config(task_file), find_source(root, model)
    task_labels(config, read_splits(config))
    return source, config


def check_result_folder(folder: Path, source: ModelSource, config: FinetuneStageConfig) -> None:
    """Raise InputError where the folder of the result holds anything but this result."""
    if folder.exists():
        found = read_json(folder / DESCRIPTION) if (folder / DESCRIPTION).is_file() else {}
        if found.get(FINETUNED, {}).get("identity") != result_identity(source, config):
            raise _other_result(folder)


def write_finetuned(artifact: Artifact, folder: Path) -> bool:
    """Put the files of a fine-tuned model into a new folder, at once; return False where it has them already.

    Raises InputError where the folder holds anything else.
    """
    files = {record.name: record.digest for record in artifact.records}
    if folder.exists():
        if not holds(folder, files):
            raise _other_result(folder)
        return False
    with new_folder(folder) as staged:
        copy_files(artifact, staged)
    return True


def _other_result(folder: Path) -> InputError:
    return InputError(
        f"{folder} exists and is not the result of this model and this task file. Give another folder with --out, or"
        f" remove it"
    )


def predict_records(
    root: Path, model: str, task: str | None, records: list[dict[str, Any]], *, probabilities: bool
) -> tuple[list[dict[str, Any]], str]:
    """Return the records with the model's predictions in the task's answer field, and a sentence about what was cut off
    before the model read them, empty where it read all.

    With `probabilities`, NAME_probabilities of the field has the probability of each label.
    """
    from model.finetune.data import Truncation
    from model.finetune.output import read_result

    if is_published(Path(model)):
        raise InputError(
            f"{model} is a folder of transformers, without a task and a task head. Name the folder that `bessemer model"
            f" finetune` wrote; `bessemer model finetune` can start from this one"
        )
    trained = open_trained(root, model)
    answerer = read_result(trained.folder, trained.tokenizer)
    number = answerer.task(task)
    name = answerer.tasks[number].answer
    label_probabilities = answerer.probabilities(number, records) if probabilities else None
    truncation = Truncation()
    answers = answerer.answers(number, records, truncation)
    found = [{**record, name: answer} for record, answer in zip(records, answers, strict=True)]
    if label_probabilities is not None:
        for record, of_record in zip(found, label_probabilities, strict=True):
            record[f"{name}_probabilities"] = of_record
    cut = f"records are longer than the model reads: {truncation.describe()}" if truncation.cut_examples else ""
    return found, cut


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a JSON Lines file; raise InputError with the line that is not an object."""
    from model.finetune.data import read_objects

    if not path.is_file():
        raise InputError(f"there is no file {path} of records to predict")
    return [record for _, record in read_objects(path)]


def parse_fields(words: list[str]) -> dict[str, Any]:
    """Parse a record from `NAME=TEXT` arguments; a text that is a JSON list becomes a list, for tagging tasks."""
    record: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name:
            raise InputError(f"--field {word}: write NAME=TEXT, such as --field sentence='Tin melts early.'")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        record[name] = value if isinstance(value, list) else text
    return record
