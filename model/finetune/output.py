"""Write and read the folder of a fine-tuned model, answer with it, and format its scores.

Shapes: C labels, T tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint.weights import describe_model, load_model, save_model
from model.config.network import NetworkConfig
from model.digests import digest_file
from model.errors import InputError, IntegrityError
from model.finetune.chat import GPTTaskModel
from model.finetune.chat_template import ChatTemplate
from model.finetune.config import FinetuneConfig, Task
from model.finetune.data import Answer, Example, Truncation, example_of
from model.finetune.description import FINETUNED, FinetuneDescription, TaskDescription
from model.finetune.heads import word_indices
from model.finetune.metrics import main_metric
from model.finetune.models import BERTTaskModel, T5TaskModel, TaskModel, build_task_model
from model.finetune.tokenizer import Vocabulary

HEAD = "head.safetensors"

ByLabel = dict[str, float]


@dataclass(frozen=True)
class FinetunedModel:
    """A fine-tuned model that answers records of its tasks."""

    task_model: TaskModel
    tasks: tuple[Task, ...]

    def task(self, name: str | None) -> int:
        """Return the index of a task by its name, or of the only one; InputError lists the tasks."""
        names = [task.name for task in self.tasks]
        if name is None and len(names) == 1:
            return 0
        if name not in names:
            raise InputError(
                f"the model knows the tasks {', '.join(names)}, and {name or 'none of them'} was named. Choose one"
            )
        return names.index(name)

    def answers(self, number: int, records: list[dict[str, Any]], truncation: Truncation | None = None) -> list[Answer]:
        """Return an answer to each record; InputError where a record lacks a field of the task.

        What is not read of them is counted in `truncation`.
        """
        return self.task_model.answers(number, self._examples(number, records), truncation or Truncation())

    def probabilities(self, number: int, records: list[dict[str, Any]]) -> list[ByLabel | list[ByLabel | None]]:
        """Return the probability of each label for each record (`label_probabilities`)."""
        return label_probabilities(self.task_model, number, self.tasks[number], self._examples(number, records))

    def _examples(self, number: int, records: list[dict[str, Any]]) -> list[Example]:
        task = self.tasks[number]
        return [example_of(one, task, f"record {place}", answered=False) for place, one in enumerate(records, 1)]


def write_result(
    folder: Path, config: NetworkConfig, weights: Mapping[str, Tensor], description: dict[str, Any]
) -> None:
    """Write the files of a fine-tuned model; `weights` are those of `TaskModel.modules`."""
    parts = {
        name: {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}
        for name in ("network", "head")
    }
    if parts["head"]:
        save_file(parts["head"], folder / HEAD)
        description = {**description, "head_digest": digest_file(folder / HEAD)}
    save_model(folder, config, parts["network"], description)


def read_result(folder: Path, vocabulary: Vocabulary) -> FinetunedModel:
    """Load the fine-tuned model in a folder.

    Raises InputError where the folder holds no model, or one that was not fine-tuned, and IntegrityError where its
    bytes are not those that were saved.
    """
    description = describe_model(folder)
    if FINETUNED not in description:
        raise InputError(
            f"the model in {folder} was not fine-tuned, so it has no task to answer; run `bessemer model finetune`"
        )
    finetuned: FinetuneDescription = description[FINETUNED]
    tasks = tuple(_task(one) for one in finetuned["tasks"])
    config = FinetuneConfig(tasks=tasks, dropout=0.0, **finetuned["lengths"])
    network = load_model(folder)
    template = ChatTemplate.of_description(finetuned["chat"]) if "chat" in finetuned else None
    labels = {task.name: task.labels for task in tasks}
    task_model = build_task_model(network, config, labels, vocabulary, seed=0, template=template)
    if isinstance(task_model, BERTTaskModel):
        if digest_file(folder / HEAD) != description["head_digest"]:
            raise IntegrityError(f"{folder / HEAD} is damaged: its bytes changed after it was saved. Fine-tune again")
        task_model.head.load_state_dict(load_file(folder / HEAD))
    task_model.state |= finetuned["state"]
    task_model.modules().eval()
    return FinetunedModel(task_model, tasks)


def _task(description: TaskDescription) -> Task:
    return Task.model_validate({**description, "train": Path("."), "labels": tuple(description["labels"])})


OF_LABELS = ("classification", "tagging")


def label_probabilities(
    task_model: TaskModel, number: int, task: Task, examples: Sequence[Example]
) -> list[ByLabel | list[ByLabel | None]]:
    """Return the probability of each label of the task `number`, for each example or, of a tagging, for each word.

    Words that were cut off have None. A BERT's probabilities are the softmax of its head. A T5's are the likelihoods of
    each label's tokens with the end of text, normalised over the labels; greedy decoding does not always write the
    likeliest one. Raises InputError for a task without labels.
    """
    if task.kind not in OF_LABELS:
        raise InputError(
            f"task {task.name} is a {task.kind}, whose answers are no labels, so they have no probabilities; leave"
            f" --probabilities out"
        )
    assert not isinstance(task_model, GPTTaskModel), "a chat has no labels"
    if isinstance(task_model, T5TaskModel):
        return [_by_label(task, torch.softmax(nats_C, -1)) for nats_C in task_model.likelihoods(number, examples)]
    rows, outputs = task_model.outputs(examples, Truncation())
    if task.kind == "classification":
        return [_by_label(task, torch.softmax(output_C, -1)) for output_C in outputs]
    found: list[ByLabel | list[ByLabel | None]] = []
    for row, output_TC, example in zip(rows, outputs, examples, strict=True):
        words: list[ByLabel | None] = [_by_label(task, torch.softmax(output_TC[at], -1)) for at in word_indices(row)]
        found.append(words + [None] * (len(example.texts) - len(words)))
    return found


def _by_label(task: Task, probabilities_C: torch.Tensor) -> ByLabel:
    return dict(zip(task.labels, probabilities_C.tolist(), strict=True))


def format_result(found: FinetuneDescription) -> list[str]:
    """Return a line for each task, and one that names the seed and epoch that are kept.

    A line has the metrics on test examples, or held-out ones where there are none, those of the baseline, the range
    over seeds, and a warning where every answer is the same label.
    """
    scores = found["scores"]
    lines: list[str] = []
    for task in found["tasks"]:
        name = task["name"]
        split: Literal["test", "development"] = "test" if name in scores["test"] else "development"
        mine, guess = scores[split][name], scores["guess"][split][name]
        main = main_metric(task["kind"], mine)
        measures = ", ".join(
            f"{measure} {value:.3f} (guess {guess[measure]:.3f})" if measure in guess else f"{measure} {value:.3f}"
            for measure, value in mine.items()
        )
        values = [one[split][name][main] for one in scores["seeds"]]
        spread = f"; {main} of {len(values)} seeds {min(values):.3f} to {max(values):.3f}" if len(values) > 1 else ""
        counts = scores["said"].get(name, {})
        one_label = _one_label_warning(*counts) if len(counts) == 1 and mine[main] < 1 else ""
        what = "test" if split == "test" else "held-out examples, which chose the epoch"
        lines.append(f"{name}, {what}: {measures}{spread}{one_label}")
    return [*lines, f"seed {scores['seed']} after epoch {scores['epoch']} is kept"]


def _one_label_warning(label: str) -> str:
    return (
        f". Every answer is {label!r}, whatever the text. More epochs, a higher learning_rate, more examples of other"
        f" labels or a better trained model may help"
    )
