"""Answers that stand in a passage: windows over long ones, first and last token, and whether there is an answer at all.

Devlin et al. 2019, sections 4.2 and 4.3: the passage is read in windows that overlap, an answer is the stretch with the
highest sum of two scores, and [CLS] stands for no answer. Shapes: B rows, T tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from model.bert import BERT
from model.finetune.config import FinetuneConfig, Task
from model.finetune.examples import Answer, Example
from model.finetune.heads import Row, TaskHead
from model.finetune.truncation import Truncation
from model.finetune.vocabulary import Vocabulary

NO_ANSWER = 0
"""Place of [CLS], where both scores of no answer are read."""


class SpanReading:
    """Two scores for each token: that the answer begins there, and that it ends there."""

    outputs = 2

    def __init__(self, task: Task, labels: Sequence[str], vocabulary: Vocabulary, config: FinetuneConfig, room: int):
        self._vocabulary, self._room = vocabulary, room
        self._question, self._answer = min(config.max_question, room // 2), config.max_answer
        self._stride = config.stride_share
        self.state: dict[str, float] = {"answerless": 0.0}
        """1 where examples without an answer were learnt from; only then may an answer be none."""

    def rows(self, examples: Sequence[Example], truncation: Truncation, *, learning: bool) -> list[Row]:
        """[CLS] question [SEP] window [SEP], as many rows as the passage has windows.

        In learning, windows without the answer are left out where another window has it, and examples whose answer is
        not in the passage altogether.
        """
        rows = []
        for number, example in enumerate(examples):
            question, passage = example.texts
            asked = self._vocabulary.encode(question)
            kept = asked[: self._question]
            ids, borders = self._vocabulary.encode_with_offsets(passage)
            truncation.count(len(asked) + len(ids), len(kept) + len(ids))
            golds = tuple(gold for gold in example.answer or () if gold) if isinstance(example.answer, tuple) else ()
            bytes_of_answer = _place(example, passage, golds)
            if learning and golds and bytes_of_answer is None:
                place = "in the passage" if example.start is None else "where they say that it begins"
                truncation.leave_out(f"without their answer {place}")
                continue
            if learning and not golds:
                self.state["answerless"] = 1.0
            head = [self._vocabulary.cls, *kept, self._vocabulary.sep]
            windows = self._windows(len(ids), self._room - len(head) - 1)
            mine = [self._row(number, head, ids, borders, window, bytes_of_answer) for window in windows]
            with_answer = [row for row in mine if row.target != (NO_ANSWER, NO_ANSWER)]
            if learning and golds:
                if not with_answer:
                    truncation.leave_out("with an answer that no window holds")
                mine = with_answer
            rows += mine
        return rows

    def _windows(self, length: int, room: int) -> list[range]:
        step = max(1, int(room * self._stride))
        begins = [0]
        while begins[-1] + room < length:
            begins.append(begins[-1] + step)
        return [range(begin, min(begin + room, length)) for begin in begins]

    def _row(
        self,
        number: int,
        head: list[int],
        ids: np.ndarray,
        borders: np.ndarray,
        window: range,
        answer: tuple[int, int] | None,
    ) -> Row:
        covered = np.full((len(head) + len(window) + 1, 2), -1, dtype=np.int64)
        places = np.arange(window.start, window.stop)
        covered[len(head) : len(head) + len(window), 0] = borders[places]
        covered[len(head) : len(head) + len(window), 1] = borders[places + 1]
        target = (NO_ANSWER, NO_ANSWER)
        if answer is not None:
            first = np.flatnonzero((covered[:, 0] <= answer[0]) & (answer[0] < covered[:, 1]))
            last = np.flatnonzero((covered[:, 0] < answer[1]) & (answer[1] <= covered[:, 1]))
            if len(first) and len(last):
                target = (int(first[0]), int(last[0]))
        row = [*head, *ids[window.start : window.stop].tolist(), self._vocabulary.sep]
        return Row(number, row, len(head), target, covered)

    def outputs_of(self, network: BERT, head: TaskHead, hidden_BTD: Tensor) -> Tensor:
        """f32[B, T, 2]."""
        return head(hidden_BTD)

    def loss(self, outputs: Tensor, rows: Sequence[Row]) -> Tensor:
        """Mean of the cross entropies of first and last token, over [CLS] and the tokens of the window."""
        masked = torch.stack([_of_passage(output, row) for output, row in zip(outputs, rows, strict=True)])
        first, last = (torch.tensor([int(row.target[end]) for row in rows], device=outputs.device) for end in (0, 1))
        return (F.cross_entropy(masked[..., 0], first) + F.cross_entropy(masked[..., 1], last)) / 2

    def answers(self, outputs: Sequence[Tensor], rows: Sequence[Row], examples: Sequence[Example]) -> list[Answer]:
        """The best stretch over all windows of each example; empty where no answer scores higher in every window."""
        best: list[tuple[float, str]] = [(-np.inf, "")] * len(examples)
        none = [np.inf] * len(examples)
        for output, row in zip(outputs, rows, strict=True):
            value, text = self._best(_of_passage(output, row), row, examples[row.example].texts[1])
            best[row.example] = max(best[row.example], (value, text), key=lambda one: one[0])
            none[row.example] = min(none[row.example], float(output[NO_ANSWER].sum()))
        may_be_none = bool(self.state["answerless"])
        pairs = zip(best, none, strict=True)
        return ["" if may_be_none and without > value else text for (value, text), without in pairs]

    def _best(self, output_T2: Tensor, row: Row, passage: str) -> tuple[float, str]:
        assert row.borders is not None, "rows of spans know their bytes"
        scores_TT = output_T2[:, None, 0] + output_T2[None, :, 1]
        length = len(output_T2)
        near = torch.ones(length, length, dtype=torch.bool).triu().tril(self._answer - 1)
        near[NO_ANSWER] = False
        scores_TT = scores_TT.masked_fill(~near, -torch.inf)
        place = int(scores_TT.argmax())
        value = float(scores_TT.flatten()[place])
        if value == -np.inf:
            return value, ""
        begin, end = row.borders[place // length, 0], row.borders[place % length, 1]
        return value, passage.encode()[begin:end].decode(errors="ignore").strip()


def _of_passage(output_T2: Tensor, row: Row) -> Tensor:
    """f32[T, 2] with -inf where a token is neither of the passage nor [CLS]."""
    assert row.borders is not None, "rows of spans know their bytes"
    may = torch.zeros(len(output_T2), dtype=torch.bool, device=output_T2.device)
    may[: len(row.ids)] = torch.from_numpy(row.borders[:, 0] >= 0)
    may[NO_ANSWER] = True
    return output_T2.masked_fill(~may[:, None], -torch.inf)


def _place(example: Example, passage: str, golds: tuple[str, ...]) -> tuple[int, int] | None:
    """The bytes of the first answer in the passage; None where there is none or it does not stand there."""
    if not golds:
        return None
    start = passage.find(golds[0]) if example.start is None else example.start
    if start < 0 or not passage.startswith(golds[0], start):
        return None
    begin = len(passage[:start].encode())
    return begin, begin + len(golds[0].encode())
