"""Span extraction: windows cover the passage, targets are the answer's bytes, the best span is found."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.finetune.config import FinetuneConfig, Task
from model.finetune.data import Example, Truncation
from model.finetune.heads import NO_ANSWER, SpanExtraction

WORDS = ["tin", "copper", "iron", "coal", "ore", "slag", "flux", "é中"]
TASK = Task(name="t", kind="span", train=Path("x"), fields=("question", "text"), answer="a")


def reading(vocabulary, max_tokens: int = 12, **chosen: object) -> SpanExtraction:
    config = FinetuneConfig.model_validate({"tasks": (TASK,), **chosen})
    return SpanExtraction(TASK, (), vocabulary, config, max_tokens)


@settings(max_examples=80, deadline=None)
@given(
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=30),
    place=st.integers(0, 29),
    length=st.integers(1, 3),
    max_tokens=st.integers(9, 20),
    stride=st.sampled_from([0.3, 0.5, 1.0]),
)
def test_windows_cover_the_passage_and_targets_are_the_answer(
    vocabulary, words: list[str], place: int, length: int, max_tokens: int, stride: float
) -> None:
    begin = place % len(words)
    answer = " ".join(words[begin : begin + length])
    passage = " ".join(words)
    start = len(" ".join([*words[:begin], ""]))
    example = Example(("what follows",), None)
    example = Example(("what follows", passage), (answer,), start=start)
    rows = reading(vocabulary, max_tokens, stride_share=stride).rows([example], Truncation(), fitting=False)
    seen = set()
    for row in rows:
        assert row.borders is not None
        assert len(row.ids) == len(row.borders) <= max_tokens
        seen |= {tuple(pair) for pair in row.borders.tolist()}
        first, last = map(int, row.target)
        if (first, last) != (NO_ANSWER, NO_ANSWER):
            found = passage.encode()[row.borders[first, 0] : row.borders[last, 1]].decode().strip()
            assert found == answer
    assert len(seen - {(-1, -1)}) == len(words)
    if length + 4 + stride * (max_tokens - 5) <= max_tokens - 1:
        assert any(row.target != (NO_ANSWER, NO_ANSWER) for row in rows)


def test_what_cannot_be_learnt_is_counted(vocabulary) -> None:
    there = Example(("what", "tin copper iron"), ("iron",))
    elsewhere = Example(("what", "tin copper iron"), ("gold",))
    none = Example(("what", "tin copper iron"), ())
    found, truncation = reading(vocabulary), Truncation()
    assert [row.example for row in found.rows([there, elsewhere], truncation, fitting=True)] == [0]
    assert truncation.unusable == {"without their answer in the passage": 1}
    assert found.state == {"answerless": 0.0}
    (row,) = found.rows([none], truncation, fitting=True)
    assert row.target == (NO_ANSWER, NO_ANSWER)
    assert found.state == {"answerless": 1.0}
    assert [row.example for row in found.rows([there, elsewhere, none], Truncation(), fitting=False)] == [0, 1, 2]


def test_an_answer_is_where_it_is_said_to_be_or_nowhere(vocabulary) -> None:
    twice = "tin copper tin"
    first, second = (Example(("what", twice), ("tin",), start=start) for start in (0, 11))
    rows = reading(vocabulary).rows([first, second, Example(("what", twice), ("tin",))], Truncation(), fitting=True)
    # [CLS] what [SEP], then the passage.
    assert [row.target for row in rows] == [(3, 3), (5, 5), (3, 3)]
    truncation = Truncation()
    beside = [Example(("what", twice), ("tin",), start=start) for start in (1, 99)]
    assert not reading(vocabulary).rows(beside, truncation, fitting=True)
    assert truncation.unusable == {"without their answer where they say that it begins": 2}


def test_a_long_question_is_cut_and_counted(vocabulary) -> None:
    truncation = Truncation()
    example = Example((" ".join(["what"] * 30), "tin copper iron"), ("iron",))
    (row,) = reading(vocabulary, max_tokens=40, max_question=10).rows([example], truncation, fitting=True)
    assert len(row.ids) == 1 + 10 + 1 + 3 + 1
    assert (truncation.cut_examples, truncation.lost_tokens) == (1, 20)


def scores(row, first: int, last: int, value: float) -> torch.Tensor:
    output = torch.zeros(len(row.ids) + 2, 2)
    output[first, 0] = output[last, 1] = value
    # In the padding, the question and behind an end nothing may win.
    output[-1] = output[1] = 99.0
    return output


def test_the_best_stretch_of_all_windows_wins(vocabulary) -> None:
    example = Example(("what", "tin copper iron coal ore slag flux tin copper"), ("ore",))
    found = reading(vocabulary, max_tokens=8, max_answer=2)
    rows = found.rows([example], Truncation(), fitting=False)
    assert len(rows) > 2
    outputs = [scores(row, 3, 4, value) for row, value in zip(rows, [1.0, 5.0, *[2.0] * len(rows)], strict=False)]
    assert rows[1].borders is not None
    begin, end = rows[1].borders[3, 0], rows[1].borders[4, 1]
    assert found.answers(outputs, rows, [example]) == [example.texts[1].encode()[begin:end].decode().strip()]


def test_an_answer_has_no_more_tokens_than_asked_and_ends_behind_its_beginning(vocabulary) -> None:
    example = Example(("what", "tin copper iron coal"), ("ore",))
    found = reading(vocabulary, max_answer=2)
    rows = found.rows([example], Truncation(), fitting=False)
    output = torch.zeros(len(rows[0].ids), 2)
    output[3, 0] = output[6, 1] = 9.0
    output[4, 1] = 1.0
    assert found.answers([output], rows, [example]) == ["tin copper"]
    backwards = torch.zeros(len(rows[0].ids), 2)
    backwards[5, 0] = backwards[3, 1] = 9.0
    (answer,) = found.answers([backwards], rows, [example])
    assert answer in ("iron", "iron coal", "tin")


@pytest.mark.parametrize("answerless", [0.0, 1.0])
def test_no_answer_wins_only_where_some_were_learnt(vocabulary, answerless: float) -> None:
    example = Example(("what", "tin copper"), ())
    found = reading(vocabulary)
    found.state = {"answerless": answerless}
    rows = found.rows([example], Truncation(), fitting=False)
    output = scores(rows[0], 3, 4, 1.0)
    output[NO_ANSWER] = 1.5
    assert found.answers([output], rows, [example]) == ["" if answerless else "tin copper"]


def test_the_loss_is_that_of_both_ends_over_passage_and_no_answer(vocabulary) -> None:
    example = Example(("what", "tin copper iron"), ("iron",))
    found = reading(vocabulary)
    rows = found.rows([example], Truncation(), fitting=True)
    # Of four places (no answer and three words) each is as likely.
    output = torch.zeros(1, len(rows[0].ids), 2)
    output[0, 1] = 50.0
    assert float(found.loss(output, rows)) == pytest.approx(np.log(4))
