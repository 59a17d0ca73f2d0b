"""Labelled examples as lines of JSON, checked field by field, and those held out to choose the epoch."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import InputError
from model.finetune.config import Task

Answer = str | float | tuple[str, ...]
"""A label or text; a number; the labels of words, or all right answers of a span, first the one to learn."""


@dataclass(frozen=True)
class Example:
    """What is read, and what is to be answered (None where that is not known)."""

    texts: tuple[str, ...]
    """One for each field; of a tagging the words."""
    answer: Answer | None
    start: int | None = None
    """Of a span: the character where the first answer begins, if the file says so."""
    group: str = ""
    """Examples of a group are held out together."""


def read_examples(path: Path, task: Task) -> list[Example]:
    """The examples of a file, in their order; InputError names the first line that is wrong, and what of it."""
    if not path.is_file():
        raise InputError(f"task {task.name}: there is no file {path}; the task file names it")
    examples = [example_of(record, task, where) for where, record in _records(path)]
    if not examples:
        raise InputError(f"task {task.name}: {path} holds no examples")
    return examples


def example_of(record: dict[str, Any], task: Task, where: str, *, answered: bool = True) -> Example:
    """The example in a record; InputError names `where` it stands and the field that is wrong."""
    group = [task.group] if task.group is not None else []
    wanted = [*task.fields, *([task.answer, *group] if answered else [])]
    missing = [name for name in wanted if name not in record]
    if missing:
        found = ", ".join(record) or "nothing"
        cure = "name the fields in the task file" if answered else f"the model reads {' and '.join(task.fields)}"
        raise InputError(f"task {task.name}: {where} has no {' and no '.join(missing)}, only {found}; {cure}")
    values = [record[name] for name in task.fields]
    if task.kind == "tagging":
        texts = _strings(values[0], f"task {task.name}: {where}: {task.fields[0]} must be a list of words")
    else:
        for name, value in zip(task.fields, values, strict=True):
            if not isinstance(value, str):
                raise InputError(f"task {task.name}: {where}: {name} must be text, and is {value!r}")
        texts = tuple(values)
    if not answered:
        return Example(texts, None)
    answer = _answer(record[task.answer], texts, task, where)
    return Example(texts, answer, _start(record, answer, task, where), _group(record, texts, task, where))


def label_set(task: Task, examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels of a classification or tagging: those that the task names, or all that the examples show, sorted."""
    if task.labels:
        return task.labels
    shown = {label for example in examples for label in _labels_of(example)}
    if len(shown) < 2:
        raise InputError(f"task {task.name}: the examples show the labels {sorted(shown)}; there is nothing to learn")
    return tuple(sorted(shown))


def check_labels(task: Task, labels: Sequence[str], examples: Sequence[Example], path: Path) -> None:
    """InputError where examples have an answer that is none of the labels."""
    for example in examples:
        if unknown := set(_labels_of(example)) - set(labels):
            raise InputError(
                f"task {task.name}: an example of {path} has the label {sorted(unknown)[0]!r}, and the known ones are"
                f" {', '.join(labels)}: name all in `labels`, or correct the file. It reads {example.texts[0][:60]!r}"
            )


def _labels_of(example: Example) -> tuple[str, ...]:
    if isinstance(example.answer, tuple):
        return example.answer
    assert isinstance(example.answer, str), "labels are text"
    return (example.answer,)


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                try:
                    record = json.loads(line)
                except json.JSONDecodeError as error:
                    raise InputError(f"{where} is no JSON: {error}") from error
                if not isinstance(record, dict):
                    raise InputError(f"{where} is no object with fields, but {line.strip()[:60]}")
                yield where, record
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is damaged or no text in UTF-8: {error}") from error


def _answer(value: Any, texts: tuple[str, ...], task: Task, where: str) -> Answer:
    place = f"task {task.name}: {where}: {task.answer}"
    if task.kind == "regression":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{place} must be a number, and is {value!r}")
        return float(value)
    if task.kind == "tagging":
        tags = _strings(value, f"{place} must be a list of labels")
        if len(tags) != len(texts):
            raise InputError(f"{place} has {len(tags)} labels for {len(texts)} words")
        return tags
    if task.kind == "span":
        return _strings([value] if isinstance(value, str) else value or [], f"{place} must be text or a list of texts")
    if isinstance(value, bool | int):
        return str(value).lower()
    if not isinstance(value, str):
        raise InputError(f"{place} must be a label as text, and is {value!r}")
    return value


def _start(record: dict[str, Any], answer: Answer, task: Task, where: str) -> int | None:
    if task.start is None or answer == ():
        return None
    start = record.get(task.start)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise InputError(
            f"task {task.name}: {where}: {task.start} must be the number of the character where the first answer"
            f" begins, from 0, and is {start!r}. Without `start` in the task file the answer is looked for"
        )
    return start


def _group(record: dict[str, Any], texts: tuple[str, ...], task: Task, where: str) -> str:
    if task.group is None:
        return texts[-1] if task.kind == "span" else "\x1f".join(texts)
    group = record[task.group]
    if isinstance(group, bool) or not isinstance(group, str | int):
        raise InputError(
            f"task {task.name}: {where}: {task.group} must be text or a whole number that binds examples, and is"
            f" {group!r}. Give each line one, or leave `group` out of the task file"
        )
    return str(group)


def _strings(value: Any, problem: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InputError(f"{problem}, and is {value!r}"[:300])
    return tuple(value)
