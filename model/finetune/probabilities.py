"""How sure a fine-tuned model is of each label: of a text from its head or its decoder, of each word from its head.

Shapes: B examples, C labels, T tokens.
"""

from collections.abc import Sequence

import torch

from model.errors import InputError
from model.finetune.config import Task
from model.finetune.examples import Example
from model.finetune.heads import word_places
from model.finetune.pupils import Pupil, T5Pupil
from model.finetune.truncation import Truncation

ByLabel = dict[str, float]
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
