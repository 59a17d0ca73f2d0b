"""The folder of a fine-tuned model, and the model read from it again.

How sure a fine-tuned model is of each label: of a text from its head or its decoder, of each word from its head.

Shapes: B examples, C labels, T tokens.

What fine-tuning came to, in lines.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint.weights import describe_model, load_model, save_model
from model.config.network import NetworkConfig
from model.digests import digest_file
from model.errors import InputError, IntegrityError
from model.files import sync_directory, sync_file
from model.finetune.config import FinetuneConfig, Task
from model.finetune.data import Answer, Example, Truncation, example_of
from model.finetune.heads import word_places
from model.finetune.metrics import main_measure
from model.finetune.models import BERTPupil, Pupil, T5Pupil, make_pupil
from model.finetune.tokenizer import Vocabulary

HEAD = "head.safetensors"

FINETUNED = "finetuned"
"""Entry of `model.json` that tells tasks, scores and what the model was made from."""

ByLabel = dict[str, float]


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
            f"the model in {folder} was not fine-tuned, so it has no task to answer; `bessemer model finetune` teaches"
            " it one"
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


OF_LABELS = ("classification", "tagging")


def label_probabilities(
    pupil: Pupil, number: int, task: Task, examples: Sequence[Example]
) -> list[ByLabel | list[ByLabel | None]]:
    """Probability of each label of the task `number`, for each example or, of a tagging, for each word; None for words
    that were cut off.

    A BERT's are the softmax of its head. A T5's are the likelihoods of each label's tokens with the end behind them,
    brought to a sum of one over the labels; what it writes token by token is not always the likeliest whole. Raises
    InputError for a task without labels.
    """
    if task.kind not in OF_LABELS:
        raise InputError(
            f"task {task.name} is a {task.kind}, whose answers are no labels, so there are no probabilities to tell of"
            f" them; leave --probabilities out"
        )
    if isinstance(pupil, T5Pupil):
        return [_named(task, torch.softmax(nats_C, -1)) for nats_C in pupil.likelihoods(number, examples)]
    rows, outputs = pupil.outputs(examples, Truncation())
    if task.kind == "classification":
        return [_named(task, torch.softmax(output_C, -1)) for output_C in outputs]
    found: list[ByLabel | list[ByLabel | None]] = []
    for row, output_TC, example in zip(rows, outputs, examples, strict=True):
        said: list[ByLabel | None] = [_named(task, torch.softmax(output_TC[place], -1)) for place in word_places(row)]
        found.append(said + [None] * (len(example.texts) - len(said)))
    return found


def _named(task: Task, probabilities_C: torch.Tensor) -> ByLabel:
    return dict(zip(task.labels, probabilities_C.tolist(), strict=True))


def told_result(found: dict[str, Any]) -> list[str]:
    """A line for each task: its measures on test examples, or held-out ones where there are none, beside those of a
    guess that reads nothing, how far apart the seeds are, and whether one label alone is ever answered."""
    scores = found["scores"]
    lines = []
    for task in found["tasks"]:
        name = task["name"]
        split = "test" if name in scores["test"] else "development"
        main = main_measure(task["kind"], scores[split][name])
        guess = scores["guess"][split][name]
        measures = ", ".join(
            f"{measure} {value:.3f} (guess {guess[measure]:.3f})" if measure in guess else f"{measure} {value:.3f}"
            for measure, value in scores[split][name].items()
        )
        values = [one[split][name][main] for one in scores["seeds"]]
        spread = f"; {main} of {len(values)} seeds {min(values):.3f} to {max(values):.3f}" if len(values) > 1 else ""
        said = scores.get("said", {}).get(name, {})
        one_label = _one_label_told(*said) if len(said) == 1 and scores[split][name][main] < 1 else ""
        what = "test" if split == "test" else "held-out examples, which chose the epoch"
        lines.append(f"{name}, {what}: {measures}{spread}{one_label}")
    return [*lines, f"seed {scores['seed']} after epoch {scores['epoch']} is kept"]


def _one_label_told(label: str) -> str:
    return (
        f". Every one of them is answered {label!r}: the texts made no difference. More epochs, a higher learning_rate,"
        f" more examples of other labels or a better trained model may help"
    )
