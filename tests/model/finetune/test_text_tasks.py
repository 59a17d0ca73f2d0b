"""Tasks as text: what is read and written, and numbers as strings."""

from pathlib import Path

import pytest

from model.errors import InputError
from model.finetune.config import Task
from model.finetune.examples import Example
from model.finetune.text_tasks import UNREADABLE, TextTask, nearest_string, number_strings


def task(kind: str, *fields: str, **more: object) -> Task:
    values = {"name": "stsb", "kind": kind, "train": Path("x"), "fields": fields, "answer": "a", **more}
    return Task.model_validate(values)


SIMILARITY = task("regression", "sentence1", "sentence2")


def test_a_task_reads_its_name_and_its_fields(vocabulary) -> None:
    text = TextTask(SIMILARITY, (), vocabulary).read(Example(("Tin melts.", "Tin flows."), 3.0))
    assert text == "stsb sentence1: Tin melts. sentence2: Tin flows."


def test_there_are_21_numbers_from_1_to_5() -> None:
    strings = number_strings(SIMILARITY)
    assert (len(strings), strings[:3], strings[-1]) == (21, ("1.0", "1.2", "1.4"), "5.0")
    halves = task("regression", "text", smallest=0, largest=1, step=0.25)
    assert number_strings(halves) == ("0.00", "0.25", "0.50", "0.75", "1.00")


@pytest.mark.parametrize(("number", "text"), [(1.0, "1.0"), (1.09, "1.0"), (1.11, "1.2"), (3.75, "3.8"), (5.0, "5.0")])
def test_a_number_is_written_as_the_nearest(number: float, text: str) -> None:
    assert nearest_string(number, SIMILARITY) == text


@pytest.mark.parametrize("number", [0.99, 5.01, float("nan")])
def test_a_number_outside_is_refused(number: float) -> None:
    with pytest.raises(InputError, match="not between smallest = 1 and largest = 5"):
        nearest_string(number, SIMILARITY)


def test_what_is_written_is_read_back(vocabulary) -> None:
    number = TextTask(SIMILARITY, (), vocabulary)
    assert number.answer(vocabulary.encode("3.8")) == 3.8
    assert number.answer(vocabulary.encode("tin")) == UNREADABLE
    label = TextTask(task("classification", "text"), ("yes", "no"), vocabulary)
    assert label.answer(vocabulary.encode("no")) == "no"
    span = TextTask(task("span", "question", "text"), (), vocabulary)
    assert span.written(Example(("what", "tin ore"), ("ore", "tin ore"))) == "ore"
    assert span.written(Example(("what", "tin ore"), ())) == ""


def test_only_labels_may_be_written_unless_free(vocabulary) -> None:
    labels = ("yes", "no")
    rule = TextTask(task("classification", "text"), labels, vocabulary).rule()
    assert rule is not None
    assert sorted(rule(())) == sorted(vocabulary.encode("yes no"))
    assert TextTask(task("classification", "text", decoding="free"), labels, vocabulary).rule() is None
    assert TextTask(task("text", "text"), (), vocabulary).rule() is None


def test_labels_that_the_vocabulary_cannot_tell_apart_are_refused(vocabulary) -> None:
    with pytest.raises(InputError, match="same tokens"):
        TextTask(task("classification", "text"), ("positive", "negative"), vocabulary)
