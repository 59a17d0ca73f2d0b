"""Label probabilities: a distribution whose maximum is the answer."""

import math
from collections.abc import Callable

import pytest
import torch

from model.errors import InputError
from model.finetune.config import FinetuneConfig, Task
from model.finetune.data import Example, Truncation
from model.finetune.models import TaskModel, build_task_model
from model.finetune.output import label_probabilities

TaskOf = Callable[..., Task]
Config = Callable[..., FinetuneConfig]
TEXTS = [Example((text,), None) for text in ("tin ore slag", "ore", "lead zinc iron coal")]


def pupil_of(network, vocabulary, task: Task, config: Config) -> tuple[TaskModel, Task]:
    task_model = build_task_model(network, config(task), {task.name: task.labels}, vocabulary, seed=3)
    task_model.modules().eval()
    return task_model, task


@pytest.mark.parametrize("which", ["bert", "t5"])
def test_labels_have_probabilities_that_sum_to_one(which: str, request, vocabulary, task_of, config: Config) -> None:
    task = task_of("classification", labels=("yes", "no", "coal"))
    task_model, _ = pupil_of(request.getfixturevalue(which), vocabulary, task, config)
    found = label_probabilities(task_model, 0, task, TEXTS)
    answers = task_model.answers(0, TEXTS, Truncation())
    for one, answer in zip(found, answers, strict=True):
        assert isinstance(one, dict)
        assert list(one) == ["yes", "no", "coal"]
        assert math.isclose(sum(one.values()), 1.0, rel_tol=1e-5)
        if which == "bert":
            assert max(one, key=one.__getitem__) == answer


@torch.no_grad()
def test_a_t5_s_are_the_likelihoods_of_whole_labels(t5, vocabulary, task_of, config: Config) -> None:
    """Labels of one and two tokens, each multiplied out token by token."""
    task = task_of("classification", labels=("yes", "no coal"))
    task_model, _ = pupil_of(t5, vocabulary, task, config)
    (found,) = label_probabilities(task_model, 0, task, TEXTS[:1])
    inputs = torch.tensor([[*vocabulary.encode("classification text: tin ore slag"), vocabulary.eos]])
    every = torch.ones_like(inputs, dtype=torch.bool)
    encoded = t5.encode(inputs, every)
    likelihood = {}
    for label in task.labels:
        written, likelihood[label] = [vocabulary.pad], 1.0
        for token in [*vocabulary.encode(label), vocabulary.eos]:
            hidden = t5.decode(torch.tensor([written]), encoded, every)
            likelihood[label] *= float(torch.softmax(t5.logits(hidden[0, -1]), -1)[token])
            written.append(token)
    total = sum(likelihood.values())
    assert found == pytest.approx({label: value / total for label, value in likelihood.items()}, rel=1e-4)


def test_words_that_are_cut_have_none(bert, vocabulary, task_of, config: Config) -> None:
    task = task_of("tagging", labels=("B-N", "O"))
    task_model = build_task_model(bert, config(task, max_length=8), {task.name: task.labels}, vocabulary, seed=3)
    task_model.modules().eval()
    example = Example(("tin", "ore", "slag", "iron", "coal", "lead", "zinc", "flux"), None)
    (found,) = label_probabilities(task_model, 0, task, [example])
    (answer,) = task_model.answers(0, [example], Truncation())
    assert isinstance(found, list)
    assert [one is None for one in found] == [False] * 6 + [True] * 2
    likeliest = [max(one, key=one.__getitem__) for one in found if one is not None]
    assert tuple(likeliest) == answer[:6]


def test_answers_that_are_no_labels_have_none(bert, vocabulary, task_of, config: Config) -> None:
    task = task_of("regression")
    task_model, _ = pupil_of(bert, vocabulary, task, config)
    with pytest.raises(InputError, match="is a regression, whose answers are no labels"):
        label_probabilities(task_model, 0, task, TEXTS)
