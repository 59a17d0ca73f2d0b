"""Metrics on answers that can be scored by hand."""

from pathlib import Path

import numpy as np
import pytest

from model.finetune.config import Task
from model.finetune.data import Example
from model.finetune.metrics import baseline_answers, classification, main_metric, regression, score, tagging


def task(kind: str) -> Task:
    fields = ("question", "text") if kind == "span" else ("text",)
    return Task.model_validate({"name": "t", "kind": kind, "train": Path("x"), "fields": fields, "answer": "a"})


def examples(*answers: object) -> list[Example]:
    return [Example(("some text",), answer) for answer in answers]  # pyright: ignore[reportArgumentType]


def test_accuracy_f1_and_matthews() -> None:
    # a: 2 of 3 found, one b called a, so precision and recall are 2/3; b: one of two.
    found = classification(["a", "a", "b", "a", "b"], ["a", "a", "a", "b", "b"])
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    # (TP TN - FP FN) / root of the products of margins: (2 * 1 - 1 * 1) / root(3 * 3 * 2 * 2).
    assert found["matthews"] == pytest.approx(1 / 6)


def test_a_constant_guess_has_no_correlation() -> None:
    assert classification(["a"] * 3, ["a", "a", "b"])["matthews"] == 0.0
    assert regression(np.ones(3), np.array([1.0, 2.0, 3.0]))["pearson"] == 0.0


def test_correlations() -> None:
    right = np.array([1.0, 2.0, 3.0, 4.0])
    assert regression(2 * right + 1, right)["pearson"] == pytest.approx(1)
    assert regression(right[::-1], right)["spearman"] == pytest.approx(-1)
    bent = regression(right**3, right)
    assert bent["spearman"] == pytest.approx(1)
    assert bent["pearson"] == pytest.approx(np.corrcoef(right**3, right)[0, 1])
    assert regression(right + 3, right)["rmse"] == pytest.approx(3)
    # Two share the ranks 0 and 1.
    tied = regression(np.array([1.0, 1.0, 2.0, 9.0]), np.array([1.0, 2.0, 3.0, 4.0]))["spearman"]
    assert tied == pytest.approx(np.corrcoef([0.5, 0.5, 2, 3], [0, 1, 2, 3])[0, 1])


@pytest.mark.parametrize("unit", [1e-200, 1e-7, 1e9])
def test_correlations_do_not_depend_on_the_unit(unit: float) -> None:
    right = unit * np.array([1.0, 2.0, 3.0, 4.0])
    assert regression(2 * right, right)["pearson"] == pytest.approx(1)
    assert regression(np.full(4, unit / 3), right)["pearson"] == 0.0


def test_words_and_whole_spans_of_labels() -> None:
    right = [("B-A", "I-A", "O", "B-B"), ("O", "B-A")]
    said = [("B-A", "I-A", "O", "B-A"), ("O", "I-A")]
    found = tagging(said, right)
    assert found["accuracy"] == pytest.approx(4 / 6)
    # Three spans said, three there; the first and the last are the same, for a lone I- begins a span.
    assert found["span_f1"] == pytest.approx(2 / 3)
    assert main_metric("tagging", found) == "span_f1"
    assert tagging([("B-A", "B-A")], [("B-A", "I-A")])["span_f1"] == 0.0
    words = tagging([("N",)], [("V",)])
    assert main_metric("tagging", words) == "accuracy"
    assert "span_f1" not in words


def test_the_best_of_several_right_answers_counts() -> None:
    found = score(task("span"), ["red forge", ""], examples(("forge", "The red forge."), ()))
    assert found == {"exact": 1.0, "f1": 1.0}
    assert score(task("span"), [""], examples(("forge",))) == {"exact": 0.0, "f1": 0.0}


def test_chinese_passages_are_compared_by_characters() -> None:
    chinese = Example(("什么", "铁匠在夜里打铁。"), ("在夜里",))
    english = Example(("when", "The smith forges at night."), ("at night",))
    found = score(task("span"), ["夜里", "night"], [chinese, english])
    # Two of three characters, and one of two words.
    assert found == {"exact": 0.0, "f1": pytest.approx((2 * 2 / 5 + 2 * 1 / 3) / 2)}
    assert score(task("text"), ["（铁匠）", "forge!"], examples("铁匠", "The forge")) == {"exact": 1.0}


def test_guesses_know_the_answers_and_no_text() -> None:
    two = examples("x", "y")
    assert baseline_answers(task("classification"), examples("b", "a", "b"), two) == ["b", "b"]
    assert baseline_answers(task("regression"), examples(1.0, 4.0), two) == [2.5, 2.5]
    assert baseline_answers(task("span"), two, two) == ["", ""]
    learnt = [Example(("lead", "ore"), ("V", "N")), Example(("lead", "tin"), ("N", "N")), Example(("lead",), ("V",))]
    # `lead` is V twice, `ore` N, and an unseen word is N as most are.
    assert baseline_answers(task("tagging"), learnt, [Example(("ore", "lead", "slag"), None)]) == [("N", "V", "N")]
