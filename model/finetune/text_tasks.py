"""Tasks as text for a T5: what it reads, what it should write, and what its writing means.

Raffel et al. 2020, section 2.4 and appendix D: "stsb sentence1: ... sentence2: ..." is answered by "3.8".
"""

import math
from collections.abc import Sequence
from decimal import Decimal

from model.encoder_decoder import Allowed, only
from model.errors import InputError
from model.finetune.config import Task
from model.finetune.examples import Answer, Example
from model.finetune.vocabulary import Vocabulary

UNREADABLE = -1.0
"""The number that writing which is no number counts as, as in T5's program."""


class TextTask:
    """One task between examples and texts. Raises InputError where the vocabulary writes two labels alike."""

    def __init__(self, task: Task, labels: Sequence[str], vocabulary: Vocabulary) -> None:
        self.task, self._vocabulary = task, vocabulary
        self._closed = tuple(labels) if task.kind == "classification" else ()
        if task.kind == "regression":
            self._closed = number_strings(task)
        self._of_ids = {tuple(vocabulary.encode(answer)): answer for answer in self._closed}
        if len(self._of_ids) < len(self._closed):
            raise InputError(
                f"task {task.name}: the model's vocabulary writes some of {', '.join(self._closed)} with the same"
                f" tokens, so it could not tell them apart; name the labels otherwise"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a classification, or the numbers of a regression; none for other texts."""
        return self._closed

    def read(self, example: Example) -> str:
        """What the encoder reads: the task's name, then each field behind its own."""
        fields = (f"{name}: {text}" for name, text in zip(self.task.fields, example.texts, strict=True))
        return " ".join([self.task.name, *fields])

    def written(self, example: Example) -> str:
        """What the decoder should write; InputError for a number outside the task's."""
        if self.task.kind == "regression":
            assert isinstance(example.answer, float), "a number"
            return nearest_string(example.answer, self.task)
        if isinstance(example.answer, tuple):
            return example.answer[0] if example.answer else ""
        assert isinstance(example.answer, str), "text"
        return example.answer

    def rule(self) -> Allowed | None:
        """What alone may be written; None where that is anything."""
        if not self._closed or self.task.decoding == "free":
            return None
        return only(list(self._of_ids), self._vocabulary.eos)

    def longest(self, max_answer: int) -> int:
        """Most tokens to write, end of text included."""
        return max([max_answer if self.rule() is None else 0, *map(len, self._of_ids)]) + 1

    def answer(self, ids: Sequence[int]) -> Answer:
        """What the ids mean."""
        text = self._of_ids.get(tuple(ids)) or self._vocabulary.decode(ids).strip()
        if self.task.kind != "regression":
            return text
        try:
            number = float(text)
        except ValueError:
            return UNREADABLE
        return number if math.isfinite(number) else UNREADABLE


def number_strings(task: Task) -> tuple[str, ...]:
    """The numbers of a regression as text, from the least to the greatest: 21 from 1.0 to 5.0 in steps of .2.

    Each has as many decimals as the least number and the step together need, and one at least.
    """
    least, step = Decimal(str(task.smallest)), Decimal(str(task.step))
    decimals = max(1, *(-int(number.normalize().as_tuple().exponent) for number in (least, step)))
    return tuple(f"{least + number * step:.{decimals}f}" for number in range(task.steps + 1))


def nearest_string(number: float, task: Task) -> str:
    """The nearest of `number_strings`; InputError for a number that is not between the least and the greatest."""
    if not task.smallest <= number <= task.largest:
        raise InputError(
            f"task {task.name}: the number {number:g} is not between smallest = {task.smallest:g} and largest ="
            f" {task.largest:g}; set these in the task file"
        )
    return number_strings(task)[round((number - task.smallest) / task.step)]
