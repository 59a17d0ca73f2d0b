"""The folder of a fine-tuned model, and the model read from it again."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from model.architecture import NetworkConfig
from model.durable import sync_directory, sync_file
from model.errors import InputError, IntegrityError
from model.finetune.config import FinetuneConfig, Task
from model.finetune.examples import Answer, Example, example_of
from model.finetune.probabilities import ByLabel, label_probabilities
from model.finetune.pupils import BERTPupil, Pupil, make_pupil
from model.finetune.truncation import Truncation
from model.finetune.vocabulary import Vocabulary
from model.reading import digest_file
from model.weights import describe_model, load_model, save_model

HEAD = "head.safetensors"
FINETUNED = "finetuned"
"""Entry of `model.json` that tells tasks, scores and what the model was made from."""


@dataclass(frozen=True)
class Answerer:
    """A fine-tuned model that answers records of its tasks."""

    pupil: Pupil
    tasks: tuple[Task, ...]

    def task(self, name: str | None) -> int:
        """The number of a task by its name, or of the only one; InputError names those that there are."""
        names = [task.name for task in self.tasks]
        if name is None and len(names) == 1:
            return 0
        if name not in names:
            raise InputError(
                f"the model knows the tasks {', '.join(names)}, and {name or 'none of them'} was asked for"
            )
        return names.index(name)

    def answers(self, number: int, records: list[dict[str, Any]]) -> list[Answer]:
        """An answer to each record, which has the fields that the task was learnt from; InputError where one lacks."""
        return self.pupil.answers(number, self._examples(number, records), Truncation())

    def probabilities(self, number: int, records: list[dict[str, Any]]) -> list[ByLabel | list[ByLabel | None]]:
        """How sure the model is of each label, as `label_probabilities` tells it."""
        return label_probabilities(self.pupil, number, self.tasks[number], self._examples(number, records))

    def _examples(self, number: int, records: list[dict[str, Any]]) -> list[Example]:
        task = self.tasks[number]
        return [example_of(one, task, f"record {place}", answered=False) for place, one in enumerate(records, 1)]


def write_result(
    out: Path,
    config: NetworkConfig,
    weights: Mapping[str, Tensor],
    description: dict[str, Any],
    beside: Callable[[Path], None],
) -> None:
    """Publish a fine-tuned model: everything is written into a folder beside `out`, which then takes its name at once.

    `weights` are those of `Pupil.modules`, `beside` writes what else belongs into the folder.
    """
    parts = {
        name: {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}
        for name in ("network", "head")
    }
    folder = out.with_name(f".{out.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if parts["head"]:
        save_file(parts["head"], folder / HEAD)
        sync_file(folder / HEAD)
        description = {**description, "head_digest": digest_file(folder / HEAD)}
    beside(folder)
    save_model(folder, config, parts["network"], description)
    sync_directory(folder)
    os.rename(folder, out)
    sync_directory(out.parent)


def read_result(folder: Path, vocabulary: Vocabulary) -> Answerer:
    """The fine-tuned model in a folder.

    Raises InputError where the folder holds no model, or one that was not fine-tuned, and IntegrityError where bytes
    are not those that were saved.
    """
    description = describe_model(folder)
    if FINETUNED not in description:
        raise InputError(
            f"the model in {folder} was not fine-tuned, so it has no task to answer; `bessemer finetune` teaches it one"
        )
    told = description[FINETUNED]
    tasks = tuple(_task(one) for one in told["tasks"])
    config = FinetuneConfig(tasks=tasks, dropout=0.0, **told["lengths"])
    network = load_model(folder)
    pupil = make_pupil(network, config, {task.name: task.labels for task in tasks}, vocabulary, seed=0)
    if isinstance(pupil, BERTPupil):
        if digest_file(folder / HEAD) != description["head_digest"]:
            raise IntegrityError(f"{folder / HEAD} is not what was saved: its bytes changed. Fine-tune again")
        pupil.head.load_state_dict(load_file(folder / HEAD))
    pupil.state = told["state"]
    pupil.modules().eval()
    return Answerer(pupil, tasks)


def _task(told: dict[str, Any]) -> Task:
    return Task.model_validate({**told, "train": Path("."), "labels": tuple(told["labels"])})


def description_text(description: dict[str, Any]) -> str:
    """JSON that is the same for the same content."""
    return json.dumps(description, indent=1, sort_keys=True) + "\n"
