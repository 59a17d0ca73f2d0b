"""A trained model taught a task, and its answers: what fine-tuning needs of runs and vocabularies."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.models.load import open_trained, write_vocabulary
from model.errors import InputError
from model.model_files import is_published

FOLDER = "finetuned"
"""Folder under the root where results stand unless another is named."""


def teach(root: Path, model: str, task_file: Path, out: Path | None) -> tuple[Path, dict[str, Any]]:
    """Fine-tune a run's or folder's model as a task file says, telling the progress on stderr.

    Returns the folder of the result, by default ROOT/finetuned/NAME of the task file, and what it says of itself.
    """
    from model.finetune.config import read_task_file
    from model.finetune.trainer import finetune
    from model.huggingface.io import base_digest

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
    )
    return folder, found


def answered(
    root: Path, model: str, task: str | None, records: list[dict[str, Any]], *, probabilities: bool = False
) -> list[dict[str, Any]]:
    """The records with the fine-tuned model's answer under the task's own name for it, in the place of one that was
    there; behind it, as NAME_probabilities, how sure it is of each label where that is asked for."""
    from model.finetune.output import read_result

    if is_published(Path(model)):
        raise InputError(
            f"{model} is a folder of transformers, in which no task and no head stands. Name the folder that `bessemer"
            f" finetune` wrote; `bessemer model finetune` can start from this one"
        )
    trained = open_trained(root, model)
    answerer = read_result(trained.folder, trained.tokenizer)
    number = answerer.task(task)
    name = answerer.tasks[number].answer
    sure = answerer.probabilities(number, records) if probabilities else None
    answers = answerer.answers(number, records)
    return [
        {**record, name: answer, **({f"{name}_probabilities": sure[place]} if sure is not None else {})}
        for place, (record, answer) in enumerate(zip(records, answers, strict=True))
    ]


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines; InputError names a line that is none."""
    if not path.is_file():
        raise InputError(f"there is no file {path} of records to answer")
    return list(_records(path))


def fields_given(words: list[str]) -> dict[str, Any]:
    """The record that `name=text` words make; a list where the text is one in JSON, as a tagging wants."""
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


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}, line {number} is no JSON: {error}") from error
            if not isinstance(record, dict):
                raise InputError(f"{path}, line {number} is no object with fields")
            yield record
