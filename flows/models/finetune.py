"""Fine-tune a trained model on a task, and predict with the fine-tuned model."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.models.load import chat_template, open_trained, write_vocabulary
from model.errors import InputError
from model.model_files import is_published

FOLDER = "finetuned"
"""Folder under the root for results, unless another is named."""


def finetune_model(root: Path, model: str, task_file: Path, out: Path | None) -> tuple[Path, dict[str, Any]]:
    """Fine-tune the model of a run or folder on the task of a task file, with progress on stderr.

    Returns the folder of the result, by default ROOT/finetuned/NAME of the task file, and its description.
    """
    from model.finetune.config import read_task_file
    from model.finetune.trainer import finetune
    from model.huggingface.io import base_digest
    from model.inference.device import trained_with

    config = read_task_file(task_file)
    trained = open_trained(root, model)
    folder = out or root / FOLDER / task_file.stem
    folder.parent.mkdir(parents=True, exist_ok=True)
    found = finetune(
        trained.network,
        base_digest(trained.folder),
        config,
        trained.tokenizer,
        folder,
        log=lambda line: print(line, file=sys.stderr, flush=True),
        write_extra=lambda staged: write_vocabulary(staged, trained.tokenizer),
        template=chat_template(trained),
        trained_on=trained_with(trained.description),
    )
    return folder, found


def predict_records(
    root: Path, model: str, task: str | None, records: list[dict[str, Any]], *, probabilities: bool = False
) -> list[dict[str, Any]]:
    """Return the records with the model's predictions in the task's answer field.

    With `probabilities`, NAME_probabilities of the field has the probability of each label.
    """
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
    found = [
        {**record, name: answer} for record, answer in zip(records, answerer.answers(number, records), strict=True)
    ]
    if label_probabilities is not None:
        for record, of_record in zip(found, label_probabilities, strict=True):
            record[f"{name}_probabilities"] = of_record
    return found


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a JSON Lines file; raise InputError with the line that is not an object."""
    if not path.is_file():
        raise InputError(f"there is no file {path} of records to predict")
    return list(_records(path))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}, line {number} is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise InputError(f"{path}, line {number} is not an object with fields")
            yield record


def parse_fields(words: list[str]) -> dict[str, Any]:
    """Parse a record from `NAME=TEXT` arguments; a text that is a JSON list becomes a list, for tagging tasks."""
    record: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name:
            raise InputError(f"--field {word}: write NAME=TEXT, such as --field sentence='Tin melts early.'")
        record[name] = json.loads(text) if _is_list(text) else text
    return record


def _is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except json.JSONDecodeError:
        return False
