"""Tasks as text: inputs, targets, and numbers as strings."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model.errors import InputError
from model.finetune.config import Task
from model.finetune.data import Example
from model.finetune.models import UNREADABLE, TextTask, nearest_string, number_strings


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
    shifted = task("regression", "text", smallest=0.25, largest=1.75, step=0.5)
    assert number_strings(shifted) == ("0.25", "0.75", "1.25", "1.75")
    below = task("regression", "text", smallest=-0.3, largest=0.3, step=0.1)
    assert number_strings(below) == ("-0.3", "-0.2", "-0.1", "0.0", "0.1", "0.2", "0.3")
    whole = task("regression", "text", smallest=10, largest=30, step=10)
    assert number_strings(whole) == ("10.0", "20.0", "30.0")


def test_a_greatest_number_that_no_step_reaches_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"largest 1 is not a whole number of steps 0\.35 .* is, is 1\.05"):
        task("regression", "text", smallest=0, largest=1, step=0.35)
    with pytest.raises(ValidationError, match="the nearest that is, is 11"):
        task("regression", "text", smallest=1, largest=5, step=10)


@pytest.mark.parametrize("step", [1e-8, 1e-300])
def test_more_numbers_than_can_be_written_are_refused(step: float) -> None:
    with pytest.raises(ValidationError, match=r"makes more than 10,000 numbers from smallest 0 to largest 1e\+10"):
        task("regression", "text", smallest=0, largest=1e10, step=step)


@given(st.integers(-500, 500), st.integers(1, 60), st.sampled_from([0.05, 0.1, 0.25, 0.3, 1.0, 7.0]))
def test_numbers_as_text_are_the_numbers_and_the_nearest_of_each_is_itself(least: int, steps: int, step: float) -> None:
    smallest = least / 8
    largest = float(Decimal(str(smallest)) + steps * Decimal(str(step)))
    numbers = task("regression", "text", smallest=smallest, largest=largest, step=step)
    strings = number_strings(numbers)
    assert [float(text) for text in strings] == pytest.approx([smallest + n * step for n in range(steps + 1)])
    assert (float(strings[0]), float(strings[-1])) == (smallest, largest)
    assert all(nearest_string(float(text), numbers) == text for text in strings)


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
    rule = TextTask(task("classification", "text"), labels, vocabulary).rule
    assert rule is not None
    assert sorted(rule(())) == sorted(vocabulary.encode("yes no"))
    assert TextTask(task("classification", "text", decoding="free"), labels, vocabulary).rule is None
    assert TextTask(task("text", "text"), (), vocabulary).rule is None


def test_labels_that_the_vocabulary_cannot_distinguish_are_refused(vocabulary) -> None:
    with pytest.raises(InputError, match="same tokens"):
        TextTask(task("classification", "text"), ("positive", "negative"), vocabulary)
