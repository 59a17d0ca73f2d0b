"""Task adapters for BERT: rows of ids with their targets, the task head, its loss, and the answers from its outputs.

`SequenceClassification` predicts a label or a number from [CLS] (Devlin et al. 2019, section 4.1),
`TokenClassification` a label for each word (section 5.3), and `SpanExtraction` an answer in a passage (sections 4.2 and
4.3): the passage is read in overlapping windows, an answer is the span with the highest sum of a start and an end
score, and [CLS] means no answer.

Shapes: B rows, T tokens, D width, C labels.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.data.row_format import NO_LOSS
from model.finetune.config import FinetuneConfig, Task
from model.finetune.data import Answer, Example, Truncation, fit_together
from model.finetune.tokenizer import Vocabulary
from model.inference.generate import padded
from model.nn.bert import BERT

OUTSIDE = "O"
"""Label of words outside all spans (Ramshaw and Marcus 1995)."""


@dataclass(frozen=True)
class Row:
    """One input of the network with its target."""

    example: int
    """Index of its example."""
    ids: list[int]
    second: int
    """Index of the first token of the second text; the length where there is none."""
    target: tuple[float, ...]
    """A label; a number; a label or NO_LOSS for each token; or the first and last token of the answer."""
    borders: np.ndarray | None = None
    """Of a span: i64[T, 2], the bytes of the passage that each token covers; -1 for tokens outside the passage."""


def word_indices(row: Row) -> list[int]:
    """Return the index of each word's first token, where its label is predicted."""
    return [index for index, target in enumerate(row.target) if target != NO_LOSS]


class TaskHead(nn.Module):
    """A linear layer on the hidden states, with dropout before it; initialised from N(0, .02) as BERT's."""

    def __init__(self, width: int, outputs: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.dropout = dropout
        self.answer = nn.Linear(width, outputs)
        with torch.no_grad():
            self.answer.weight.normal_(0.0, 0.02, generator=generator)
            self.answer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[..., width] to f32[..., outputs]."""
        return self.answer(F.dropout(x, self.dropout, self.training))


class TaskAdapter(ABC):
    """Adapts BERT to one kind of task."""

    def __init__(
        self, task: Task, labels: Sequence[str], vocabulary: Vocabulary, config: FinetuneConfig, max_tokens: int
    ) -> None:
        del config  # Read by subclasses.
        self._labels, self._vocabulary, self._max_tokens = list(labels), vocabulary, max_tokens
        self._number = task.kind == "regression"
        self.outputs = 1 if self._number else len(labels)
        """Outputs of the head."""
        self.state: dict[str, float] = {}
        """Values other than weights that were derived from the training examples and are needed to answer; the task
        model's, too."""

    @abstractmethod
    def rows(self, examples: Sequence[Example], truncation: Truncation, *, fitting: bool) -> list[Row]:
        """Return the rows of the examples; count in `truncation` what does not fit."""

    def outputs_of(self, network: BERT, head: TaskHead, hidden_BTD: Tensor) -> Tensor:
        """Return the head's outputs: f32[B, T, outputs] for every token, or f32[B, outputs]."""
        del network
        return head(hidden_BTD)

    @abstractmethod
    def loss(self, outputs: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return the mean loss of the rows, f32[]."""

    @abstractmethod
    def answers(self, outputs: Sequence[Tensor], rows: Sequence[Row], examples: Sequence[Example]) -> list[Answer]:
        """Return an answer for each example, from the outputs of all rows."""


def whole_hidden(network: BERT, rows: Sequence[Row], pad: int) -> Tensor:
    """Return the hidden states f32[B, T, D] of rows, padded to the longest."""
    device = network.embedding.weight.device
    ids_BT = padded([row.ids for row in rows], pad).to(device)
    place_T = torch.arange(ids_BT.shape[1], device=device)
    length_B = torch.tensor([len(row.ids) for row in rows], device=device)
    is_token_BT = place_T < length_B[:, None]
    second_B = torch.tensor([row.second for row in rows], device=device)
    types_BT = ((place_T >= second_B[:, None]) & is_token_BT).long()
    return network.hidden(ids_BT, types_BT, is_token_BT)


class SequenceClassification(TaskAdapter):
    """Predicts a label or a number for a text or a pair, from [CLS] through BERT's pooler (section 4.1)."""

    def rows(self, examples: Sequence[Example], truncation: Truncation, *, fitting: bool) -> list[Row]:
        """Return rows [CLS] text [SEP], or [CLS] text [SEP] text [SEP]; the longest of a pair is truncated first."""
        if fitting and self._number:
            numbers = np.array([example.answer for example in examples], dtype=np.float64)
            self.state |= {"mean": float(numbers.mean()), "deviation": float(numbers.std()) or 1.0}
        rows = []
        for number, example in enumerate(examples):
            texts = [self._vocabulary.encode(text) for text in example.texts]
            kept = fit_together([len(text) for text in texts], self._max_tokens - 1 - len(texts))
            truncation.count(sum(map(len, texts)), sum(kept))
            ids, second = [self._vocabulary.cls], 0
            for text, length in zip(texts, kept, strict=True):
                ids += [*text[:length], self._vocabulary.sep]
                second = second or len(ids)
            rows.append(Row(number, ids, second, (self._target(example),)))
        return rows

    def _target(self, example: Example) -> float:
        if example.answer is None:
            return NO_LOSS
        if self._number:
            assert isinstance(example.answer, float), "a number"
            return (example.answer - self.state["mean"]) / self.state["deviation"]
        return self._labels.index(str(example.answer))

    def outputs_of(self, network: BERT, head: TaskHead, hidden_BTD: Tensor) -> Tensor:
        """Return f32[B, C], or f32[B, 1] of a regression."""
        return head(torch.tanh(network.next_head_in(hidden_BTD[:, 0])))

    def loss(self, outputs: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return the cross entropy, or the squared error of standardised numbers."""
        if self._number:
            return F.mse_loss(outputs[:, 0], torch.tensor([row.target[0] for row in rows], device=outputs.device))
        return F.cross_entropy(outputs, torch.tensor([int(row.target[0]) for row in rows], device=outputs.device))

    def answers(self, outputs: Sequence[Tensor], rows: Sequence[Row], examples: Sequence[Example]) -> list[Answer]:
        """Return the likeliest label, or the number, of each example."""
        if self._number:
            return [self.state["mean"] + self.state["deviation"] * float(output[0]) for output in outputs]
        return [self._labels[int(output.argmax())] for output in outputs]


class TokenClassification(TaskAdapter):
    """Predicts a label for each word, from its first token (section 5.3)."""

    def rows(self, examples: Sequence[Example], truncation: Truncation, *, fitting: bool) -> list[Row]:
        """Return rows [CLS] words [SEP]; words that do not fit are cut off. With `fitting`, examples that then have no
        word are left out."""
        rows = []
        for number, example in enumerate(examples):
            ids, target = [self._vocabulary.cls], [NO_LOSS]
            tags = example.answer if isinstance(example.answer, tuple) else None
            tokens = kept = 0
            for place, word in enumerate(example.texts):
                # In the text that the network was trained on, a word follows a space.
                pieces = self._vocabulary.encode(f" {word}" if place else word) or [self._vocabulary.sep]
                tokens += len(pieces)
                if kept == tokens - len(pieces) and len(ids) + len(pieces) < self._max_tokens:
                    kept += len(pieces)
                    ids += pieces
                    target += [self._labels.index(tags[place]) if tags else 0] + [NO_LOSS] * (len(pieces) - 1)
            truncation.count(tokens, kept)
            row = Row(number, [*ids, self._vocabulary.sep], len(ids) + 1, (*target, NO_LOSS))
            if fitting and not word_indices(row):
                truncation.leave_out("without a word that fits")
                continue
            rows.append(row)
        return rows

    def loss(self, outputs: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return the mean cross entropy over words."""
        targets = torch.full(outputs.shape[:2], NO_LOSS, device=outputs.device)
        for place, row in enumerate(rows):
            targets[place, : len(row.target)] = torch.tensor(row.target, dtype=torch.int64)
        nats = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=NO_LOSS, reduction="sum")
        return nats / max(1, int((targets != NO_LOSS).sum()))

    def answers(self, outputs: Sequence[Tensor], rows: Sequence[Row], examples: Sequence[Example]) -> list[Answer]:
        """Return the likeliest label of each word."""
        found: list[Answer] = []
        for output, row, example in zip(outputs, rows, examples, strict=True):
            predicted = [self._labels[int(output[index].argmax())] for index in word_indices(row)]
            # Nothing is known of words that were cut off; a label that begins a span would invent one.
            default = OUTSIDE if OUTSIDE in self._labels else self._labels[0]
            found.append((*predicted, *[default] * (len(example.texts) - len(predicted))))
        return found


NO_ANSWER = 0
"""Index of [CLS], whose start and end scores mean that there is no answer."""


class SpanExtraction(TaskAdapter):
    """Predicts two scores for each token: that the answer begins there, and that it ends there (sections 4.2, 4.3)."""

    def __init__(
        self, task: Task, labels: Sequence[str], vocabulary: Vocabulary, config: FinetuneConfig, max_tokens: int
    ) -> None:
        super().__init__(task, labels, vocabulary, config, max_tokens)
        self.outputs = 2
        self._question, self._answer = min(config.max_question, max_tokens // 2), config.max_answer
        self._stride = config.stride_share
        self.state["answerless"] = 0.0
        """1 where training examples without an answer occurred; only then may an answer be empty."""

    def rows(self, examples: Sequence[Example], truncation: Truncation, *, fitting: bool) -> list[Row]:
        """Return rows [CLS] question [SEP] window [SEP], one for each window of the passage.

        With `fitting`, windows without the answer are left out where another window has it, and so are examples whose
        answer is not in the passage.
        """
        rows = []
        for number, example in enumerate(examples):
            question, passage = example.texts
            question_ids = self._vocabulary.encode(question)
            kept = question_ids[: self._question]
            ids, borders = self._vocabulary.encode_with_offsets(passage)
            truncation.count(len(question_ids) + len(ids), len(kept) + len(ids))
            golds = tuple(gold for gold in example.answer or () if gold) if isinstance(example.answer, tuple) else ()
            bytes_of_answer = _place(example, passage, golds)
            if fitting and golds and bytes_of_answer is None:
                place = "in the passage" if example.start is None else "where they say that it begins"
                truncation.leave_out(f"without their answer {place}")
                continue
            if fitting and not golds:
                self.state["answerless"] = 1.0
            head = [self._vocabulary.cls, *kept, self._vocabulary.sep]
            windows = self._windows(len(ids), self._max_tokens - len(head) - 1)
            mine = [self._row(number, head, ids, borders, window, bytes_of_answer) for window in windows]
            with_answer = [row for row in mine if row.target != (NO_ANSWER, NO_ANSWER)]
            if fitting and golds:
                if not with_answer:
                    truncation.leave_out("with an answer that no window holds")
                mine = with_answer
            rows += mine
        return rows

    def _windows(self, length: int, max_tokens: int) -> list[range]:
        step = max(1, int(max_tokens * self._stride))
        begins = range(0, max(0, length - max_tokens) + step, step)
        return [range(begin, min(begin + max_tokens, length)) for begin in begins]

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

    def loss(self, outputs: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return the mean of the cross entropies of first and last token, over [CLS] and the window's tokens."""
        masked = torch.stack([_of_passage(output, row) for output, row in zip(outputs, rows, strict=True)])
        first, last = (torch.tensor([int(row.target[end]) for row in rows], device=outputs.device) for end in (0, 1))
        return (F.cross_entropy(masked[..., 0], first) + F.cross_entropy(masked[..., 1], last)) / 2

    def answers(self, outputs: Sequence[Tensor], rows: Sequence[Row], examples: Sequence[Example]) -> list[Answer]:
        """Return the best span of each example's windows; empty where no answer scores higher in every window."""
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
    """Return f32[T, 2] with -inf where a token is neither in the passage nor [CLS]."""
    assert row.borders is not None, "rows of spans know their bytes"
    may = torch.zeros(len(output_T2), dtype=torch.bool, device=output_T2.device)
    may[: len(row.ids)] = torch.from_numpy(row.borders[:, 0] >= 0)
    may[NO_ANSWER] = True
    return output_T2.masked_fill(~may[:, None], -torch.inf)


def _place(example: Example, passage: str, golds: tuple[str, ...]) -> tuple[int, int] | None:
    """Return the byte range of the first answer in the passage; None without an answer, or where it does not occur."""
    if not golds:
        return None
    start = passage.find(golds[0]) if example.start is None else example.start
    if start < 0 or not passage.startswith(golds[0], start):
        return None
    begin = len(passage[:start].encode())
    return begin, begin + len(golds[0].encode())
